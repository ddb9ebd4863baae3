"""Writes tables as CSV, JSON lines or Parquet, some thousand rows at a time.

A missing value is an empty cell in CSV, left out in JSON lines, and null in Parquet. JSON has no
NaN and no infinity: there they are the texts `NaN`, `Infinity` and `-Infinity`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from traceml.model.errors import UsageError


class ColumnKind(Enum):
    """What a column holds."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table; its name has the unit."""

    name: str
    kind: ColumnKind


Chunk = dict[str, Any]
"""Some rows by column: masked arrays, or lists in which a missing value is `None`."""


class TableWriter(Protocol):
    """Writes one table."""

    def add(self, chunk: Mapping[str, Any]) -> int:
        """Writes some rows; returns how many."""

    def close(self) -> None:
        """Writes what is left; the file itself stays open."""


class CsvWriter:
    """CSV with a line of names first."""

    def __init__(self, file: BinaryIO, columns: Sequence[TableColumn]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._csv = csv.writer(self._text, lineterminator="\n")
        self._names = [column.name for column in columns]
        self._csv.writerow(self._names)

    def add(self, chunk: Mapping[str, Any]) -> int:
        """Writes some rows; returns how many."""
        columns = [_values(chunk[name]) for name in self._names]
        self._csv.writerows(zip(*columns, strict=True))
        return len(columns[0])

    def close(self) -> None:
        """Writes what is left."""
        self._text.flush()
        self._text.detach()


class JsonLinesWriter:
    """A JSON object per row; a row has no key for what is missing."""

    def __init__(self, file: BinaryIO, columns: Sequence[TableColumn]) -> None:
        self._file = file
        self._names = [column.name for column in columns]

    def add(self, chunk: Mapping[str, Any]) -> int:
        """Writes some rows; returns how many."""
        columns = [_values(chunk[name]) for name in self._names]
        for row in zip(*columns, strict=True):
            found = {
                name: _in_json(value)
                for name, value in zip(self._names, row, strict=True)
                if value is not None
            }
            self._file.write(json.dumps(found, ensure_ascii=False).encode() + b"\n")
        return len(columns[0])

    def close(self) -> None:
        """Does nothing: every row is written at once."""


class ParquetWriter:
    """Parquet, a row group per some thousand rows; pyarrow has to be installed."""

    def __init__(self, file: BinaryIO, columns: Sequence[TableColumn]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UsageError(
                "Parquet files need pyarrow, which is not installed; "
                "pip install 'traceml-insight[parquet]', or choose --format csv"
            ) from None
        self._arrow = pyarrow
        kinds = {
            ColumnKind.TEXT: pyarrow.string(),
            ColumnKind.INT: pyarrow.int64(),
            ColumnKind.FLOAT: pyarrow.float64(),
            ColumnKind.BOOL: pyarrow.bool_(),
        }
        self._schema = pyarrow.schema([(each.name, kinds[each.kind]) for each in columns])
        self._parquet = parquet.ParquetWriter(file, self._schema, compression="zstd")

    def add(self, chunk: Mapping[str, Any]) -> int:
        """Writes some rows; returns how many."""
        arrays = [self._array(chunk[field.name], field.type) for field in self._schema]
        batch = self._arrow.record_batch(arrays, schema=self._schema)
        self._parquet.write_batch(batch)
        return int(batch.num_rows)

    def close(self) -> None:
        """Writes the end of the file, without which it cannot be read."""
        self._parquet.close()

    def _array(self, values: Any, kind: Any) -> Any:
        if isinstance(values, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(values)
            return self._arrow.array(values.data, type=kind, mask=mask, from_pandas=False)
        return self._arrow.array(values, type=kind, from_pandas=False)


TABLE_WRITERS: dict[str, Callable[[BinaryIO, Sequence[TableColumn]], TableWriter]] = {
    "csv": CsvWriter,
    "jsonl": JsonLinesWriter,
    "parquet": ParquetWriter,
}


def write_table(
    file: BinaryIO, form: str, columns: Sequence[TableColumn], chunks: Iterable[Chunk]
) -> int:
    """Writes a table to an open file in one of the forms of `TABLE_WRITERS`; returns the number of
    its rows. Raises UsageError where the form needs a package that is not installed."""
    writer = TABLE_WRITERS[form](file, columns)
    rows = sum(map(writer.add, chunks))
    writer.close()
    return rows


def table_file(folder: Path, name: str, form: str) -> Path:
    """Returns the file of a table in a folder of tables."""
    return folder / f"{name}.{form}"


def _values(column: Any) -> list[Any]:
    """Returns a column as Python values, `None` for what is missing."""
    if isinstance(column, np.ma.MaskedArray):
        found: list[Any] = column.tolist()
        return found
    return list(column)


def _in_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
