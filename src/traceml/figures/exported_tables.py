"""What a run is exported as: tables of its steps, its samples, its findings and logged metrics.

A table is a list of columns and an iterator over its rows, some thousand at a time, so that a long
run is never in memory as rows. Units are part of a column's name; a missing value is `None`, and
never zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from traceml.facts.attempts import find_attempts
from traceml.facts.stability import stability
from traceml.model import record_layout
from traceml.model.phase import COMPUTE, PHASE_METRICS, Phase
from traceml.model.sample import GpuInterval, GpuSample, HostSample, ProcessSample, Sample
from traceml.store.metric_curves import LoggedValue
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_columns import Steps
from traceml.store.step_records import is_incomplete, record_numbers
from traceml.store.table_files import Chunk, ColumnKind, TableColumn
from traceml.summaries.record import Issue, Summary, sections_of

CHUNK_ROWS = 16_384
TEXT, INT, FLOAT, BOOL = ColumnKind.TEXT, ColumnKind.INT, ColumnKind.FLOAT, ColumnKind.BOOL

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """One table of an exported run."""

    name: str
    columns: tuple[TableColumn, ...]
    chunks: Callable[[], Iterator[Chunk]]
    """Returns its rows in order, some thousand at a time."""


@dataclass(frozen=True, slots=True)
class RankLife:
    """One process of a rank, with its place in the run."""

    records: RankRecords
    attempt: int
    """The start of the ranks that it belongs to, from 1."""
    former_steps: int
    """The number, from 0, of the first step of that attempt among those of the run."""


def exported_tables(
    records: RunRecords, summary: Summary | None, logged: Callable[[], Iterable[LoggedValue]]
) -> tuple[ExportedTable, ...]:
    """Returns all tables of a run; those of which it has nothing are there, without rows."""
    lives = rank_lives(records)
    return (
        ExportedTable("steps", TABLE_COLUMNS["steps"], lambda: _step_chunks(lives)),
        ExportedTable("step_blocks", TABLE_COLUMNS["step_blocks"], lambda: _block_chunks(lives)),
        _from_rows("host_samples", lambda: _host_rows(records)),
        _from_rows("process_samples", lambda: _process_rows(records)),
        _from_rows("gpu_samples", lambda: _gpu_rows(records)),
        _from_rows("gpu_intervals", lambda: _interval_rows(records)),
        _from_rows("findings", lambda: finding_rows(summary)),
        _from_rows("metrics", lambda: map(_as_row, logged())),
    )


def rank_lives(records: RunRecords) -> tuple[RankLife, ...]:
    """Returns the processes that took steps, by rank and in order of time."""
    places = {
        id(process): (attempt.number, attempt.first_number)
        for attempt in find_attempts(records, stability(records))
        for process in attempt.processes
    }
    found = (
        RankLife(process, *places.get(id(process), (1, 0)))
        for process in records.processes or records.ranks
    )
    return tuple(sorted(found, key=lambda life: life.records.rank.rank))


# Steps


def _renamed(field: str) -> str:
    """Returns the column of a field of the records: a phase by its name in the summary."""
    prefix = "gpu_" if field.startswith("gpu_") and not field.startswith("gpu_idle") else ""
    plain = field.removeprefix(prefix)
    for phase, metric in PHASE_METRICS.items():
        if plain == f"{phase.value}_ns":
            return f"{prefix}{metric}"
    return f"{field.removesuffix('_ns')}_ms" if field.endswith("_ns") else field


_NOT_MEASURED_FIELDS = ("start_ns", "loss", "flags", "loss_lag", "sequence", "optimizer_steps")
_MEASURED = tuple(name for name, _ in record_layout.STEP if name not in _NOT_MEASURED_FIELDS)
"""The fields of a step that hold a number, or -1 for "not measured"."""
_WHO = (
    TableColumn("attempt", INT),
    TableColumn("rank", INT),
    TableColumn("node", TEXT),
)
_STEP_COLUMNS = (
    *_WHO,
    TableColumn("step", INT),
    TableColumn("is_complete", BOOL),
    TableColumn("start_unix_s", FLOAT),
    TableColumn("step_time_ms", FLOAT),
    TableColumn("residual_ms", FLOAT),
    TableColumn("gpu_step_time_ms", FLOAT),
    TableColumn("gpu_residual_ms", FLOAT),
    *(TableColumn(_renamed(name), FLOAT if name.endswith("_ns") else INT) for name in _MEASURED),
    TableColumn("loss", FLOAT),
    TableColumn("optimizer_steps", INT),
)


def _step_chunks(lives: Sequence[RankLife]) -> Iterator[Chunk]:
    for life in lives:
        process = life.records
        numbers = record_numbers(process) + (1 + life.former_steps)
        losses = step_losses(process.steps)
        for first in range(0, len(process.steps), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            chunk = _step_chunk(life, process.steps[part], numbers[part])
            yield {**chunk, "loss": losses[part]}


def step_losses(steps: Steps) -> Any:
    """Returns the loss of each step's first backward pass, or its first that was not finite; a
    masked array. A loss that came late from the device stands at the step that it is of."""
    seen = np.flatnonzero(np.asarray(steps["flags"]) & int(record_layout.StepFlag.LOSS_SEEN))
    lags = np.maximum(np.asarray(steps["loss_lag"][seen], np.int64), 0)
    sequence = np.asarray(steps["sequence"], np.int64)
    own = np.maximum(seen - lags, 0)
    is_here = (seen >= lags) & (sequence[own] == sequence[seen] - lags)  # no record lost between
    losses = np.ma.masked_array(np.zeros(len(steps)), np.ones(len(steps), bool))
    losses[own[is_here]] = np.asarray(steps["loss"])[seen[is_here]]
    return losses


def _step_chunk(life: RankLife, steps: Steps, numbers: Ints) -> Chunk:
    incomplete = is_incomplete(steps)
    chunk: Chunk = {
        **_who(life, len(numbers)),
        "step": np.ma.masked_array(numbers, incomplete),
        "is_complete": np.ma.masked_array(~incomplete),
        "start_unix_s": np.ma.masked_array(start_unix_ns(life, steps) * 1e-9),
        **_whole_step(steps, ""),
        **_whole_step(steps, "gpu_"),
    }
    for name in _MEASURED:
        values = np.ma.masked_less(np.asarray(steps[name], np.int64), 0)
        chunk[_renamed(name)] = values * 1e-6 if name.endswith("_ns") else values
    chunk["optimizer_steps"] = np.ma.masked_array(np.asarray(steps["optimizer_steps"], np.int64))
    return chunk


def start_unix_ns(life: RankLife, steps: Steps) -> Ints:
    """Returns when each step began, on the head's clock."""
    rank = life.records.rank
    return np.asarray(steps["start_ns"], np.int64) + (rank.unix_ns - rank.monotonic_ns)


