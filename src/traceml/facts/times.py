"""Where the time of a step went: means per rank and over ranks, in seconds.

The one definition of a mean: what was measured of a part, divided by all steps. A step without a
part that its rank has measured in others spent nothing on it; a part that the rank never measured
is not known, and its time lies in the residual. On the GPU's clock "all steps" are those that were
timed on the GPU, weighted so that long ones are as frequent as among all. So input wait, copies,
compute (forward, backward, optimizer), communication and the residual always add up to the step,
over any steps and ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from traceml.facts.step_table import MAJORITY, Floats, StepTable
from traceml.facts.sums import Sums
from traceml.model.phase import BETWEEN, COMPUTE, COMPUTE_PART, IN_BETWEEN, IN_BODY, Phase
from traceml.model.record_layout import IDLE_CAUSES

PARTS = (*(phase.value for phase in Phase), BETWEEN, "wall")
"""The parts whose means are given by block. Compute and waiting follow from the phases where all
phases were measured; otherwise compute is given itself."""

_COMPUTE_NAMES = tuple(phase.value for phase in COMPUTE)
_IN_BODY = (*_COMPUTE_NAMES, "graph", *(phase.value for phase in IN_BODY if phase not in COMPUTE))
"""The measured parts of the body, in the order in which they are limited to it."""
_ACCOUNTS = (*IN_BETWEEN, "gc", "logging", "compile", "sync", "collate")
_PLACES = {phase: place for place, phase in enumerate(Phase)}


class _PhaseTime:
    """A phase of `StepTimes` under a name of its own."""

    def __init__(self, phase: Phase) -> None:
        self._place = _PLACES[phase]

    def __get__(self, times: StepTimes, owner: object = None) -> float | None:
        return times.phases_s[self._place]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean times of one step and its parts in seconds, on the run's clock unless stated
    otherwise."""

    phases_s: tuple[float | None, ...] = (None,) * len(Phase)
    """In the order of `Phase`. The rest is the body without the phases that were measured: it holds
    what was not, and is never negative."""
    step_s: float | None = None
    """Input wait plus body."""
    body_s: float | None = None
    own_s: float | None = None
    """The step without exposed communication: this rank's own work."""
    compute_s: float | None = None
    """Forward, backward and optimizer, with replays of CUDA graphs that hold several of them;
    `None` where one of them was not measured."""
    compute_at_least_s: float | None = None
    """The sum of those of them that were measured."""
    wait_s: float | None = None
    """The body without compute; over ranks `None` unless most ranks know all of their compute."""
    between_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    gc_s: float | None = None
    """Garbage collection, on the host's clock like the next four."""
    logging_s: float | None = None
    compile_s: float | None = None
    sync_s: float | None = None
    """The host waiting for the device."""
    collate_s: float | None = None
    wall_s: float | None = None
    cpu_step_s: float | None = None
    gpu_step_s: float | None = None
    cpu_body_s: float | None = None
    gpu_body_s: float | None = None
    cpu_input_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    stdev_s: float | None = None
    mad_s: float | None = None
    """Median absolute deviation from the median."""
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    idle_compile_s: float | None = None
    """The GPU's idle time by what the host did then, like the next five; not what it waited for
    input, copies and communication, which are phases. `None` on the host's clock."""
    idle_gc_s: float | None = None
    idle_logging_s: float | None = None
    idle_sync_s: float | None = None
    idle_python_s: float | None = None
    """While the host ran the script's own code."""
    idle_launching_s: float | None = None
    """While the host launched the work of a phase: an upper limit."""
    idle_between_s: float | None = None
    """Of all these, what lay between the phases."""

    input_s = _PhaseTime(Phase.INPUT)
    h2d_s = _PhaseTime(Phase.H2D)
    forward_s = _PhaseTime(Phase.FORWARD)
    backward_s = _PhaseTime(Phase.BACKWARD)
    optimizer_s = _PhaseTime(Phase.OPTIMIZER)
    communication_s = _PhaseTime(Phase.COMMUNICATION)
    residual_s = _PhaseTime(Phase.RESIDUAL)

    def phase(self, phase: Phase) -> float | None:
        """One phase's seconds."""
        return self.phases_s[_PLACES[phase]]

    @property
    def residual_with_communication_s(self) -> float | None:
        """`residual_ms` as the summary file has it: the body without copies and compute.

        The shared schema counts communication as part of it; nothing else here does.
        """
        return None if self.wait_s is None else self.wait_s - (self.h2d_s or 0.0)


NO_TIMES = StepTimes()


