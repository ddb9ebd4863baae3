"""The steps that were recorded with torch's profiler, and how they stand among all steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from traceml.facts.step_table import StepTable
from traceml.store.step_trace_records import StepTraceRecords

WORST = "worst"


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A recorded step whose trace was kept."""

    rank: int
    step: int
    """Counted from 1."""
    took_s: float
    """On the host's clock, while it was recorded: longer than the same step otherwise."""
    is_worst: bool
    """Whether it is one of the slowest that were recorded, and not a typical one."""
    file: str
    """Its name in the run folder."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StepTraceFacts:
    """Which steps were recorded, and which of them were kept."""

    asked: int
    """Of how many steps each rank was to keep a trace."""
    recorded: int
    """How many steps were recorded, over all ranks."""
    traces: tuple[StepTrace, ...] = ()
    """By rank and step."""
    recorded_median_s: float | None = None
    """The median time of the recorded steps."""
    median_s: float | None = None
    """That of all other steps after warm-up; `None` where there are none."""
    slowest_step: int | None = None
    slowest_s: float | None = None
    """The slowest of the others, on the same clock."""
    cost_s: float = 0.0
    """What recording and writing took from the training time of the rank where it took the most."""
    notes: tuple[str, ...] = ()
    """Why steps were not recorded."""


def step_trace_facts(
    records: Sequence[StepTraceRecords], table: StepTable | None
) -> StepTraceFacts | None:
    """Returns what was recorded; `None` where no process was asked to."""
    if not records:
        return None
    recorded = [took_ns for each in records for _, took_ns in each.recorded]
    traces = [
        StepTrace(
            rank=each.rank,
            step=kept.step,
            took_s=kept.took_ns / 1e9,
            is_worst=kept.is_ == WORST,
            file=kept.file,
            size_bytes=kept.size_bytes,
        )
        for each in records
        for kept in each.kept
        if kept.size_bytes is not None
    ]
    median_s, slowest_step, slowest_s = _other_steps(table)
    return StepTraceFacts(
        asked=max(each.asked for each in records),
        recorded=len(recorded),
        traces=tuple(sorted(traces, key=lambda each: (each.rank, each.step))),
        recorded_median_s=median(recorded) / 1e9 if recorded else None,
        median_s=median_s,
        slowest_step=slowest_step,
        slowest_s=slowest_s,
        cost_s=max(each.cost_ns for each in records) / 1e9,
        notes=tuple(dict.fromkeys(note for each in records for note in each.notes)),
    )


def _other_steps(table: StepTable | None) -> tuple[float | None, int | None, float | None]:
    """Returns the median time of the steps of the table, which has no recorded ones, and the
    slowest of them with its time."""
    if table is None:
        return None, None, None
    step_s = table.over_ranks()
    seen = np.isfinite(step_s)
    if not seen.any():
        return None, None, None
    slowest = int(np.nanargmax(step_s))
    return float(np.median(step_s[seen])), int(table.numbers[slowest]), float(step_s[slowest])