def _whole_step(steps: Steps, prefix: str) -> Chunk:
    """Returns a step's time, input wait plus body, and what copies and compute leave of its body;
    both are missing where the body was not measured."""
    body = _known_ns(steps, f"{prefix}body_ns")
    waited = np.maximum(steps[f"{prefix}{Phase.INPUT.value}_ns"], 0)
    spent = sum(
        np.maximum(steps[f"{prefix}{name}_ns"], 0)
        for name in (Phase.H2D.value, *(phase.value for phase in COMPUTE), "graph")
    )
    return {
        f"{prefix}step_time_ms": (body + waited) * 1e-6,
        f"{prefix}residual_ms": np.ma.maximum(body - spent, 0) * 1e-6,
    }


def _known_ns(steps: Steps, name: str) -> Any:
    return np.ma.masked_less(np.asarray(steps[name], np.int64), 0)


def _who(life: RankLife, rows: int) -> Chunk:
    return {
        "attempt": np.ma.masked_array(np.full(rows, life.attempt)),
        "rank": np.ma.masked_array(np.full(rows, life.records.rank.rank)),
        "node": [life.records.rank.hostname] * rows,
    }


# Old steps of very long runs, which are kept as blocks

_STATISTICS = ("count", "mean", "min", "max")
_BLOCK_COLUMNS = (
    *_WHO,
    TableColumn("first_step", INT),
    TableColumn("complete_steps", INT),
    TableColumn("start_unix_s", FLOAT),
    TableColumn("incomplete_wall_ms", FLOAT),
    *(
        TableColumn(f"{_renamed(name)}_{statistic}", INT if statistic == "count" else FLOAT)
        for name in record_layout.FOLDED
        for statistic in _STATISTICS
    ),
)