def part_means(sums: Sums, totals: Sums, clock: str) -> dict[str, Floats]:
    """Returns the mean of each part of a step on one clock, in seconds; NaN where it is not known.

    `totals` are the sums over all steps of the same ranks. A part that a rank never measured is not
    known; one that it measured in some steps counts as zero in the others.
    """
    found = _parts_of_body(sums, totals, "gpu_" if clock == "gpu" else "")
    found |= {f"{name}_body": _mean(sums, totals, name, "body") for name in ("cpu", "gpu")}
    found |= {f"{name}_input": _mean(sums, totals, name, "input") for name in ("cpu", "gpu")}
    for name in ("cpu", "gpu"):
        found[f"{name}_step"] = found[f"{name}_body"] + np.nan_to_num(found[f"{name}_input"])
    found["input"], found["step"] = found[f"{clock}_input"], found[f"{clock}_step"]
    found["own"] = found["step"] - np.nan_to_num(found["communication"])
    found["wall"] = _per_step(sums, totals, "wall_ns", sums.count_of("body_ns"))
    found["between"] = np.maximum(found["wall"] - found["cpu_step"], 0)
    return found


def _mean(sums: Sums, totals: Sums, clock: str, name: str) -> Floats:
    """Returns a part's mean over the steps that have a time on the clock."""
    prefix = "gpu_" if clock == "gpu" else ""
    return _per_step(sums, totals, f"{prefix}{name}_ns", sums.count_of(f"{prefix}body_ns"))


def _per_step(sums: Sums, totals: Sums, field: str, steps: Floats) -> Floats:
    """Returns the sum of what was measured divided by the number of all steps, in seconds."""
    known = (totals.count_of(field) > 0) & (steps > 0)
    return np.where(known, sums.sum_of(field) * 1e-9 / np.maximum(steps, 1), np.nan)


def _parts_of_body(sums: Sums, totals: Sums, prefix: str) -> dict[str, Floats]:
    """Returns the parts of the body, and its residual.

    No part is longer than what the others leave of the body: a longer measurement (a copy made
    before an explicit step begins) is partly outside the body.
    """
    clock = "gpu" if prefix else "cpu"
    found = {name: _mean(sums, totals, clock, name) for name in ("body", *_IN_BODY)}
    left = found["body"]
    for name in _IN_BODY:
        found[name] = np.minimum(found[name], left)
        left = left - np.nan_to_num(found[name])
    found["residual"] = left
    return found | _compute(found, totals, prefix)


def _compute(found: dict[str, Floats], totals: Sums, prefix: str) -> dict[str, Floats]:
    """Returns the compute of a step, and those of its phases that can be distinguished.

    A replay of a CUDA graph is compute that cannot be divided. For a rank that replays graphs, a
    phase missing from most of its steps is in the graphs and has no time of its own.
    """
    replays = totals.count_of(f"{prefix}graph_ns") > 0
    apart = np.stack([found[name] for name in _COMPUTE_NAMES])
    known = np.isfinite(apart)
    at_least = np.nan_to_num(apart).sum(axis=0) + np.nan_to_num(found["graph"])
    at_least = np.where(known.any(axis=0) | np.isfinite(found["graph"]), at_least, np.nan)
    compute = np.where(known.all(axis=0) | replays, at_least, np.nan)
    steps = totals.count_of(f"{prefix}body_ns")
    told = {
        name: np.where(
            replays & (totals.count_of(f"{prefix}{name}_ns") <= MAJORITY * steps),
            np.nan,
            found[name],
        )
        for name in _COMPUTE_NAMES
    }
    divided = sum((np.nan_to_num(each) for each in told.values()), np.zeros_like(at_least))
    return {
        **told,
        "compute": compute,
        "compute_at_least": at_least,
        "undivided": np.where(replays, np.maximum(at_least - divided, 0.0), np.nan),
        "wait": found["body"] - compute,
    }


def times_by_rank(sums: Sums, table: StepTable) -> tuple[StepTimes, ...]:
    """Returns the means of each rank after warm-up; old steps merged into blocks are included
    exactly."""
    steps = sums.count_of("body_ns")
    found = part_means(sums, sums, table.clock)
    found |= {name: _per_step(sums, sums, f"{name}_ns", steps) for name in _ACCOUNTS}
    found |= _idle(sums, table.clock)
    columns = {f"{name}_s": values for name, values in found.items()}
    columns |= _spread(table.step()) | _rates(sums, found["wall"])
    rows = [columns[name].tolist() for name in _NAMES]
    return tuple(
        _times(None if value != value else value for value in row)
        for row in zip(*rows, strict=True)
    )


def _idle(sums: Sums, clock: str) -> dict[str, Floats]:
    """Returns the GPU's idle time by cause; not known where the means are on the host's clock."""
    names = [f"idle_{name}" for name in (*IDLE_CAUSES, "between")]
    if clock != "gpu":
        return dict.fromkeys(names, np.full(len(sums.counts), np.nan))
    return {name: _mean(sums, sums, "gpu", name) for name in names}


