"""Finds the ranks whose own work takes longer than that of the others.

A collective makes all ranks' steps equally long, so ranks are compared by what they do themselves:
the last to arrive is the one with the largest own time. A rank's excess is taken over the median of
the other ranks' means, so that two slow ranks of four are both found, and stalls, which every rank
may have, weigh as much as they last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.job import FEWEST_STEPS, Job, row_means, timed_together
from traceml.facts.series import describe, find_slowdown
from traceml.facts.step_table import Floats, Ints
from traceml.facts.thread_time import ThreadTime
from traceml.facts.times import StepTimes
from traceml.model.phase import COMPUTE, MEASURED, Phase

SMALLEST_SHARE = 0.05  # of the others' work: ranks are never closer than that to perfectly even
FEW_STEPS = 3  # so many odd steps are an accident; an excess must be more than twice what they hold
BLOCKS = 8  # of a run: spells of contention last seconds, so that not all of them share one …
MIN_BLOCK_STEPS = 5  # … and fewer steps would be chance
CLEARLY_LATE = 0.25  # of the mean excess: a block in which the rank is late as well
NOT_YET_LATE = 0.25  # of the later excess: a rank that had more of it was late all along

INSIDE_REST = ("gc_s", "logging_s", "compile_s")
"""What the host's phases leave out and the rest holds; a wait for the device stays in its phase."""


@dataclass(frozen=True, slots=True)
class Against:
    """A time of one rank, and the median of the same over the other ranks."""

    rank_s: float
    others_s: float

    @property
    def excess_s(self) -> float:
        """How much longer it takes on the rank."""
        return self.rank_s - self.others_s


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that takes longer than the others."""

    rank: int
    own: Against
    typical_s: float
    """A step of the others without waiting: what an excess is measured by."""
    phases: Mapping[Phase, Against]
    """What its own work consists of, as far as it was measured on every rank."""
    unmeasured: tuple[Phase, ...]
    """Parts of compute that were not measured everywhere and so lie in the rest."""
    inside_rest: Mapping[str, Against]
    """Known parts of the rest, by the name of their field in `StepTimes`; measured by the host, and
    so none of a rest that is taken on the GPU's clock."""
    standard_errors: float
    """The excess against its uncertainty; with few independent steps they count for less."""
    slowest_share: float | None
    """Of the steps, those in which no rank took longer; `None` where ranks share no timed step."""
    since_step: int | None
    """Where the rank became slow during the run, the number of that step."""
    late_blocks: float | None = None
    """Of the run's blocks of steps since then, the share in which the rank is clearly late;
    `None` where there are too few steps for blocks."""
    cpu: Against | None = None
    """CPU time of the training thread per step; `None` where the system does not tell."""
    core_wait: Against | None = None
    """What that thread waited for a core per step."""


def find_stragglers(
    job: Job, times: Sequence[StepTimes], threads: Mapping[int, ThreadTime] | None = None
) -> tuple[Straggler, ...]:
    """The ranks that are late again and again, the largest excess first; `times` by rank.

    `threads` is what the scheduler gave the ranks' training threads, where that is known.
    """
    if len(times) < 2:
        return ()
    whole, own = _own_work(job, times)
    if not np.isfinite(own).all():
        return ()
    typical, excess = median_of_others(whole), own - median_of_others(own)
    suspects = np.flatnonzero(excess > SMALLEST_SHARE * typical)
    if not len(suspects):
        return ()
    doubt = _Doubt.of(job.own_s(), job.parts.numbers)
    late = suspects[np.argsort(-excess[suspects], kind="stable")]
    phases, unmeasured = _phases(job, times, own)
    inside = _measured(times, INSIDE_REST) if job.parts.clock == "cpu" else {}
    scheduled = _scheduled(job.parts.ranks, threads or {})
    return tuple(
        Straggler(
            rank=job.parts.ranks[row],
            own=_against(own, row),
            typical_s=float(typical[row]),
            phases={phase: _against(column, row) for phase, column in phases.items()},
            unmeasured=unmeasured,
            inside_rest={name: _against(column, row) for name, column in inside.items()},
            standard_errors=doubt.standard_errors(float(excess[row]), pieces),
            slowest_share=doubt.slowest_share(row),
            since_step=doubt.since_step(pieces),
            late_blocks=_late_blocks(pieces[-1]),
            cpu=None if scheduled is None else _against(scheduled[0], row),
            core_wait=None if scheduled is None else _against(scheduled[1], row),
        )
        for row in late.tolist()
        if doubt.recurs(row)
        for pieces in [doubt.pieces(row)]
    )


