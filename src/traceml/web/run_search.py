"""Answers about the runs of a folder: `/api/search`, the pages of the list, and `/export.csv`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams

from traceml.api.listed_runs import (
    choose_columns,
    group_listed,
    groups_document,
    runs_document,
    usual_columns,
)
from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.api.run_list_page import ListQuery, RunLister
from traceml.model.errors import UsageError, did_you_mean
from traceml.store.plain_words import filter_of
from traceml.store.query_names import written_key
from traceml.store.run_table import RunTable
from traceml.text import run_list

DEFAULT_LIMIT = 100
MAX_PAGE_ROWS = 1000
MAX_CHOICES = 200
MAX_AGE_S = 1.0
"""How old an answer may be; where it would be older, the folders are looked through first."""

_SEARCH_KEYS = ("filter", "q", "sort", "columns", "group_by", "limit", "offset")
_EXPORT_KEYS = (*_SEARCH_KEYS, "run")
_LIST_KEYS = ("q", "sort", "columns", "group", "base", "limit", "offset", "max_age")
_COLUMN_KEYS = ("search", "limit")

T = TypeVar("T")


class SearchedRuns:
    """Answers questions about the runs of a folder, in threads."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._made: tuple[RunSearch, RunLister] | None = None
        self._seen: tuple[RunTable | None, int] = (None, 0)
        """The table of the last look at it, and how many there have been."""

    async def answer(self, asked: QueryParams) -> bytes:
        """Returns JSON; raises UsageError for a question that cannot be understood.

        `filter`, `sort`, `columns`, `group_by` and `limit` (0: all) are those of the command; `q`
        is a filter or plain words, `offset` the number of runs to leave out at the beginning.
        Without `columns`, the usual ones are shown.
        """
        return await self._in_thread(self._answer, asked, _SEARCH_KEYS)

    async def export(self, asked: QueryParams) -> bytes:
        """Returns CSV with the keys of a search; `run`, given once or more, names the runs instead
        of a filter. Without `columns` it has all of them."""
        return await self._in_thread(self._export, asked, _EXPORT_KEYS)

    async def page(self, asked: QueryParams) -> bytes:
        """Returns a part of the list of runs as JSON.

        `base` names the run that stays on top, `group` is a search's `group_by`, and `max_age` the
        seconds that may have passed since the folder was looked through.
        """
        return await self._in_thread(self._page, asked, _LIST_KEYS)

    async def columns(self, asked: QueryParams) -> bytes:
        """Returns the columns whose names contain the words of `search`, as JSON."""
        return await self._in_thread(self._columns, asked, _COLUMN_KEYS)

    async def version(self) -> bytes:
        """Returns a word that is another one once a run of the folder has changed, as JSON."""
        return await run_in_threadpool(self._version)

    async def _in_thread(
        self, work: Callable[[QueryParams], T], asked: QueryParams, keys: Sequence[str]
    ) -> T:
        _refuse_unknown(asked, keys)
        return await run_in_threadpool(work, asked)

    @property
    def _search(self) -> RunSearch:
        return self._tools[0]

    @property
    def _tools(self) -> tuple[RunSearch, RunLister]:
        if self._made is None:
            search = RunSearch(self._logs, max_age_s=MAX_AGE_S)
            self._made = (search, RunLister(self._logs, search))
        return self._made

    def search(self) -> RunSearch:
        """Returns the index of the runs, made when it is first needed."""
        return self._search

    def _version(self) -> bytes:
        table = self._search.search(RunQuery(limit=1)).table
        last, number = self._seen
        if table is not last:
            self._seen = (table, number + 1)
        # Another server, at the same address, has other tables.
        return msgspec.json.encode({"version": f"{id(self):x}-{self._seen[1]}"})

    def _answer(self, asked: Mapping[str, str]) -> bytes:
        limit, offset = _number(asked, "limit", DEFAULT_LIMIT), _number(asked, "offset", 0)
        by, columns, sort = (asked.get(name) or None for name in ("group_by", "columns", "sort"))
        if by is None:
            found = self._search.search(RunQuery(_filter(asked), sort, limit, offset))
            keys = choose_columns(found, columns, lambda: usual_columns(found))
            return msgspec.json.encode(runs_document(found, keys))
        found = self._search.search(RunQuery(_filter(asked)))
        grouped = group_listed(found, by, columns, sort, offset + limit if limit else None)
        return msgspec.json.encode(groups_document(found, grouped.after(offset)))

    def _export(self, asked: QueryParams) -> bytes:
        limit, offset = _number(asked, "limit", 0), _number(asked, "offset", 0)
        by, columns, sort = (asked.get(name) or None for name in ("group_by", "columns", "sort"))
        found = self._search.search(RunQuery(_filter(asked), None if by else sort))
        if names := asked.getlist("run"):
            found = found.named(names)
        if by is None:
            return _csv_of_runs(found.window(offset, limit), columns)
        grouped = group_listed(found, by, columns, sort, offset + limit if limit else None)
        grouped = grouped.after(offset)
        rows = [run_list.group_values(group, grouped.columns) for group in grouped.groups]
        head = list(rows[0]) if rows else []
        return run_list.csv_text(head, [list(row.values()) for row in rows]).encode()

    def _page(self, asked: Mapping[str, str]) -> bytes:
        query = ListQuery(
            words=asked.get("q", ""),
            sort=asked.get("sort") or None,
            columns=asked.get("columns") or None,
            group=asked.get("group") or None,
            offset=_number(asked, "offset", 0),
            limit=min(_number(asked, "limit", DEFAULT_LIMIT) or MAX_PAGE_ROWS, MAX_PAGE_ROWS),
            baseline=asked.get("base") or None,
        )
        max_age_s = _number(asked, "max_age", None)
        return msgspec.json.encode(self._tools[1].page(query, max_age_s))

    def _columns(self, asked: Mapping[str, str]) -> bytes:
        limit = min(_number(asked, "limit", MAX_CHOICES) or MAX_CHOICES, MAX_CHOICES)
        return msgspec.json.encode(self._tools[1].columns(asked.get("search", ""), limit))


def _csv_of_runs(found: Runs, columns: str | None) -> bytes:
    keys = choose_columns(found, columns, lambda: found.keys)
    values = [found.column(key) for key in keys]
    rows = list(zip(*values, strict=True))
    return run_list.csv_text(list(map(written_key, keys)), rows).encode()


def _filter(asked: Mapping[str, str]) -> str | None:
    """Returns the filter of a search: `filter`, and what `q` says besides."""
    given = [text for text in (asked.get("filter", ""), filter_of(asked.get("q", ""))) if text]
    return given[0] if len(given) == 1 else " and ".join(f"({text})" for text in given) or None


def _refuse_unknown(asked: Mapping[str, str], keys: Sequence[str]) -> None:
    """Raises UsageError for a key that is misspelt: without it, other runs would be answered."""
    for key in asked:
        if key not in (*keys, "token"):  # the server's own, in addresses of other machines
            raise UsageError(
                f"a search has no {key[:40]!r}{did_you_mean(key, keys)}; it takes {', '.join(keys)}"
            )


def _number(asked: Mapping[str, str], key: str, usual: T) -> int | T:
    text = asked.get(key)
    if text is None:
        return usual
    if re.fullmatch("[0-9]{1,9}", text) is None:
        expected = "seconds" if key == "max_age" else "runs"
        raise UsageError(
            f"{key}={text[:40]!r} is no number of {expected}; ask for {key}=100"
            f"{', or 0: all' if key == 'limit' else ''}"
        )
    return int(text)
