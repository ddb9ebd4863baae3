"""`/api/explore…`: charts over many runs, for the page `/explore`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool

from traceml.api.explore_runs import (
    RememberedImportance,
    explore,
    explore_curves,
    explore_what_mattered,
)
from traceml.api.query_runs import RunSearch
from traceml.figures.exploration import AskedCharts

Asked = Mapping[str, str]


class ExploredRuns:
    """Answers for the charts over the runs of a folder, in threads.

    Keys that are not known are left alone: the page's address has more of them than one answer
    needs.
    """

    def __init__(self, logs: Path, search: Callable[[], RunSearch]) -> None:
        self._logs = logs
        self._search = search
        self._remembered = RememberedImportance()

    async def page(self, asked: Asked) -> bytes:
        """Returns the columns and the bars; raises UsageError for what cannot be understood."""
        return await run_in_threadpool(self._page, asked)

    async def what_mattered(self, asked: Asked) -> bytes:
        """Returns which parameters a metric depends on; `null` where there is no metric."""
        return await run_in_threadpool(self._what_mattered, asked)

    async def curves(self, asked: Asked) -> bytes:
        """Returns the history of a metric, by group."""
        return await run_in_threadpool(self._curves, asked)

    def _page(self, asked: Asked) -> bytes:
        charts = AskedCharts(**{name: asked.get(name) for name in AskedCharts.__slots__})
        return msgspec.json.encode(explore(self._search(), asked.get("q", ""), charts))

    def _what_mattered(self, asked: Asked) -> bytes:
        found = explore_what_mattered(
            self._search(),
            self._remembered,
            asked.get("q", ""),
            asked.get("metric"),
            asked.get("down"),
            asked.get("across"),
        )
        return msgspec.json.encode(found)

    def _curves(self, asked: Asked) -> bytes:
        found = explore_curves(
            self._search(),
            self._logs,
            asked.get("q", ""),
            asked.get("metric"),
            asked.get("group"),
            asked.get("band"),
        )
        return msgspec.json.encode(found)
