"""The JSON documents that commands print, and the JSON Schema of each.

A schema is made from the types that the document is made of, and kept as a file in
`traceml/schemas/`, which `docs/write_schemas.py` writes. A key may be added to a document without a
new version; where one is removed or means something else, the version rises and the old file stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from traceml.compare.history_record import RunHistory
from traceml.compare.importance_record import WhatMattered
from traceml.compare.live_arms import ArmsComparison
from traceml.compare.many_record import ManyComparison
from traceml.compare.record import Comparison
from traceml.compare.sample_record import SampleComparison
from traceml.figures.exported_tables import TABLE_COLUMNS
from traceml.store.table_files import ColumnKind, TableColumn
from traceml.summaries.record import Summary

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

RunCell = str | bool | int | float | list[str] | None
"""What a run has in a column: NaN and infinity are texts, tags are a list."""


class RunListDocument(Struct, frozen=True):
    """What `traceml runs --format=json` prints: a run has no key for what it does not have."""

    runs: list[dict[str, RunCell]]
    total: int
    """Without the limit."""
    notes: list[str]


class AggregateDocument(Struct, frozen=True):
    """One column of a group of runs; the run is the unit."""

    count: int
    mean: float | None
    interval: tuple[float, float] | None
    """The 95 % confidence interval of the mean; `null` for a single run."""
    min: float | None
    max: float | None
    best: float | None
    not_finite: int


class RunGroupDocument(Struct, frozen=True):
    """Runs that have the same values under the keys that they are grouped by."""

    group: dict[str, RunCell]
    count: int
    runs: list[str]
    columns: dict[str, AggregateDocument]


class RunGroupsDocument(Struct, frozen=True):
    """What `traceml runs --group-by KEY --format=json` prints."""

    groups: list[RunGroupDocument]
    total: int
    """The number of runs."""
    notes: list[str]


class TagsDocument(Struct, frozen=True):
    """What `traceml tag RUN --format=json` prints."""

    tags: list[str]
    note: str | None


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A kind of document that a command prints."""

    name: str
    command: str
    version: int
    record: type[Struct] | tuple[TableColumn, ...]
    """The type that it is made of, or the columns of a table of which a document is a row."""

    @property
    def file_name(self) -> str:
        """What the file of its schema is called."""
        return f"{self.name}-{self.version}.json"


DOCUMENTS = {
    document.name: document
    for document in (
        JsonDocument("summary", "traceml view RUN --format=json", 1, Summary),
        JsonDocument("comparison", "traceml compare A B --format=json", 1, Comparison),
        JsonDocument("many-runs", "traceml compare A B C --format=json", 1, ManyComparison),
        JsonDocument("test-set", "traceml compare A.csv B.csv --format=json", 1, SampleComparison),
        JsonDocument("arms", "traceml compare --arms FILE --format=json", 1, ArmsComparison),
        JsonDocument("runs", "traceml runs --format=json", 1, RunListDocument),
        JsonDocument(
            "run-groups", "traceml runs --group-by KEY --format=json", 1, RunGroupsDocument
        ),
        JsonDocument(
            "what-mattered", "traceml runs --what-mattered METRIC --format=json", 1, WhatMattered
        ),
        JsonDocument("history", "traceml history --format=json", 1, RunHistory),
        JsonDocument("tags", "traceml tag RUN --format=json", 1, TagsDocument),
        *(
            JsonDocument(
                f"export-{table.replace('_', '-')}",
                f"traceml export RUN --format jsonl --table {table}",
                1,
                columns,
            )
            for table, columns in TABLE_COLUMNS.items()
        ),
    )
}
"""By the name that `traceml schema` takes."""


def make_schema(document: JsonDocument) -> str:
    """Returns the schema of a document, made from the types that it is made of."""
    if isinstance(document.record, tuple):
        made = _row_schema(document.record)
    else:
        made = msgspec.json.schema(document.record)
    head = {
        "$schema": _DIALECT,
        "$id": f"urn:traceml:{document.name}:{document.version}",
        "title": f"The output of `{document.command}`",
    }
    return json.dumps({**head, **made}, indent=1, ensure_ascii=False) + "\n"


def _row_schema(columns: tuple[TableColumn, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A line; it has no key for what was not measured.",
        "properties": {column.name: _COLUMN_SCHEMAS[column.kind] for column in columns},
    }


_COLUMN_SCHEMAS: dict[ColumnKind, dict[str, Any]] = {
    ColumnKind.TEXT: {"type": "string"},
    ColumnKind.INT: {"type": "integer"},
    ColumnKind.BOOL: {"type": "boolean"},
    ColumnKind.FLOAT: {
        "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
    },
}
