"""Puts beside a run's predictions how those of earlier runs of the same work came out.

At the end of a run, in the agent: the look at the other runs of the folder is bounded in number and
in time, and runs that cannot be read are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from traceml.compare.like_runs import (
    SPEED_PARAMS,
    series_command,
    version_identity,
    work_identity,
)
from traceml.compare.prediction_scores import RunVersion, score_by_kind, score_predictions
from traceml.compare.script_identity import are_different, script_of
from traceml.model.errors import TraceMLError
from traceml.model.run import Manifest
from traceml.store.folder import MANIFEST, SUMMARY, read_manifest
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary, has_failed

MAX_FOLDERS = 20_000
MAX_SUMMARIES = 40
TIMEOUT_S = 0.5


def with_scores(
    summary: Summary, folder: Path, started_unix_s: float, timeout_s: float = TIMEOUT_S
) -> Summary:
    """Returns the summary of a run with the score of each prediction's kind, from the runs beside
    it that had started before it and ended well."""
    wanted = work_identity(summary)
    if wanted is None or not summary.what_if:
        return summary
    ends_s = time.monotonic() + timeout_s
    versions: dict[tuple[object, ...], list[tuple[str, Summary]]] = {}
    earlier = sorted(_earlier(folder, started_unix_s, ends_s), key=lambda each: each[0])
    script = script_of(summary.lineage)
    for _, name, found in earlier:
        is_other = are_different(script, script_of(found.lineage))
        if work_identity(found) == wanted and not is_other:
            versions.setdefault(version_identity(found), []).append((name, found))
    scores = score_by_kind(score_predictions([RunVersion(tuple(x)) for x in versions.values()]))
    what_if = tuple(structs.replace(x, score=scores.get(x.kind)) for x in summary.what_if)
    return structs.replace(summary, what_if=what_if)


def _earlier(
    folder: Path, started_unix_s: float, ends_s: float
) -> Iterator[tuple[float, str, Summary]]:
    """Yields the newest runs before this one with their start and name, until the time is up."""
    try:
        command = _command(read_manifest(folder))
    except (TraceMLError, OSError):
        return
    read = 0
    for name in _newest(folder.parent, ends_s):
        if read >= MAX_SUMMARIES or time.monotonic() > ends_s:
            return
        path = folder.parent / name
        try:
            manifest = read_manifest(path)
            if manifest.started_unix_s >= started_unix_s or _command(manifest) != command:
                continue
            found = read_compared(path / SUMMARY)
        except (TraceMLError, OSError):
            continue  # unfinished or damaged
        read += 1
        if not has_failed(found, found.exit_status):
            yield manifest.started_unix_s, name, found


def _command(manifest: Manifest) -> str | None:
    return series_command(" ".join(manifest.command), SPEED_PARAMS)


def _newest(logs: Path, ends_s: float) -> list[str]:
    """Returns the names of run folders, the last one to be started first."""
    began: list[tuple[float, str]] = []
    try:
        with os.scandir(logs) as entries:
            for entry in entries:
                if len(began) >= MAX_FOLDERS or time.monotonic() > ends_s:
                    break
                try:
                    began.append(((logs / entry.name / MANIFEST).stat().st_mtime, entry.name))
                except OSError:
                    continue  # no run
    except OSError:
        return []
    return [name for _, name in sorted(began, reverse=True)]
