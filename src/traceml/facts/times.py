"""Where the time of a step went: means per rank and over ranks, in seconds.

A phase's mean is taken over the steps in which it was measured, provided most were. Input wait,
evaluation and checkpoints are accounts of the loop's wall time instead: a step in which no fetch
was seen waited for none, so their totals are divided by all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from traceml.facts.aligned import COLUMNS, WIDE, Aligned
from traceml.facts.sums import Sums
from traceml.model.phase import COMPUTE, Phase

Floats = npt.NDArray[np.float64]

MOST = 0.5
"""Something measured in at most this share of steps or ranks counts as not measured."""
FEWEST_TIMED = 5
"""Short steps are timed on the GPU now and then; so many of them stand for the rest."""

_STACKED = ("input_ns", "body_ns", "gpu_input_ns", "gpu_body_ns")
_STACKED_COLUMNS = [WIDE.index(name) for name in _STACKED]

PARTS = (*(phase.value for phase in Phase), "between", "wall")
"""What is told block by block; compute and waiting follow from the phases, where all of those are
measured. Else compute is told itself."""
_COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Means of one step and its parts, on the run's clock where the name says no other."""

    step_s: float | None = None
    """Input wait and body."""
    body_s: float | None = None
    input_s: float | None = None
    h2d_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    communication_s: float | None = None
    """Exposed: the rank waited for a collective and did nothing else."""
    own_s: float | None = None
    """The step without exposed communication: what this rank itself took."""
    compute_s: float | None = None
    """Forward, backward and optimizer, and replays of CUDA graphs that hold several of them;
    `None` where one of them was not measured."""
    compute_at_least_s: float | None = None
    """The measured ones of them."""
    residual_s: float | None = None
    """Body without copies and compute."""
    wait_s: float | None = None
    """Body without compute."""
    between_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    gc_s: float | None = None
    """Garbage collection, on the host's clock like the next four."""
    logging_s: float | None = None
    compile_s: float | None = None
    sync_s: float | None = None
    """The host waited for the device."""
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


NO_TIMES = StepTimes()


@dataclass(frozen=True, slots=True)
class StepClocks:
    """Every shared step of every rank, in seconds: (ranks, steps)."""

    clock: str
    """The clock that the phases are taken on."""
    step_s: Floats
    """On that clock where it ran in most steps, else on the host's; NaN where it did not run."""
    host_s: Floats
    """Each step's mean over the ranks on the host's clock, which always runs."""

    def over_ranks(self) -> Floats:
        """Each step's mean over the ranks that measured it; NaN where none did."""
        measured = np.isfinite(self.step_s)
        counts = measured.sum(axis=0)
        if counts.min(initial=len(self.step_s)) == len(self.step_s):
            return np.asarray(self.step_s.mean(axis=0))
        sums = np.where(measured, self.step_s, 0.0).sum(axis=0)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def with_host(self) -> Floats:
        """Each step's mean over the ranks; where the clock did not run yet, the host's."""
        steps = self.over_ranks()
        return np.where(np.isfinite(steps), steps, self.host_s)


def step_clocks(aligned: Aligned) -> StepClocks:
    """Choose the clock and take every step's time on it.

    The GPU's own clock where enough steps of every rank have been timed on it, else the host's.
    """
    stack = np.empty((len(_STACKED), len(aligned.ranks), len(aligned.index)))
    for position, steps in enumerate(aligned.ranks):
        stack[:, position] = steps.rows[:, _STACKED_COLUMNS].T
    cpu_input, cpu_body, gpu_input, gpu_body = stack
    timed = (gpu_body >= 0).sum(axis=1)
    mostly = bool((timed > MOST * gpu_body.shape[1]).all())
    on_gpu = mostly or bool((timed >= FEWEST_TIMED).all())
    waited, body = (gpu_input, gpu_body) if mostly else (cpu_input, cpu_body)
    unmeasured = body < 0
    step_s: Floats = (np.maximum(waited, 0) + body) * 1e-9
    step_s[unmeasured] = np.nan
    host_s = ((np.maximum(cpu_input, 0) + cpu_body) * 1e-9).mean(axis=0)
    return StepClocks("gpu" if on_gpu else "cpu", step_s, host_s)


def times_by_rank(sums: Sums, clocks: StepClocks, warmup: int) -> tuple[StepTimes, ...]:
    """The means of each rank after warm-up; old steps kept as blocks enter them exactly."""
    found = _parts(_columns(sums), clocks.clock) | _spread(clocks.step_s[:, warmup:])
    table = [found[field.name].tolist() for field in fields(StepTimes)]
    return tuple(
        StepTimes(*(None if value != value else value for value in row))
        for row in zip(*table, strict=True)
    )


def parts_by_block(sums: Sums, clock: str) -> dict[str, tuple[float, ...]]:
    """The means of each of `PARTS` that was measured, in seconds, block by block.

    Where a phase is not measured in every block (short steps are timed on the GPU now and then),
    neighbouring blocks are taken together till it is.
    """
    measured = [
        name for name, (mean,) in _block_parts(sums.in_all(), clock).items() if mean == mean
    ]
    if all(phase.value in measured for phase in COMPUTE) and _COMPUTE in measured:
        measured.remove(_COMPUTE)
    found = _block_parts(sums, clock)
    while len(sums.counts) > 1 and not all(np.isfinite(found[name]).all() for name in measured):
        sums = sums.in_pairs()
        found = _block_parts(sums, clock)
    known = {name: found[name] for name in measured if np.isfinite(found[name]).all()}
    return {name: tuple(means.tolist()) for name, means in known.items()}