def _rates(sums: Sums, wall_s: Floats) -> dict[str, Floats]:
    samples = sums.sum_of("samples")
    samples = np.where(samples > 0, samples, np.nan)  # a batch from before warm-up has none here
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {
            "steps_per_s": 1 / wall_s,
            "samples_per_s": samples / sums.count_of("body_ns") / wall_s,
        }
    return {name: np.where(np.isfinite(rate), rate, np.nan) for name, rate in rates.items()}


def parts_by_block(sums: Sums, clock: str) -> dict[str, tuple[float, ...]]:
    """Returns the block means of each measured part of `PARTS`, in seconds.

    Short steps are timed on the GPU only now and then: neighbouring blocks are merged until each
    holds a timed step.
    """
    totals = sums.in_all()
    names = (*PARTS, COMPUTE_PART)
    whole = part_means(totals, totals, clock)
    measured = [name for name in names if np.isfinite(whole[name]).all()]
    if not np.nan_to_num(whole["undivided"]).any() and set(_COMPUTE_NAMES) <= set(measured):
        measured.remove(COMPUTE_PART)
    found = part_means(sums, totals, clock)
    while len(sums.counts) > 1 and not all(np.isfinite(found[name]).all() for name in measured):
        sums = sums.in_pairs()
        found = part_means(sums, totals, clock)
    known = {name: found[name] for name in measured if np.isfinite(found[name]).all()}
    return {name: tuple(means.tolist()) for name, means in known.items()}


_OTHERS = tuple(field.name for field in fields(StepTimes) if field.name != "phases_s")
_NAMES = (*(f"{phase.value}_s" for phase in Phase), *_OTHERS)
_values_of_others = attrgetter(*_OTHERS)  # `astuple` copies each value
_ADDED_UP = frozenset(
    {
        *(f"{name}_s" for name in (*(phase.value for phase in Phase), *_ACCOUNTS)),
        "compute_s",
        "compute_at_least_s",
        "cpu_input_s",
        *(f"idle_{name}_s" for name in (*IDLE_CAUSES, "between")),
    }
)
"""Parts of a step that count as zero on a rank that never measured them: there their time is in the
residual."""


def _times(values: Iterable[float | None]) -> StepTimes:
    """From a value for each of `_NAMES`."""
    found = tuple(values)
    return StepTimes(found[: len(Phase)], *found[len(Phase) :])


def mean_times(ranks: tuple[StepTimes, ...]) -> StepTimes:
    """Returns the mean over ranks.

    A part that some rank measured is averaged over all ranks, as it is over all steps; any other
    value is the mean of the ranks that measured it, if most did.
    """
    if not ranks:
        return NO_TIMES
    rows = [times.phases_s + _values_of_others(times) for times in ranks]
    table = np.array(rows, dtype=np.float64)
    measured = np.isfinite(table)
    counts = measured.sum(axis=0)
    is_part = np.array([name in _ADDED_UP for name in _NAMES])
    enough = np.where(is_part, counts > 0, counts > MAJORITY * len(ranks))
    shared = np.where(is_part, len(ranks), np.maximum(counts, 1))
    means = np.where(measured, table, 0.0).sum(axis=0) / shared
    found = {
        name: value if known else None
        for name, value, known in zip(_NAMES, means.tolist(), enough, strict=True)
    }
    if found["compute_s"] is not None:  # ranks that do not know theirs have what they measured
        found["compute_s"] = found["compute_at_least_s"]
    if found["wait_s"] is not None:
        found["wait_s"] = (found["body_s"] or 0.0) - (found["compute_s"] or 0.0)
    return _times(found.values())


def _spread(step_s: Floats) -> dict[str, Floats]:
    """Returns percentiles and spread of each rank's step times."""
    if np.isfinite(step_s).all():
        return _row_spread(step_s)
    rows = [_row_spread(row[np.isfinite(row)][np.newaxis]) for row in step_s]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _row_spread(step_s: Floats) -> dict[str, Floats]:
    ranks, steps = step_s.shape
    nothing = np.full(ranks, np.nan)
    if not steps:
        return dict.fromkeys(("p50_s", "p95_s", "p99_s", "stdev_s", "mad_s"), nothing)
    p50, p95, p99 = np.percentile(step_s, (50, 95, 99), axis=1)
    return {
        "p50_s": p50,
        "p95_s": p95,
        "p99_s": p99,
        "stdev_s": step_s.std(axis=1, ddof=1) if steps > 1 else nothing,
        "mad_s": np.median(np.abs(step_s - p50[:, np.newaxis]), axis=1),
    }