def excess_share(job: Job, times: Sequence[StepTimes], ranks: Sequence[int]) -> float | None:
    """The largest excess of these ranks, late or not, as a part of a typical step."""
    rows = [row for row, rank in enumerate(job.parts.ranks) if rank in ranks]
    if len(times) < 2 or not rows:
        return None
    whole, own = _own_work(job, times)
    if not np.isfinite(own).all():
        return None
    excess = own - median_of_others(own)
    latest = max(rows, key=lambda row: float(excess[row]))
    typical_s = float(median_of_others(whole)[latest])
    return float(excess[latest]) / typical_s if typical_s > 0 else None


def lost_s(job: Job, ranks: Sequence[int]) -> float:
    """How much shorter a mean step would be if these ranks kept up with the others."""
    own_s = job.own_s()
    return job.saved_s(_excess_by_step_s(job, own_s, ranks), own_s)


def _excess_by_step_s(job: Job, own_s: Floats, ranks: Sequence[int]) -> Floats:
    """Step by step, what these ranks took beyond the others; every other rank has none.

    Noise, which every rank has, stays: what would be left varies as a healthy rank does.
    """
    excess_s = np.zeros_like(own_s)
    together = timed_together(own_s)
    rows = [row for row, rank in enumerate(job.parts.ranks) if rank in ranks]
    if together is None:
        means = row_means(own_s)
        excess_s[rows] = np.maximum(means - median_of_others(means), 0.0)[rows, np.newaxis]
        return excess_s
    doubt = _Doubt.of(own_s, job.parts.numbers)
    for row in rows:
        excess_s[row, together] = np.concatenate([_beyond_noise(p) for p in doubt.pieces(row)])
    return excess_s


def median_of_others(table: Floats) -> Floats:
    """For each row the median of all other rows, column by column; at least two rows."""
    others = len(table) - 1
    low, high = (others - 1) // 2, others // 2
    ordered = np.partition(table, (low, low + 1, high, high + 1), axis=0)

    # Without a value that stands at a place or before it, the next one moves up to that place.
    low_value, high_value = (
        np.where(table <= ordered[place], ordered[place + 1], ordered[place])
        for place in (low, high)
    )
    return np.asarray((low_value + high_value) / 2)


def _own_work(job: Job, times: Sequence[StepTimes]) -> tuple[Floats, Floats]:
    """Each rank's step without waiting, and what of it can be held against the other ranks."""
    whole = _column(times, "own_s")
    hidden = _column(times, "backward_s") if job.wait_is_hidden else np.zeros(len(times))
    return whole, np.asarray(whole - np.nan_to_num(hidden))


def _column(times: Sequence[StepTimes], name: str) -> Floats:
    return np.array([getattr(each, name) for each in times], dtype=np.float64)


def _scheduled(
    ranks: Sequence[int], threads: Mapping[int, ThreadTime]
) -> tuple[Floats, Floats] | None:
    """CPU time and waiting for a core of every rank; `None` where one of them is not known."""
    if any(rank not in threads for rank in ranks):
        return None
    known = [threads[rank] for rank in ranks]
    return np.array([each.cpu_s for each in known]), np.array([each.wait_s for each in known])


def _late_blocks(difference: Floats) -> float | None:
    """The share of equally long blocks of steps in which a rank is clearly late."""
    if len(difference) < BLOCKS * MIN_BLOCK_STEPS:
        return None
    means = np.array([block.mean() for block in np.array_split(difference, BLOCKS)])
    return float((means > CLEARLY_LATE * difference.mean()).mean())


def _against(column: Floats, row: int) -> Against:
    others = np.delete(column, row)
    return Against(float(column[row]), float(np.median(others)))


def _measured(times: Sequence[StepTimes], names: Sequence[str]) -> dict[str, Floats]:
    """Those of these times that every rank has."""
    columns = {name: _column(times, name) for name in names}
    return {name: column for name, column in columns.items() if np.isfinite(column).all()}


def _phases(
    job: Job, times: Sequence[StepTimes], own: Floats
) -> tuple[dict[Phase, Floats], tuple[Phase, ...]]:
    """Each rank's own work, phase by phase, and what of compute is hidden in the rest."""
    waiting = (Phase.COMMUNICATION, *((Phase.BACKWARD,) if job.wait_is_hidden else ()))
    parts = [phase for phase in MEASURED if phase not in waiting]
    columns = {
        phase: np.array([each.phase(phase) for each in times], dtype=np.float64) for phase in parts
    }
    found = {phase: column for phase, column in columns.items() if np.isfinite(column).all()}
    rest = own - sum(found.values(), np.zeros(len(own)))
    unmeasured = tuple(phase for phase in parts if phase in COMPUTE and phase not in found)
    return {**found, Phase.RESIDUAL: rest}, unmeasured


