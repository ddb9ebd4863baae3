"""The layers of a run in progress, for the views that follow it.

The agent does not read them: what a view wants to know costs the view, and neither the training nor
the agent. A file is read again only when it has grown, and all of it takes a small share of a core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from traceml.facts.layers import layer_profile
from traceml.figures.layers import layers_part
from traceml.figures.page import Part
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.layer_records import LayerRecords, layer_files, read_layer_file
from traceml.store.regular_files import stat_regular
from traceml.store.run_follower import RunFollower
from traceml.summaries.layers import StepMeans, profile_summary
from traceml.summaries.record import Setting, Summary

MAX_CORE_SHARE = 0.02
MAX_LOOK_S = 0.2
"""After so much CPU time the rest of the files wait for the next look: the page is waiting."""


class LiveLayers:
    """One run's layers as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, int] = {}
        self._records: dict[Path, LayerRecords] = {}
        self._part: Part | None = None
        self._rests_until_s = 0.0

    def part(self, follower: RunFollower, summary: Summary | None) -> Part | None:
        """Returns the part of the page as it was at the last look; `None` without layers."""
        if time.monotonic() < self._rests_until_s:
            return self._part
        began_s = time.thread_time()
        if self._read(began_s):
            self._part = self._drawn(follower, summary)
        spent_s = time.thread_time() - began_s
        self._rests_until_s = time.monotonic() + spent_s / MAX_CORE_SHARE
        return self._part

    def _read(self, began_s: float) -> bool:
        """Reads files that have grown, as far as time allows; returns whether any had."""
        paths = layer_files(self._folder)
        has_news = False
        for path in paths:
            found = stat_regular(path)
            if found is None or self._sizes.get(path) == found.st_size:
                continue
            self._records[path] = read_layer_file(path, len(paths))
            self._sizes[path] = found.st_size
            has_news = True
            if time.thread_time() - began_s > MAX_LOOK_S:
                break
        return has_news

    def _drawn(self, follower: RunFollower, summary: Summary | None) -> Part | None:
        devices = (each.rank.device_name for each in follower.ranks())
        profile = layer_profile(
            [self._records[path] for path in sorted(self._records)],
            follower.rank_numbers(),
            next((name for name in devices if name), None),
            _settings(None if summary is None else summary.settings),
        )
        return layers_part(profile_summary(profile, _means(summary)))


def _settings(found: Mapping[str, Setting] | None) -> Settings:
    """Returns the settings that a summary tells; what it does not tell is not known."""
    told = {name: value for name, value in (found or {}).items() if name in Settings._fields}
    return NOT_RECORDED._replace(**told)  # type: ignore[arg-type] # written from such a tuple


def _means(summary: Summary | None) -> StepMeans:
    if summary is None or summary.step_time is None:
        return StepMeans()
    average = summary.step_time.global_.average

    def seconds(key: str) -> float | None:
        value = average.get(key)
        return None if value is None else value / 1e3

    return StepMeans(seconds("step_time_ms"), seconds("forward_ms"), seconds("backward_ms"))