def _block_parts(sums: Sums, clock: str) -> dict[str, Floats]:
    found = _parts(_columns(sums), clock)
    waited = found["input_s"]
    if np.isfinite(waited).any():  # a block without a fetch waited for none
        found["input_s"] = np.nan_to_num(waited)
    return {name: found[f"{name}_s"] for name in (*PARTS, _COMPUTE)}


def mean_times(ranks: tuple[StepTimes, ...]) -> StepTimes:
    """The mean over ranks, of what most of them measured."""
    if not ranks:
        return NO_TIMES
    table = np.array([_values(times) for times in ranks], dtype=np.float64)
    measured = np.isfinite(table)
    counts = measured.sum(axis=0)
    means = np.where(measured, table, 0.0).sum(axis=0) / np.maximum(counts, 1)
    enough = counts > MOST * len(ranks)
    return StepTimes(
        *(value if known else None for value, known in zip(means.tolist(), enough, strict=True))
    )


_values = attrgetter(*(field.name for field in fields(StepTimes)))  # `astuple` copies each value


@dataclass(frozen=True, slots=True)
class _Column:
    """One field's sum and count of measured steps, row by row."""

    sums: Floats
    counts: Floats

    def mean(self, steps: Floats) -> Floats:
        """Over the steps where it was measured, if most of all steps were."""
        enough = (self.counts > 0) & (self.counts > MOST * steps)
        return np.where(enough, self.sums / np.maximum(self.counts, 1), np.nan)

    def per_step(self, steps: Floats) -> Floats:
        """The total shared out over all steps, if it was ever measured."""
        return np.where((self.counts > 0) & (steps > 0), self.sums / np.maximum(steps, 1), np.nan)


def _columns(sums: Sums) -> dict[str, _Column]:
    return {
        name: _Column(
            sums.sums[:, position] * (1 if name == "samples" else 1e-9), sums.counts[:, position]
        )
        for position, name in enumerate(COLUMNS)
    }


def _parts(columns: dict[str, _Column], clock: str) -> dict[str, Floats]:
    """Each part of the step, row by row; NaN is "not measured"."""
    prefix = "gpu_" if clock == "gpu" else ""
    cpu_steps = columns["body_ns"].counts
    steps = columns[f"{prefix}body_ns"].counts

    def phase(name: str) -> Floats:
        return columns[f"{prefix}{name}_ns"].mean(steps)

    def account(name: str) -> Floats:
        return columns[f"{name}_ns"].per_step(cpu_steps)

    parts = ("body", "h2d", "forward", "backward", "optimizer", "communication")
    found = {name: phase(name) for name in parts}
    cpu_input, cpu_body = account("input"), columns["body_ns"].mean(cpu_steps)
    gpu_steps = columns["gpu_body_ns"].counts
    gpu_input = columns["gpu_input_ns"].per_step(gpu_steps)
    gpu_body = columns["gpu_body_ns"].mean(gpu_steps)
    found["input"] = gpu_input if clock == "gpu" else cpu_input
    found["cpu_step"], found["gpu_step"] = _plus(cpu_body, cpu_input), _plus(gpu_body, gpu_input)
    found["step"] = found[f"{clock}_step"]
    found["cpu_body"], found["gpu_body"], found["cpu_input"] = cpu_body, gpu_body, cpu_input
    found["own"] = found["step"] - np.nan_to_num(found["communication"])
    found |= _compute(columns, prefix, steps, found)
    found["wait"] = found["body"] - found["compute"]
    found["residual"] = found["wait"] - np.nan_to_num(found["h2d"])
    for name in ("evaluation", "checkpoint", "gc", "logging", "compile", "sync", "collate"):
        found[name] = account(name)
    found["wall"] = columns["wall_ns"].mean(cpu_steps)
    found["between"] = np.maximum(found["wall"] - found["cpu_step"], 0)
    seconds = {f"{name}_s": values for name, values in found.items()}
    samples = columns["samples"].mean(cpu_steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {"steps_per_s": 1 / found["wall"], "samples_per_s": samples / found["wall"]}
    return seconds | {name: np.where(np.isfinite(v), v, np.nan) for name, v in rates.items()}


def _compute(
    columns: dict[str, _Column], prefix: str, steps: Floats, found: dict[str, Floats]
) -> dict[str, Floats]:
    """The compute of a step, and what of it the replay of CUDA graphs took.

    A step that was replayed has no forward, backward or optimizer of its own: where there are such
    steps, each of those is shared out over all steps, like the replays themselves.
    """
    names = ("forward", "backward", "optimizer")
    graph = columns[f"{prefix}graph_ns"].per_step(steps)
    replays = np.isfinite(graph)
    shared = {name: columns[f"{prefix}{name}_ns"].per_step(steps) for name in names}
    phases = {
        name: np.where(replays & np.isfinite(found[name]), shared[name], found[name])
        for name in names
    }
    apart = np.stack([np.where(replays, np.nan_to_num(shared[n]), phases[n]) for n in names])
    compute = apart.sum(axis=0) + np.nan_to_num(graph)
    unknown = np.isnan(apart).all(axis=0)
    at_least = np.where(unknown, np.nan, np.nansum(apart, axis=0) + np.nan_to_num(graph))
    return {**phases, "compute": compute, "compute_at_least": at_least}


def _plus(body: Floats, waited: Floats) -> Floats:
    """Body and input wait, where a wait that was never measured adds nothing."""
    return body + np.nan_to_num(waited)


def _spread(step_s: Floats) -> dict[str, Floats]:
    """Percentiles and spread of each rank's step times."""
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
