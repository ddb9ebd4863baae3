"""Reads tables in Parquet and Arrow files, batch by batch; pyarrow has to be installed for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from traceml.model.errors import UnreadableArtifact
from traceml.store.regular_files import open_regular

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
BATCH_ROWS = 1 << 15
MAX_CELL_CHARS = 1000

Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Some rows of a table, by column: numbers, or objects that are texts, truth values or `None`."""


@dataclass(frozen=True, slots=True)
class ArrowTable:
    """An open table."""

    names: tuple[str, ...]
    cells: int
    """How many there are, or where only reading it shows that, the size of the file in bytes."""
    batches: Iterator[Columns]
    """To be read once."""

    def as_text(self) -> list[list[str]]:
        """Returns all rows as texts, the names of the columns first, as a CSV file has them."""
        found = [list(self.names)]
        for batch in self.batches:
            columns = [[_text(value) for value in batch[name].tolist()] for name in self.names]
            found += [list(row) for row in zip(*columns, strict=True)]
        return found


def is_arrow(path: Path) -> bool:
    """Returns whether a file is a Parquet or Arrow table, by the ending of its name."""
    return path.suffix.lower() in (*PARQUET, *ARROW)


@contextmanager
def open_arrow(path: Path) -> Iterator[ArrowTable]:
    """Opens a table; raises UnreadableArtifact, also while it is read."""
    try:
        import pyarrow
    except ImportError:
        raise UnreadableArtifact(
            "Parquet and Arrow tables need pyarrow; pip install pyarrow"
        ) from None
    damage = (pyarrow.ArrowException, OSError, ValueError)
    with ExitStack() as opened:
        try:
            file = opened.enter_context(os.fdopen(open_regular(path), "rb"))
            table = _parquet(file) if path.suffix.lower() in PARQUET else _arrow(file)
        except damage as error:
            raise _damaged(error) from None
        yield replace(table, batches=_checked(table.batches, damage))


def _checked(batches: Iterator[Columns], damage: tuple[type[Exception], ...]) -> Iterator[Columns]:
    try:
        yield from batches
    except damage as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> UnreadableArtifact:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnreadableArtifact(f"it is no table, or damaged ({text[:200]})")


def _parquet(file: Any) -> ArrowTable:
    from pyarrow.parquet import ParquetFile

    opened = ParquetFile(file)
    names = _unique(opened.schema_arrow.names)
    found = (_columns(batch, names) for batch in opened.iter_batches(batch_size=BATCH_ROWS))
    return ArrowTable(names, opened.metadata.num_rows * len(names), found)


def _arrow(file: Any) -> ArrowTable:
    """Returns a table of the file format (which Feather is), or else of the stream format."""
    from pyarrow import ArrowInvalid, ipc

    size = os.fstat(file.fileno()).st_size
    try:
        opened = ipc.open_file(file)
    except ArrowInvalid:
        file.seek(0)
        stream = ipc.open_stream(file)
        names = _unique(stream.schema.names)
        return ArrowTable(names, size, (_columns(batch, names) for batch in stream))
    names = _unique(opened.schema.names)
    batches = (opened.get_batch(place) for place in range(opened.num_record_batches))
    return ArrowTable(names, size, (_columns(batch, names) for batch in batches))


def _unique(names: list[str]) -> tuple[str, ...]:
    """Returns the names of columns, each once."""
    found: list[str] = []
    for place, name in enumerate(names, 1):
        plain = name or f"column {place}"
        found.append(plain if plain not in found else f"{plain} ({place})")
    return tuple(found)


def _columns(batch: Any, names: tuple[str, ...]) -> Columns:
    return {name: _values(column) for name, column in zip(names, batch.columns, strict=True)}


def _values(column: Any) -> npt.NDArray[Any]:
    """Returns a column's values: numbers as numpy has them, a missing one as NaN; all else as
    text."""
    from pyarrow import types

    kind = column.type
    if (types.is_integer(kind) or types.is_floating(kind)) and not (
        column.null_count and types.is_integer(kind)
    ):
        found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return found
    values = np.empty(len(column), dtype=object)
    for place, value in enumerate(column.to_pylist()):
        is_plain = value is None or isinstance(value, (bool, int))
        values[place] = value if is_plain else str(value)[:MAX_CELL_CHARS]
    return values


def _text(value: object) -> str:
    return "" if value is None else str(value)
