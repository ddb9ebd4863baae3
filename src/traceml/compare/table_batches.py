"""What changed between two tables that are too large to be held: row by row, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from traceml.compare.artifact_details import MAX_LISTED, ColumnChange, TableChange, ValueChange
from traceml.compare.value_changes import listed_value

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]


@dataclass(slots=True)
class _ColumnTotals:
    """What is known of a column of both tables so far."""

    changed: int = 0
    lhs_sums: list[float] = field(default_factory=list)
    """The sum of each piece; of a column with texts or missing numbers, NaN."""
    rhs_sums: list[float] = field(default_factory=list)


def compare_batches(
    names: tuple[tuple[str, ...], tuple[str, ...]],
    a: Iterator[Columns],
    b: Iterator[Columns],
) -> TableChange:
    """Returns the columns, rows and cells that differ; the n-th row of A is compared with the n-th
    of B. `names` are the columns of A and B."""
    lhs_names, rhs_names = names
    common = {name: _ColumnTotals() for name in lhs_names if name in rhs_names}
    cells: list[ValueChange] = []
    rows = 0
    lhs, rhs = _BatchRows(a), _BatchRows(b)
    while size := min(lhs.at_hand(), rhs.at_hand()):
        left, right = lhs.take(size), rhs.take(size)
        for name, column in common.items():
            _add(column, left[name], right[name])
            changed = np.flatnonzero(~_is_same(left[name], right[name]))
            column.changed += len(changed)
            for place in changed[: MAX_LISTED - len(cells)].tolist():
                values = (_scalar(side[name][place]) for side in (left, right))
                cells.append(ValueChange(f"row {rows + place + 1}, {name}", "changed", *values))
        rows += size
    removed, added = lhs.rest(), rhs.rest()
    return TableChange(
        lhs_rows=rows + removed,
        rhs_rows=rows + added,
        paired_by="row",
        added_rows=added,
        removed_rows=removed,
        added_columns=tuple(name for name in rhs_names if name not in lhs_names),
        removed_columns=tuple(name for name in lhs_names if name not in rhs_names),
        changed_cells=sum(column.changed for column in common.values()),
        columns=tuple(
            ColumnChange(
                name, column.changed, _mean(column.lhs_sums, rows), _mean(column.rhs_sums, rows)
            )
            for name, column in common.items()
            if column.changed
        ),
        cells=tuple(cells),
    )


class _BatchRows:
    """The rows of one table, a few at a time."""

    def __init__(self, batches: Iterator[Columns]) -> None:
        self._batches = batches
        self._current: Columns = {}
        self._size = 0
        self._used = 0

    def at_hand(self) -> int:
        """Returns how many rows are at hand; 0 at the end."""
        while self._used >= self._size:
            found = next(self._batches, None)
            if found is None:
                return 0
            self._current, self._used = found, 0
            self._size = max(map(len, found.values()), default=0)
        return self._size - self._used

    def take(self, count: int) -> Columns:
        """Returns so many rows."""
        begin, self._used = self._used, self._used + count
        return {name: values[begin : self._used] for name, values in self._current.items()}

    def rest(self) -> int:
        """Returns how many rows are left."""
        count = 0
        while size := self.at_hand():
            self._used += size
            count += size
        return count


def _is_number(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf"


def _is_same(lhs: npt.NDArray[Any], rhs: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns which cells are the same; one that is no number equals another such."""
    if _is_number(lhs) and _is_number(rhs):
        same: npt.NDArray[np.bool_] = lhs == rhs
        if lhs.dtype.kind == rhs.dtype.kind == "f":
            same |= np.isnan(lhs) & np.isnan(rhs)
        return same
    found = zip(lhs.tolist(), rhs.tolist(), strict=True)
    return np.array([x == y and type(x) is type(y) for x, y in found], bool)


def _add(column: _ColumnTotals, lhs: npt.NDArray[Any], rhs: npt.NDArray[Any]) -> None:
    for sums, values in ((column.lhs_sums, lhs), (column.rhs_sums, rhs)):
        with np.errstate(over="ignore", invalid="ignore"):
            sums.append(float(values.sum(dtype=np.float64)) if _is_number(values) else np.nan)


def _mean(sums: list[float], rows: int) -> float | None:
    """Returns the mean of a column; `None` where a cell is no finite number."""
    if not rows or not all(map(isfinite, sums)):
        return None
    return fsum(sums) / rows


def _scalar(value: Any) -> str | int | float | bool | None:
    return listed_value(value.item() if isinstance(value, np.generic) else value)
