"""Many runs as one table: filtered, sorted and read by columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from traceml.model.run_values import RunValue, Wanted
from traceml.store.index_columns import (
    Column,
    Mask,
    NumberColumn,
    Rows,
    distinct_values,
    sort_ranks,
)
from traceml.store.index_segments import MAX_ROWS, IndexSegment, SegmentBuilder
from traceml.store.query_language import AllOf, Condition, Negation, Quantity, QueryNode
from traceml.store.query_names import column_key

STARTED = "facts.started"


class RunTable:
    """The runs of a folder as they were at one moment; rows are numbered over all segments."""

    def __init__(
        self, parts: Sequence[tuple[IndexSegment, Mask]], notes: Sequence[str] = ()
    ) -> None:
        """The mask of a segment says which of its runs are there, and are not in a later one."""
        self._parts = parts
        self.notes = tuple(notes)
        """What could not be read, and why."""
        sizes = [len(segment.names) for segment, _ in parts]
        self._first = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return len(self._newest_first)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of all columns."""
        return frozenset(key for segment, _ in self._parts for key in segment.keys)

    @cached_property
    def _names(self) -> list[str]:
        return [name for segment, _ in self._parts for name in segment.names]

    @cached_property
    def _newest_first(self) -> Rows:
        """The rows that count, by their start; at the same moment by name."""
        if not self._parts:
            return np.zeros(0, np.int64)
        present = np.flatnonzero(np.concatenate([mask for _, mask in self._parts]))
        by_name = np.array(sorted(present.tolist(), key=self._names.__getitem__), np.int64)
        return self.sort(by_name, STARTED, descending=True)

    def select(self, node: QueryNode | None = None) -> Rows:
        """Returns the rows that a resolved filter lets through, the newest first."""
        if node is None:
            return self._newest_first
        masks = [_mask(node, segment) for segment, _ in self._parts]
        if not masks:
            return self._newest_first
        passed = np.concatenate(masks)
        found: Rows = self._newest_first[passed[self._newest_first]]
        return found

    def sort(self, rows: Rows, key: str, descending: bool) -> Rows:
        """Returns the rows sorted by a column; NaN and missing values are last in both
        directions, and equal ones stay in their order."""
        every = [(segment.column(key), np.arange(len(segment.names))) for segment, _ in self._parts]
        numbers, classes = sort_ranks(every)
        chosen = -numbers[rows] if descending else numbers[rows]
        found: Rows = rows[np.lexsort((chosen, classes[rows]))]
        return found

    def names(self, rows: Rows) -> list[str]:
        """Returns the names of runs."""
        return [self._names[row] for row in rows.tolist()]

    @cached_property
    def _rows_by_name(self) -> dict[str, int]:
        return {self._names[row]: row for row in self._newest_first.tolist()}

    def rows_named(self, names: Sequence[str]) -> Rows:
        """Returns the rows of runs by their names, in that order; unknown ones are left out."""
        known = self._rows_by_name
        return np.array([known[name] for name in names if name in known], np.int64)

    def has(self, rows: Rows, key: str) -> bool:
        """Returns whether any of the runs has a value under a key."""
        return any(
            bool(column.mask("present", ())[inner].any())
            for _, column, inner in self._columns(rows, key)
        )

    def read(self, rows: Rows, key: str) -> list[RunValue | None]:
        """Returns what the runs have under a key; `None` where it is missing."""
        found: list[RunValue | None] = [None] * len(rows)
        for places, column, inner in self._columns(rows, key):
            for place, value in zip(places.tolist(), column.read(inner), strict=True):
                found[place] = value
        return found

    def examples(self, key: str) -> Iterator[RunValue]:
        """Yields values of every type that runs have under a key; of numbers one per segment."""
        for segment, mask in self._parts:
            column = segment.column(key)
            if column is None:
                continue
            rows = np.flatnonzero(mask & column.mask("present", ()))
            if isinstance(column, NumberColumn):
                rows = rows[:1]
            values, places = distinct_values(column, rows)
            yield from (values[place] for place in np.unique(places).tolist())

    def codes(self, rows: Rows, key: str) -> Rows:
        """Returns a number for each run's value under a key: the same for equal values.

        1 equals 1.0 but not true, NaN equals NaN, and what is missing has the number 0.
        """
        found = np.zeros(len(rows), np.int64)
        numbers: dict[object, int] = {}
        for places, column, inner in self._columns(rows, key):
            values, own = distinct_values(column, inner)
            codes = [numbers.setdefault(_identity(value), len(numbers) + 1) for value in values]
            found[places] = np.array([*codes, 0], np.int64)[own]
        return found

    def group_numbers(self, rows: Rows, keys: Sequence[str]) -> Rows:
        """Returns the number of the group that each run is in: runs of one group have equal values
        under all keys."""
        found = np.zeros(len(rows), np.int64)
        for key in keys:
            codes = self.codes(rows, key)
            both = found * (codes.max(initial=0) + 1) + codes
            found = np.unique(both, return_inverse=True)[1].astype(np.int64)
        return found

    def keys_of(self, rows: Rows) -> list[str]:
        """Returns the keys of the columns in the segments of these rows, sorted."""
        parts = set(self._part_numbers(rows).tolist())
        return sorted({key for part in parts for key in self._parts[part][0].keys})

    def _columns(self, rows: Rows, key: str) -> Iterator[tuple[Rows, Column, Rows]]:
        """Yields for each segment which of the rows are in it, the column, and their rows there."""
        numbers = self._part_numbers(rows)
        for part in np.unique(numbers).tolist():
            column = self._parts[part][0].column(key)
            if column is not None:
                places = np.flatnonzero(numbers == part)
                yield places, column, rows[places] - self._first[part]

    def _part_numbers(self, rows: Rows) -> Rows:
        found: Rows = np.searchsorted(self._first, rows, side="right") - 1
        return found


