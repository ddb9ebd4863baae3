"""The columns of the run index: what many runs have under one key, filtered and read all at once.

A column holds either numbers or codes into a list of distinct values (texts, truth values, lists of
tags, and numbers beside them). A missing number is a NaN of its own kind, so that a NaN that a
script logged stays one.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from traceml.model.run_values import ORDERINGS, RunValue, Wanted, holds, number_of

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

MISSING_BITS = np.uint64(0x7FF8_0000_5AFE_0001)
"""The NaN that stands for a missing number."""
MAX_EXACT = 1 << 53
"""Whole numbers beyond this size are kept exactly, as codes."""
SPARSE_SHARE = 0.5
"""A column that fewer of the rows have is stored with the numbers of its rows."""


class DamagedIndex(Exception):
    """A file of the index that is not what was written; the index is then built again."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn:
    """Numbers by row."""

    values: npt.NDArray[np.float64]
    are_whole: bool
    """Whether all are integers: they are shown as such."""

    def mask(self, test: str, wanted: Sequence[Wanted]) -> Mask:
        """Returns which rows pass a test."""
        if test == "present":
            return self._present()
        if test in ("contains", "matches"):  # tests of texts
            return np.zeros(len(self.values), bool)
        if test in ("=", "in"):
            found = np.zeros(len(self.values), bool)
            for each in wanted:
                found |= self._equals(each)
            return found
        number = None if isinstance(wanted[0], bool) else number_of(wanted[0])
        if number is None:
            return np.zeros(len(self.values), bool)
        compared: Mask = ORDERINGS[test](self.values, number)  # no NaN is in any order
        return compared

    def _present(self) -> Mask:
        found: Mask = self.values.view(np.uint64) != MISSING_BITS
        return found

    def _equals(self, wanted: Wanted) -> Mask:
        number = None if isinstance(wanted, bool) else number_of(wanted)
        if number is None:
            return np.zeros(len(self.values), bool)
        if math.isnan(number):
            found: Mask = np.isnan(self.values) & self._present()
            return found
        return np.asarray(self.values == number)

    def read(self, rows: Rows) -> list[RunValue | None]:
        """Returns the values of some rows; `None` where they are missing."""
        chosen = self.values[rows]
        present = chosen.view(np.uint64) != MISSING_BITS
        convert: Callable[[float], RunValue] = int if self.are_whole else float
        return [
            convert(value) if has else None
            for value, has in zip(chosen.tolist(), present.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class CodedColumn:
    """Codes by row, and what they stand for; a missing value has the code -1."""

    codes: npt.NDArray[np.int32]
    table: Sequence[RunValue]

    def mask(self, test: str, wanted: Sequence[Wanted]) -> Mask:
        """Returns which rows pass a test."""
        passed = np.array([*(holds(value, test, wanted) for value in self.table), False])
        found: Mask = passed[self.codes]  # a code of -1 is the last
        return found

    def read(self, rows: Rows) -> list[RunValue | None]:
        """Returns the values of some rows; `None` where they are missing."""
        known: list[RunValue | None] = [*self.table, None]
        return [known[code] for code in self.codes[rows].tolist()]


Column = NumberColumn | CodedColumn


def distinct_values(column: Column, rows: Rows) -> tuple[Sequence[RunValue], Rows]:
    """Returns the distinct values of some rows, and the place among them of each row's; -1 where it
    is missing."""
    if isinstance(column, CodedColumn):
        return column.table, column.codes[rows].astype(np.int64)
    chosen = column.values[rows]
    present = chosen.view(np.uint64) != MISSING_BITS
    values, inverse = np.unique(chosen[present], return_inverse=True)
    places = np.full(len(rows), -1, np.int64)
    places[present] = inverse
    return values.tolist(), places


class ColumnBuilder:
    """Collects the values of one key, row by row; numbers take twelve bytes each."""

    def __init__(self) -> None:
        self._rows = array("i")
        self._numbers = array("d")
        self._others: list[RunValue] | None = None
        self._are_whole = True

    def add(self, row: int, value: RunValue) -> None:
        """Adds a row's value; rows come in rising order."""
        is_number = type(value) is float or (type(value) is int and abs(value) <= MAX_EXACT)
        if self._others is None and not is_number:
            convert: Callable[[float], RunValue] = int if self._are_whole else float
            self._others = [convert(number) for number in self._numbers]
            self._numbers = array("d")
        self._rows.append(row)
        if self._others is not None:
            self._others.append(value)
            return
        assert isinstance(value, int | float)
        self._numbers.append(value)
        self._are_whole = self._are_whole and type(value) is int

    def column(self, rows: int) -> Column:
        """Returns the column of so many rows."""
        filled = np.frombuffer(self._rows, np.int32) if self._rows else np.zeros(0, np.int32)
        if self._others is None:
            numbers = np.frombuffer(self._numbers) if self._numbers else np.zeros(0)
            return NumberColumn(_spread_numbers(numbers, filled, rows), self._are_whole)
        return _coded(self._others, filled, rows)


def _spread_numbers(
    numbers: npt.NDArray[np.float64], filled: npt.NDArray[np.int32], rows: int
) -> npt.NDArray[np.float64]:
    values = np.full(rows, MISSING_BITS).view(np.float64)
    values[filled] = numbers
    return values


def _coded(values: Iterable[RunValue], filled: npt.NDArray[np.int32], rows: int) -> CodedColumn:
    numbers: dict[tuple[type, RunValue], int] = {}
    table: list[RunValue] = []
    found = []
    for value in values:
        key = (type(value), "nan" if value != value else value)  # True equals 1, and no NaN itself
        if key not in numbers:
            numbers[key] = len(table)
            table.append(value)
        found.append(numbers[key])
    codes = np.full(rows, -1, np.int32)
    codes[filled] = found
    return CodedColumn(codes, table)


def join_columns(parts: Sequence[tuple[Column | None, Mask]]) -> Column:
    """Returns one column of the chosen rows of several, one after the other.

    A part without the column has the rows that its mask chooses, and no values.
    """
    if all(column is None or isinstance(column, NumberColumn) for column, _ in parts):
        numbers = [
            np.full(int(mask.sum()), MISSING_BITS).view(np.float64)
            if column is None
            else column.values[mask]  # type: ignore[union-attr]
            for column, mask in parts
        ]
        known = [column for column, _ in parts if isinstance(column, NumberColumn)]
        return NumberColumn(np.concatenate(numbers), all(each.are_whole for each in known))
    builder = ColumnBuilder()
    first = 0
    for column, mask in parts:
        rows = np.flatnonzero(mask)
        for place, value in enumerate([] if column is None else column.read(rows), start=first):
            if value is not None:
                builder.add(place, value)
        first += len(rows)
    return builder.column(first)


class StoredColumn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a column lies in its file, and how it is written there."""

    key: str
    kind: str
    """`n`: numbers, `w`: whole numbers, `c`: codes."""
    offset: int
    size: int
    checksum: int
    filled: int
    """The number of rows that have it, where only those are written; -1: all are."""
    table_size: int = 0


def encode_column(key: str, column: Column, offset: int) -> tuple[StoredColumn, bytes]:
    """Returns a column as bytes, and what its file's head says of it."""
    if isinstance(column, NumberColumn):
        values: npt.NDArray[Any] = column.values
        present = values.view(np.uint64) != MISSING_BITS
        kind, table = "w" if column.are_whole else "n", b""
    else:
        values, present, kind = column.codes, column.codes >= 0, "c"
        table = msgspec.msgpack.encode(column.table)
    filled = int(present.sum())
    content = values.tobytes()
    if filled < SPARSE_SHARE * len(values):
        content = np.flatnonzero(present).astype(np.int32).tobytes() + values[present].tobytes()
    else:
        filled = -1
    content += table
    content += bytes(-len(content) % 8)
    size, checksum = len(content), zlib.crc32(content)
    return StoredColumn(key, kind, offset, size, checksum, filled, len(table)), content


_TABLE = msgspec.msgpack.Decoder(list[str | bool | int | float | tuple[str, ...]])


def decode_column(stored: StoredColumn, content: bytes, rows: int) -> Column:
    """Returns a column from its bytes; raises DamagedIndex where they are not what was written."""
    if len(content) != stored.size or zlib.crc32(content) != stored.checksum:
        raise DamagedIndex(f"the column {stored.key!r:.80} is damaged")
    is_coded = stored.kind == "c"
    dtype: npt.DTypeLike = np.int32 if is_coded else np.float64
    width = 4 if is_coded else 8
    if stored.filled < 0:
        end = rows * width
        values = np.frombuffer(content, dtype, rows)
    else:
        first = 4 * stored.filled
        end = first + stored.filled * width
        filled = np.frombuffer(content, np.int32, stored.filled)
        found = np.frombuffer(content, dtype, stored.filled, first)
        values = np.full(rows, -1 if is_coded else MISSING_BITS, np.int32 if is_coded else None)
        values = values if is_coded else values.view(np.float64)
        values[filled] = found
    if not is_coded:
        return NumberColumn(values, stored.kind == "w")
    return CodedColumn(values, _TABLE.decode(content[end : end + stored.table_size]))


def sort_ranks(parts: Sequence[tuple[Column | None, Rows]]) -> tuple[npt.NDArray[Any], Rows]:
    """Returns for the chosen rows of all parts what they are sorted by: a number each, and its
    class.

    The classes: 0 numbers, 1 other values, 2 NaN, 3 missing.
    """
    order = _order_of_others(column for column, _ in parts)
    numbers, classes = [], []
    for column, rows in parts:
        values, kinds = np.zeros(len(rows)), np.full(len(rows), 3)
        if isinstance(column, NumberColumn):
            values = column.values[rows]
            kinds = np.where(np.isnan(values), 2, 0)
            kinds[values.view(np.uint64) == MISSING_BITS] = 3
            values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        elif column is not None:
            ranked = [_rank(value, order) for value in column.table]
            known = np.array([*(rank for rank, _ in ranked), 0.0])
            kinds_of = np.array([*(kind for _, kind in ranked), 3])
            values, kinds = known[column.codes[rows]], kinds_of[column.codes[rows]]
        numbers.append(values)
        classes.append(kinds)
    if not numbers:
        return np.zeros(0), np.zeros(0, np.int64)
    return np.concatenate(numbers), np.concatenate(classes)


def _order_of_others(columns: Iterable[Column | None]) -> Mapping[str, int]:
    texts = {
        _sort_text(value)
        for column in columns
        if isinstance(column, CodedColumn)
        for value in column.table
    }
    return {text: place for place, text in enumerate(sorted(texts))}


def _rank(value: RunValue, order: Mapping[str, int]) -> tuple[float, int]:
    if isinstance(value, bool | str | tuple):
        return float(order[_sort_text(value)]), 1
    return (0.0, 2) if math.isnan(value) else (number_of(value) or 0.0, 0)


def _sort_text(value: RunValue) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return f"{text.casefold()}\0{text}"
