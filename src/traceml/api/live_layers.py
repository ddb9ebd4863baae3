"""The layers of a run in progress, and its sampled stacks, for the views that follow it.

The agent does not read them: what a view wants to know costs the view, and neither the training nor
the agent. Of a file only what was added is read, and all of it takes a small share of a core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from traceml.facts.gather import gather
from traceml.facts.layers import layer_profile
from traceml.figures.host_time import host_time_part
from traceml.figures.layers import layers_part
from traceml.figures.page import Part
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.layer_records import LayerFileReader, LayerRecords, layer_files
from traceml.store.load import load_run
from traceml.store.regular_files import stat_regular
from traceml.store.run_follower import RunFollower
from traceml.store.stack_samples import FILE_NAME
from traceml.summaries.host_time import host_time_summary
from traceml.summaries.layers import StepMeans, profile_summary
from traceml.summaries.record import Setting, Summary

MAX_CORE_SHARE = 0.02
MAX_LOADED_STEPS = 1_000_000
"""Of all ranks together, about 300 MB. Stacks are told apart by the steps they were taken in: where
a run has more, its stacks stay as they were last seen until it is over."""
MAX_LOOK_S = 0.2
"""After so much CPU time the rest of the files wait for the next look: the page is waiting."""


class LiveHostTime:
    """One run's stack samples as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: tuple[tuple[int, int], ...] = ()
        """The samples of each node that has any, as they were at the last look."""
        self._part: Part | None = None
        self._rests_until_s = 0.0

    def part(self, follower: RunFollower) -> Part | None:
        """Returns the part of the page as it was at the last look; `None` without samples."""
        files = (stat_regular(node.place.folder / FILE_NAME) for node in follower.nodes())
        written = tuple((found.st_ino, found.st_size) for found in files if found is not None)
        if written == self._written or time.monotonic() < self._rests_until_s:
            return self._part
        if follower.steps_written() > MAX_LOADED_STEPS:
            return self._part
        began_s = time.thread_time()
        self._written = written
        records = load_run(self._folder)
        self._part = host_time_part(host_time_summary(records, gather(records)))
        spent_s = time.thread_time() - began_s
        self._rests_until_s = time.monotonic() + spent_s / MAX_CORE_SHARE
        return self._part


class LiveLayers:
    """One run's layers as they are written."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}
        self._readers: dict[Path, LayerFileReader] = {}
        self._records: dict[Path, LayerRecords] = {}
        self._part: Part | None = None
        self._rests_until_s = 0.0

    def part(self, follower: RunFollower, summary: Summary | None) -> Part | None:
        """Returns the part of the page as it was at the last look; `None` without layers."""
        if time.monotonic() < self._rests_until_s:
            return self._part
        began_s = time.thread_time()
        if self._read(follower, began_s):
            self._part = self._drawn(follower, summary)
        spent_s = time.thread_time() - began_s
        self._rests_until_s = time.monotonic() + spent_s / MAX_CORE_SHARE
        return self._part

    def _read(self, follower: RunFollower, began_s: float) -> bool:
        """Reads files that have grown, as far as time allows; returns whether any had."""
        paths = {
            path: node.place for node in follower.nodes() for path in layer_files(node.place.folder)
        }
        has_news = False
        for path, place in paths.items():
            found = stat_regular(path)
            if found is None or self._sizes.get(path) == found.st_size:
                continue
            reader = self._readers.setdefault(path, LayerFileReader(path))
            records = reader.read(len(paths))
            self._records[path] = replace(records, pid=place.pid(records.pid))
            self._sizes[path] = found.st_size
            has_news = True
            if time.thread_time() - began_s > MAX_LOOK_S:
                break
        return has_news

    def _drawn(self, follower: RunFollower, summary: Summary | None) -> Part | None:
        devices = (each.rank.accelerator for each in follower.ranks())
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