def table_of(
    runs: Iterable[tuple[str, Mapping[str, RunValue]]], notes: Sequence[str] = ()
) -> RunTable:
    """Returns a table of runs that are in no logs folder, by their names and values.

    `notes` is read at the end, so that it may grow while the runs are read.
    """
    parts: list[tuple[IndexSegment, Mask]] = []
    builder = SegmentBuilder()
    for name, values in runs:
        builder.add(name, (), values)
        if len(builder) == MAX_ROWS:
            parts.append(_whole(builder))
            builder = SegmentBuilder()
    if len(builder):
        parts.append(_whole(builder))
    return RunTable(parts, notes)


def _whole(builder: SegmentBuilder) -> tuple[IndexSegment, Mask]:
    return builder.segment(), np.ones(len(builder), bool)


def _identity(value: RunValue) -> object:
    """Returns what equal values have in common."""
    if isinstance(value, bool):
        return ("bool", value)
    return "nan" if isinstance(value, float) and math.isnan(value) else (value,)


def _mask(node: QueryNode, segment: IndexSegment) -> Mask:
    """Returns which runs of a segment pass a resolved filter."""
    if isinstance(node, Condition):
        column = segment.column(column_key(node))
        if column is None:
            return np.zeros(len(segment.names), bool)
        return column.mask(node.test, _plain(node.wanted))
    if isinstance(node, Negation):
        return ~_mask(node.part, segment)
    first, *others = node.parts
    found = _mask(first, segment)
    for part in others:
        if isinstance(node, AllOf):
            if not found.any():
                break
            found = found & _mask(part, segment)
        else:
            found = found | _mask(part, segment)
    return found


def _plain(wanted: Sequence[Wanted | Quantity]) -> list[Wanted]:
    """Returns values whose units were converted when the filter was resolved."""
    return [each for each in wanted if not isinstance(each, Quantity)]
