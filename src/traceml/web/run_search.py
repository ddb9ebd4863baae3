"""`/api/search`: runs that a filter lets through, as `traceml runs --format json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from starlette.concurrency import run_in_threadpool

from traceml.api.listed_runs import (
    choose_columns,
    group_listed,
    groups_document,
    runs_document,
    usual_columns,
)
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.model.errors import UsageError, did_you_mean

DEFAULT_LIMIT = 100
_KEYS = ("filter", "sort", "columns", "group_by", "limit")
MAX_AGE_S = 1.0
"""How old an answer may be; where it would be older, the folders are looked through first."""


class SearchedRuns:
    """Answers questions about the runs of a folder, in threads."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._search: RunSearch | None = None

    async def answer(self, asked: Mapping[str, str]) -> bytes:
        """Returns JSON; raises UsageError for a question that cannot be understood.

        `filter`, `sort`, `columns`, `group_by` and `limit` (0: all) are those of the command;
        without `columns`, the usual ones are shown.
        """
        return await run_in_threadpool(self._answer, asked)

    def search(self) -> RunSearch:
        """Returns the index of the runs, made when it is first needed."""
        if self._search is None:
            self._search = RunSearch(self._logs, max_age_s=MAX_AGE_S)
        return self._search

    def _answer(self, asked: Mapping[str, str]) -> bytes:
        _refuse_unknown(asked)
        search = self.search()
        limit = _limit(asked.get("limit"))
        by, columns, sort = (asked.get(name) or None for name in ("group_by", "columns", "sort"))
        if by is None:
            found = search.search(RunQuery(asked.get("filter"), sort, limit))
            keys = choose_columns(found, columns, lambda: usual_columns(found))
            return msgspec.json.encode(runs_document(found, keys))
        found = search.search(RunQuery(asked.get("filter")))
        grouped = group_listed(found, by, columns, sort, limit)
        return msgspec.json.encode(groups_document(found, grouped))


def _refuse_unknown(asked: Mapping[str, str]) -> None:
    """Raises UsageError for a key that is misspelt: without it, other runs would be answered."""
    for key in asked:
        if key not in (*_KEYS, "token"):  # the server's own, in addresses of other machines
            raise UsageError(
                f"a search has no {key[:40]!r}{did_you_mean(key, _KEYS)}; it takes "
                f"{', '.join(_KEYS)}"
            )


def _limit(text: str | None) -> int | None:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(f"limit={text[:40]!r} is no number of runs; ask for limit=100, or 0: all")
    return int(text) or None
