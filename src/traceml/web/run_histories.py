"""`/api/history`: a metric of one command along commits, for the page `/history`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool

from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.api.run_history import history_of
from traceml.api.run_series import DEFAULT_METRIC, HistoryRequest
from traceml.api.series_summaries import SeriesSummaries
from traceml.compare.like_runs import is_ignored
from traceml.figures.history_page import MAX_SERIES, history_page
from traceml.model.errors import UsageError
from traceml.store.plain_words import filter_of
from traceml.store.query_language import split_names
from traceml.store.query_names import MOMENTS

ORDERS = ("commit", "time")
MAX_CHOICES = 2000
"""Metrics that are offered; any other can be typed."""


class RunHistories:
    """Answers for the history of a command over the runs of a folder, in threads."""

    def __init__(self, logs: Path, search: Callable[[], RunSearch]) -> None:
        self._logs = logs
        self._search = search
        self._summaries = SeriesSummaries(logs)

    async def page(self, asked: Mapping[str, str]) -> bytes:
        """Returns the page as JSON; raises UsageError for what cannot be understood.

        `metric`, `command`, `run`, `order` and `ignore` are those of the command, `any_host` is on
        or off, and `q` is a filter or plain words. Other keys are left alone.
        """
        return await run_in_threadpool(self._page, asked)

    def _page(self, asked: Mapping[str, str]) -> bytes:
        request = _request(asked)
        found = self._search().search(RunQuery(request.filter))
        history = history_of(found, self._summaries, request, self._working_folder())
        metrics = [key for key in found.candidate_keys if _is_numeric(found, key)][:MAX_CHOICES]
        params = [key for key in found.varying() if not is_ignored(key)]
        return msgspec.json.encode(history_page(history, metrics, params, found.total))

    def _working_folder(self) -> Path:
        """Returns where the server was started: inside the repository, as a rule."""
        try:
            return Path.cwd()
        except OSError:  # it is gone
            return self._logs


def _request(asked: Mapping[str, str]) -> HistoryRequest:
    order = asked.get("order") or ORDERS[0]
    if order not in ORDERS:
        raise UsageError(
            f"runs have no order {order[:40]!r}: expected {' or '.join(ORDERS)}; "
            "ask for /history?order=time"
        )
    return HistoryRequest(
        filter=filter_of(asked.get("q", "").strip()) or None,
        metric=asked.get("metric") or DEFAULT_METRIC,
        command=asked.get("command") or None,
        run=asked.get("run") or None,
        by_time=order == "time",
        any_host=bool(asked.get("any_host")),
        ignored=tuple(split_names(asked.get("ignore", ""))),
        max_others=MAX_SERIES,
    )


def _is_numeric(found: Runs, key: str) -> bool:
    """Returns whether a column may have a history: a number that is a result of the run."""
    section, _, name = key.partition(".")
    if section == "params" or (section == "facts" and name in MOMENTS):
        return False
    return any(
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in found.examples(key)
    )
