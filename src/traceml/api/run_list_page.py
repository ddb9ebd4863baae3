"""The list of runs as a page: a window of the runs that match, or of their groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traceml.api.listed_runs import choose_columns, group_listed
from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.figures.page import ColumnChoice, ColumnChoices, Grouping, ListRow, RunsPage
from traceml.figures.run_list_page import (
    ROW_FACTS,
    describe_column,
    group_columns,
    group_rows,
    groupings,
    list_columns,
    list_rows,
)
from traceml.model.printable import printable
from traceml.store.plain_words import filter_of
from traceml.store.query_names import written_key
from traceml.store.run_table import RunTable

MAX_COLUMNS = 100
"""So many columns a page shows; a file can have all."""
MAX_MAIN_METRICS = 3
MAX_VARYING_PARAMS = 4
MAX_GROUPINGS = 12
_FIRST_FACTS = ("name", "status", "verdict", "started", "user", "tags", "step_time_ms", "steps")
_LAST_FACTS = ("duration_s", "world_size", "host")
_NAME = "facts.name"
_GROUPING_FACTS = ("facts.status", "facts.verdict", "facts.user", "facts.host", "facts.commit")


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a page of the list asks for."""

    words: str = ""
    """A filter of the query language, or plain words."""
    sort: str | None = None
    columns: str | None = None
    """With commas; `None`: the usual ones."""
    group: str | None = None
    offset: int = 0
    limit: int = 100
    baseline: str | None = None
    """The name of the run that stays on top."""


@dataclass(frozen=True, slots=True)
class _UsualChoices:
    """What is offered for the runs of a table."""

    table: RunTable
    columns: list[str]
    groupings: tuple[Grouping, ...]


class RunLister:
    """Makes pages of the list of a folder; what only depends on its runs is computed once."""

    def __init__(self, logs: Path, search: RunSearch) -> None:
        self._folder = printable(str(logs))
        self._search = search
        self._usual: _UsualChoices | None = None
        self._choices: tuple[RunTable, list[ColumnChoice]] | None = None

    def page(self, asked: ListQuery, max_age_s: float | None = None) -> RunsPage:
        """Returns the part of the list that was asked for; raises QueryError."""
        found = self.find(asked, max_age_s)
        if asked.group:
            return self._grouped(found, asked)
        keys = self._columns(found, asked.columns)
        shown = keys[:MAX_COLUMNS]
        window = found.window(asked.offset, asked.limit)
        baseline = () if asked.baseline is None else _rows(found.named([asked.baseline]), shown)
        return RunsPage(
            folder=self._folder,
            columns=list_columns(shown, map(found.examples, shown)),
            total=found.total,
            run_count=found.run_count,
            offset=asked.offset,
            rows=_rows(window, shown),
            baseline=next(iter(baseline), None),
            groupings=self._usual_choices(found).groupings,
            notes=_notes(window, len(keys)),
        )

    def find(self, asked: ListQuery, max_age_s: float | None = None) -> Runs:
        """Returns all runs that match, in order; of groups the order comes later."""
        sort = None if asked.group else asked.sort
        return self._search.search(RunQuery(filter_of(asked.words), sort), max_age_s)

    def _grouped(self, found: Runs, asked: ListQuery) -> RunsPage:
        end = asked.offset + asked.limit
        grouped = group_listed(found, asked.group or "", asked.columns, asked.sort, end)
        groups, columns = grouped.after(asked.offset).groups, grouped.columns[:MAX_COLUMNS]
        return RunsPage(
            folder=self._folder,
            columns=group_columns(grouped.by, columns, groups),
            total=grouped.total,
            run_count=found.run_count,
            offset=asked.offset,
            groups=group_rows(groups, grouped.by, columns, found.names, filter_of(asked.words)),
            groupings=self._usual_choices(found).groupings,
            notes=_notes(found.window(0, 1), len(columns)),
        )

    def _columns(self, found: Runs, asked: str | None) -> list[str]:
        """Returns the columns to show; the name is always the first."""
        keys = choose_columns(found, asked, lambda: self._usual_columns(found))
        return list(dict.fromkeys((_NAME, *keys)))

    def _usual_columns(self, found: Runs) -> list[str]:
        """Returns the columns that matter of all runs of the folder, so that they stay the same
        whatever the filter is."""
        return self._usual_choices(found).columns

    def _usual_choices(self, found: Runs) -> _UsualChoices:
        if self._usual is None or self._usual.table is not found.table:
            every = self._search.search(RunQuery(), max_age_s=math.inf)
            varying = every.varying(MAX_GROUPINGS)
            facts = [key for key in _GROUPING_FACTS if every.has(key)]
            self._usual = _UsualChoices(
                every.table, _usual_columns(every, varying), groupings(varying, facts)
            )
        return self._usual

    def columns(self, words: str, limit: int) -> ColumnChoices:
        """Returns the columns whose names contain all of these words; those that begin with the
        first are first."""
        found = self._all_choices()
        wanted = words.casefold().split()
        matching = [each for each in found if all(word in each.key.casefold() for word in wanted)]
        if wanted:
            matching.sort(key=lambda each: not _bare(each.key).startswith(wanted[0]))
        return ColumnChoices(tuple(matching[:limit]), len(matching))

    def _all_choices(self) -> list[ColumnChoice]:
        every = self._search.search(RunQuery(), max_age_s=math.inf)
        if self._choices is None or self._choices[0] is not every.table:
            choices = [
                ColumnChoice(written_key(key), printable(written_key(key)), describe_column(key))
                for key in every.candidate_keys
            ]
            self._choices = (every.table, choices)
        return self._choices[1]


def _bare(key: str) -> str:
    return key.casefold().removeprefix("params.").removeprefix("metrics.")


def _usual_columns(every: Runs, varying: Sequence[str]) -> list[str]:
    if not len(every):
        return [_NAME]
    keys = [f"facts.{name}" for name in _FIRST_FACTS]
    keys += [*every.main_metrics(MAX_MAIN_METRICS), *varying[:MAX_VARYING_PARAMS]]
    keys += [f"facts.{name}" for name in _LAST_FACTS]
    return [key for key in keys if every.has(key)]


def _rows(window: Runs, keys: Sequence[str]) -> tuple[ListRow, ...]:
    facts = {key: window.column(key) for key in ROW_FACTS}
    return list_rows(window.names, keys, [window.column(key) for key in keys], facts)


def _notes(window: Runs, columns: int) -> tuple[str, ...]:
    notes = [printable(note) for note in window.notes]
    if columns > MAX_COLUMNS:
        notes.append(
            f"{columns:,} columns were chosen, and the first {MAX_COLUMNS} are shown; the CSV file "
            "has all of them"
        )
    return tuple(notes)
