"""The summaries that a history is made of, each read again only after its file has changed."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from traceml.model.errors import TraceMLError
from traceml.store.folder import SUMMARY
from traceml.store.regular_files import stat_regular
from traceml.summaries.read import read_compared
from traceml.summaries.record import SectionSummary, StepSeries, Summary

MAX_KEPT = 2000
"""Summaries that are kept, some kilobytes each."""
_Mark = tuple[int, int, int]
"""Identifies a file's version by inode, size and time."""


class SeriesSummaries:
    """What a history needs of the summaries of a folder's runs; may be used by several threads.

    A server keeps one of these for all its answers: a file is read again only after a change.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._kept: dict[str, tuple[_Mark, Summary | None]] = {}
        self._lock = Lock()

    def of(self, run: str) -> Summary | None:
        """Returns the findings, predictions, step times and sources of parameters of a run; `None`
        where its summary is gone, or damaged."""
        path = self._logs / run / SUMMARY
        found = stat_regular(path)
        if found is None:
            return None
        mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        kept = self._kept.get(run)
        if kept is None or kept[0] != mark:
            kept = mark, _read(path)
            self._keep(run, kept)
        return kept[1]

    def _keep(self, run: str, read: tuple[_Mark, Summary | None]) -> None:
        """Keeps a summary in the place of the one that was kept first, if they are many."""
        with self._lock:
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[run] = read


def _read(path: Path) -> Summary | None:
    try:
        summary = read_compared(path)
    except TraceMLError:
        return None
    steps, section = summary.steps, summary.step_time
    return Summary(
        param_sources=summary.param_sources,
        steps=steps and _without_parts(steps),
        what_if=summary.what_if,
        step_time=section and SectionSummary(issues=section.issues, global_=section.global_),
    )


def _without_parts(steps: StepSeries) -> StepSeries:
    """Returns only those numbers of the steps from which the error of the mean step time is
    computed."""
    return StepSeries(
        count=steps.count,
        mean_ms=steps.mean_ms,
        stdev_ms=steps.stdev_ms,
        effective_count=steps.effective_count,
        block_means_ms=steps.block_means_ms,
    )