def _block_chunks(lives: Sequence[RankLife]) -> Iterator[Chunk]:
    for life in lives:
        if len(life.records.blocks):
            yield _block_chunk(life, life.records.blocks)


def _block_chunk(life: RankLife, blocks: npt.NDArray[Any]) -> Chunk:
    complete = np.asarray(blocks["complete_steps"], np.int64)
    rank = life.records.rank
    starts_ns = blocks["start_ns"] + (rank.unix_ns - rank.monotonic_ns)
    chunk: Chunk = {
        **_who(life, len(blocks)),
        "first_step": np.ma.masked_array(np.cumsum(complete) - complete + life.former_steps + 1),
        "complete_steps": np.ma.masked_array(complete),
        "start_unix_s": np.ma.masked_array(starts_ns * 1e-9),
        "incomplete_wall_ms": np.ma.masked_array(blocks["incomplete_wall_ns"] * 1e-6),
    }
    for name in record_layout.FOLDED:
        count = np.asarray(blocks[f"{name}_count"], np.int64)
        missing, scale = count == 0, 1e-6 if name.endswith("_ns") else 1.0
        chunk[f"{_renamed(name)}_count"] = np.ma.masked_array(count)
        means = blocks[f"{name}_sum"] / np.maximum(count, 1) * scale
        chunk[f"{_renamed(name)}_mean"] = np.ma.masked_array(means, missing)
        for statistic in ("min", "max"):
            values = blocks[f"{name}_{statistic}"] * scale
            chunk[f"{_renamed(name)}_{statistic}"] = np.ma.masked_array(values, missing)
    return chunk


# Tables of few rows, made row by row


def _from_rows(name: str, rows: Callable[[], Iterable[Mapping[str, Any]]]) -> ExportedTable:
    columns = TABLE_COLUMNS[name]
    return ExportedTable(name, columns, lambda: _in_chunks(columns, rows()))


def _in_chunks(
    columns: Sequence[TableColumn], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Chunk]:
    left = iter(rows)
    while part := list(islice(left, CHUNK_ROWS)):
        yield {column.name: [row.get(column.name) for row in part] for column in columns}


def _typed(record: type, left_out: Sequence[str] = ()) -> tuple[TableColumn, ...]:
    """Returns a column per field of a sensor's record."""
    hints = get_type_hints(record)
    names = getattr(record, "_fields", None) or [each.name for each in fields(record)]
    return tuple(TableColumn(name, _kind(hints[name])) for name in names if name not in left_out)


def _kind(hint: Any) -> ColumnKind:
    text = str(hint)
    return TEXT if "str" in text else INT if "int" in text else FLOAT


_MOMENT = (TableColumn("node", TEXT), TableColumn("unix_s", FLOAT))
_HOST_COLUMNS = (*_MOMENT, *_typed(HostSample))
_PROCESS_COLUMNS = (*_MOMENT, *_typed(ProcessSample))
_GPU_COLUMNS = (*_MOMENT, *_typed(GpuSample, ("intervals",)))
_INTERVAL_COLUMNS = (
    TableColumn("node", TEXT),
    TableColumn("index", INT),
    TableColumn("uuid", TEXT),
    *_typed(GpuInterval),
)


def samples_by_node(records: RunRecords) -> Iterator[tuple[str, Sample]]:
    """Yields every sample with the name of its machine, those of each machine in order."""
    if not records.nodes:
        of_ranks = next((rank.rank.hostname for rank in records.ranks), "")
        name = records.manifest.hostname or of_ranks  # old manifests have none
        for sample in records.samples:
            yield name, sample
    for node in records.nodes:
        for sample in node.samples:
            yield node.state.hostname or node.state.name, sample


