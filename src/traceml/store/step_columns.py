"""Step records by field, as small as they can be without losing anything.

A run of many ranks is in memory as a whole while it is summarised. About half of the fields never
change within a rank: what they are for was not measured, or did not happen. One value is kept of
such a field. The numbers of any other field lie side by side, and so they are read several times
as fast as from records, where each is a record's length away from the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store.records import STEP_DTYPE
from traceml.store.step_records import NARROW, WIDE, Ints, wide_fields


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The step records of one rank, in order.

    They are read like an array of records: `steps["wall_ns"]` is a field of all of them, `steps[7]`
    is one of them, `steps[chosen]` are some of them. `numpy.array` makes such an array.
    """

    varying: tuple[str, ...]
    """The fields of `WIDE` that are not the same in all records."""
    table: Ints
    """A row per field of `varying`, a column per record."""
    constants: Mapping[str, int]
    """The value of each other field of `WIDE`."""
    narrow: Mapping[str, npt.NDArray[Any]]
    """The fields of `NARROW` that are not the same in all records."""
    narrow_constants: Mapping[str, np.generic]
    """The value of each other field of `NARROW`."""

    places: Mapping[str, int]
    """The row of each field of `varying` in the table."""

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            if isinstance(key, int | np.integer):
                return np.array(self[[key]])[0]
            chosen = {name: column[key] for name, column in self.narrow.items()}
            return replace(self, table=self.table[:, key], narrow=chosen)
        place = self.places.get(key)
        if place is not None:
            return self.table[place]
        if key in self.narrow:
            return self.narrow[key]
        if key in self.constants:
            return np.full(len(self), self.constants[key])
        if key not in self.narrow_constants:
            raise ValueError(f"no field of name {key}")  # as numpy says it
        return _same(self.narrow_constants[key], len(self))

    def broadcastable(self, name: str) -> Any:
        """Returns a field, or the one value that it has in all records: in sums and comparisons
        with other fields both mean the same, and a number costs nothing."""
        constant = self.constants.get(name)
        return self[name] if constant is None else constant

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Returns a copy of the records, as `STEP_DTYPE` unless told otherwise."""
        records = np.empty(len(self), STEP_DTYPE)
        for name in STEP_DTYPE.names or ():
            records[name] = self[name]
        return records if dtype is None else records.astype(dtype)


def _same(value: np.generic, length: int) -> npt.NDArray[Any]:
    column = np.full(length, value)
    column.setflags(write=False)
    return column


@cache
def _places(varying: tuple[str, ...]) -> dict[str, int]:
    """Returns the row of each of these fields in the table; mostly all ranks of a run have the
    same."""
    return {name: place for place, name in enumerate(varying)}


Steps = npt.NDArray[Any] | StepColumns
"""Step records in order: an array of `STEP_DTYPE`, or by field."""


def columns_of(steps: Steps) -> StepColumns:
    """Returns step records by field; those that already are so are returned as they are."""
    if isinstance(steps, StepColumns):
        return steps
    steps = np.ascontiguousarray(steps)
    table = np.ascontiguousarray(wide_fields(steps).T)
    same = {name: steps[name][0] for name, _ in NARROW if _is_same(steps[name])}
    narrow = {name: steps[name].copy() for name, _ in NARROW if name not in same}
    is_varying = (table != table[:, :1]).any(axis=1).tolist()
    kept = [place for place, varies in enumerate(is_varying) if varies]
    values = table[:, 0].tolist() if len(steps) else [record_layout.NOT_MEASURED] * len(WIDE)
    varying = tuple(WIDE[place] for place in kept)
    table = table[kept]
    for part in (table, *narrow.values()):
        part.setflags(write=False)
    return StepColumns(
        varying=varying,
        table=table,
        constants={
            name: value
            for name, value, varies in zip(WIDE, values, is_varying, strict=True)
            if not varies
        },
        narrow=narrow,
        narrow_constants=same,
        places=_places(varying),
    )


def _is_same(column: npt.NDArray[Any]) -> bool:
    return len(column) > 0 and bool((column == column[0]).all())