def _beyond_noise(difference: Floats) -> Floats:
    """The part of a rank's differences from the others that makes their mean more than nothing.

    First what lies in the usual step; then, from the top, what only some steps have.
    """
    usual = max(0.0, _usual(difference))
    left = difference - usual
    if left.mean() <= 0:
        return np.full_like(difference, usual)
    ordered = np.sort(left)
    below = np.cumsum(ordered) - ordered
    caps = -below / np.arange(len(ordered), 0, -1)
    cap = caps[np.argmax(caps <= ordered)]
    return np.asarray(difference - np.minimum(left, cap))


def _usual(values: Floats) -> float:
    """The mean of that half of the values which lie closest together."""
    ordered = np.sort(values)
    half = max(1, len(ordered) // 2)
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    first = int(np.argmin(widths))
    return float(ordered[first : first + half].mean())


def _independent_steps(noise: Floats) -> float:
    """How many independent steps a series is worth.

    A short series understates how long its slow spells last: the correlation of neighbours is
    corrected for that, and the spells are taken to fade as it says, at least.
    """
    steps, series = len(noise), describe(noise)
    neighbours = (steps * series.autocorrelation[0] + 1) / (steps - 4)
    neighbours = min(max(neighbours, 0.0), 0.99)
    return min(series.effective_count, steps * (1 - neighbours) / (1 + neighbours))


@dataclass(frozen=True, slots=True)
class _Doubt:
    """How much of a rank's excess may be chance, from how its steps differ from the others'."""

    differences: tuple[Floats, ...]
    """A series per rank."""
    variance: float
    """Pooled over ranks: chance hits them all, so a rank that varies more has a cause for it."""
    numbers: Ints | None
    """The steps of the series; `None` where each rank was timed in steps of its own."""
    slowest: Ints | None
    """The row of the slowest rank in each of these steps."""
    others_s: float
    """About what a step takes without any excess."""

    @classmethod
    def of(cls, own_s: Floats, numbers: Ints) -> _Doubt:
        """From every rank's own work in each of the steps with these numbers."""
        means = row_means(own_s)
        usual_s = float(np.median(means))
        together = timed_together(own_s)
        if together is None:
            others = median_of_others(means)
            rows = tuple(
                row[np.isfinite(row)] - other for row, other in zip(own_s, others, strict=True)
            )
            # Timed in different steps, both sides of a comparison vary on their own.
            variance = 2 * float(np.mean([row.var() for row in rows if len(row)]))
            return cls(rows, variance, None, None, usual_s)
        shared = own_s[:, together]
        table = shared - median_of_others(shared)
        variance = float(table.var(axis=1).mean())
        return cls(tuple(table), variance, numbers[together], shared.argmax(axis=0), usual_s)

    def recurs(self, row: int) -> bool:
        """Whether the rank is late again and again rather than in a few odd steps."""
        series = self.differences[row]
        if len(series) < FEWEST_STEPS:
            return False
        few = np.partition(series, -FEW_STEPS)[-FEW_STEPS:]
        return bool(series.sum() > 2 * np.maximum(few, 0).sum())

    def pieces(self, row: int) -> list[Floats]:
        """The rank's series, cut in two where the rank became late: a change is no noise."""
        series = self.differences[row]
        if self.numbers is None:
            return [series]
        places = np.arange(len(series), dtype=np.int64)
        slowdown = find_slowdown(series + self.others_s, places)
        if slowdown is None:
            return [series]
        before, after = np.split(series, [slowdown.onset_step])
        was_late = before.mean() > NOT_YET_LATE * after.mean()
        return [series] if was_late else [before, after]

    def since_step(self, pieces: Sequence[Floats]) -> int | None:
        """The number of the step from which on the rank is late, where it was not before."""
        if self.numbers is None or len(pieces) == 1:
            return None
        return int(self.numbers[len(pieces[0])])

    def slowest_share(self, row: int) -> float | None:
        """The share of steps in which no rank took longer."""
        return None if self.slowest is None else float((self.slowest == row).mean())

    def standard_errors(self, excess_s: float, pieces: Sequence[Floats]) -> float:
        """The excess in units of its uncertainty."""
        noise = np.concatenate([piece - piece.mean() for piece in pieces])
        changed = noise.var() - np.concatenate(pieces).var()
        variance = max(0.0, self.variance + changed / len(self.differences))
        freedom = max(1.0, _independent_steps(noise) - 1)
        error_s = math.sqrt(variance / freedom)
        if error_s <= 1e-9 * excess_s:
            return math.inf
        # Wallace's normal deviate of Student's t: a spread known from few steps may be wrong.
        deviate = math.sqrt(freedom * math.log1p((excess_s / error_s) ** 2 / freedom))
        return deviate * (8 * freedom + 1) / (8 * freedom + 3)