def _as_row(record: Any) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def _host_rows(records: RunRecords) -> Iterator[dict[str, Any]]:
    for node, sample in samples_by_node(records):
        yield {"node": node, "unix_s": sample.unix_s, **_as_row(sample.host)}


def _process_rows(records: RunRecords) -> Iterator[dict[str, Any]]:
    for node, sample in samples_by_node(records):
        for process in sample.processes:
            yield {"node": node, "unix_s": sample.unix_s, **_as_row(process)}


def _gpu_rows(records: RunRecords) -> Iterator[dict[str, Any]]:
    for node, sample in samples_by_node(records):
        for gpu in sample.gpus:
            row = {"node": node, "unix_s": sample.unix_s, **_as_row(gpu)}
            reasons = gpu.throttle_reasons
            yield {**row, "throttle_reasons": None if reasons is None else _listed(reasons)}


def _interval_rows(records: RunRecords) -> Iterator[dict[str, Any]]:
    for node, sample in samples_by_node(records):
        for gpu in sample.gpus:
            for each in gpu.intervals:
                yield {"node": node, "index": gpu.index, "uuid": gpu.uuid, **each._asdict()}


_FINDING_COLUMNS = (
    TableColumn("section", TEXT),
    TableColumn("place", INT),
    TableColumn("is_primary", BOOL),
    *(TableColumn(name, TEXT) for name in ("kind", "status", "severity", "summary", "action")),
    TableColumn("metric", TEXT),
    TableColumn("phase", TEXT),
    TableColumn("score", FLOAT),
    TableColumn("share", FLOAT),
    TableColumn("skew", FLOAT),
    TableColumn("ranks", TEXT),
    TableColumn("nodes", TEXT),
    TableColumn("since_step", INT),
    TableColumn("until_step", INT),
    TableColumn("evidence", TEXT),
)


def finding_rows(summary: Summary | None) -> Iterator[dict[str, Any]]:
    """Yields the findings of all sections, in the order of the summary."""
    if summary is None:
        return
    primary = summary.primary_diagnosis
    for name, section in sections_of(summary):
        for place, issue in enumerate(section.issues, 1):
            is_primary = place == 1 and primary.section == name and primary.kind == issue.kind
            yield {"section": name, "place": place, "is_primary": is_primary, **_finding(issue)}


def _finding(issue: Issue) -> dict[str, Any]:
    plain = ("kind", "status", "severity", "summary", "action", "metric", "phase", "score")
    return {
        **{name: getattr(issue, name) for name in (*plain, "since_step", "until_step")},
        "share": issue.share_pct,
        "skew": issue.skew_pct,
        "ranks": _listed(issue.ranks),
        "nodes": _listed(issue.nodes),
        "evidence": json.dumps(issue.evidence, ensure_ascii=False) if issue.evidence else None,
    }


def _listed(values: Iterable[object]) -> str | None:
    """Returns several values as one text; `None` where there are none."""
    return ";".join(map(str, values)) or None


_METRIC_COLUMNS = (
    TableColumn("name", TEXT),
    TableColumn("rank", INT),
    TableColumn("node", TEXT),
    TableColumn("step", INT),
    TableColumn("unix_s", FLOAT),
    TableColumn("value", FLOAT),
)


TABLE_COLUMNS = {
    "steps": _STEP_COLUMNS,
    "step_blocks": _BLOCK_COLUMNS,
    "host_samples": _HOST_COLUMNS,
    "process_samples": _PROCESS_COLUMNS,
    "gpu_samples": _GPU_COLUMNS,
    "gpu_intervals": _INTERVAL_COLUMNS,
    "findings": _FINDING_COLUMNS,
    "metrics": _METRIC_COLUMNS,
}
TABLE_NAMES = tuple(TABLE_COLUMNS)
"""In the order of `exported_tables`."""
