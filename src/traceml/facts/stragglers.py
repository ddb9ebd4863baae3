"""Finds the ranks whose own work takes longer than that of the others.

A collective makes all ranks' steps equally long, so ranks are compared by what they do themselves:
the last to arrive is the one with the largest own time. A rank's excess is taken over the median of
its peers' means, so that two slow ranks of four are both found, and stalls, which every rank may
have, weigh as much as they last. Peers are ranks that do the same work: those of another pipeline
stage hold other layers, and one that has no peer cannot be late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.job import MIN_STEPS, Job, timed_together
from traceml.facts.series import describe_series, find_slowdown
from traceml.facts.step_table import Floats, Ints
from traceml.facts.thread_time import ThreadTime
from traceml.facts.times import StepTimes
from traceml.model.phase import COMPUTE, MEASURED, Phase

MIN_EXCESS_SHARE = 0.05
"""Of the others' work: the ranks of a healthy job differ by up to this much."""
FEW_STEPS = 3
"""A few slow steps are an accident: an excess must be more than twice what this many steps hold."""
BLOCKS = 8
"""The run is split into this many blocks: contention comes in spells of seconds, so not every block
has one …"""
MIN_BLOCK_STEPS = 5
"""… if it has at least this many steps."""
CLEARLY_LATE = 0.25
"""Of the mean excess: a rank with more than this in a block is late in that block too."""
NOT_YET_LATE = 0.25
"""Of the later excess: a rank with more than this before the onset was late all along."""

INSIDE_REST = ("gc_s", "logging_s", "compile_s")
"""Host activities that lie in the residual; waiting for the device lies in its phase instead."""


@dataclass(frozen=True, slots=True)
class Against:
    """A time of one rank, and the median of the same time over its peers."""

    rank_s: float
    others_s: float

    @property
    def excess_s(self) -> float:
        """How much longer it takes on this rank."""
        return self.rank_s - self.others_s


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that takes longer than its peers."""

    rank: int
    own: Against
    typical_s: float
    """The other ranks' step without waiting; an excess is judged relative to it."""
    phases: Mapping[Phase, Against]
    """The phases of its own work that were measured on every rank."""
    unmeasured: tuple[Phase, ...]
    """Phases of compute that some rank did not measure, and that are therefore in the residual."""
    inside_rest: Mapping[str, Against]
    """Host activities in the residual, by their field in `StepTimes`; empty on the GPU's clock,
    because they are measured on the host's."""
    standard_errors: float
    """The excess divided by its standard error, corrected for few independent steps."""
    slowest_share: float | None
    """The share of the steps in which this rank was the slowest of its peers; `None` where the
    ranks share no timed step."""
    since_step: int | None
    """The number of the step at which the rank became slow; `None` where it always was."""
    late_blocks: float | None = None
    """The share of the run's blocks since then in which the rank is clearly late; `None` where
    there are too few steps for blocks."""
    cpu: Against | None = None
    """CPU time of the training thread per step; `None` where the system does not report it."""
    core_wait: Against | None = None
    """How long that thread waited for a core per step; `None` where not reported."""


def find_stragglers(
    job: Job, times: Sequence[StepTimes], threads: Mapping[int, ThreadTime] | None = None
) -> tuple[Straggler, ...]:
    """Returns the ranks that are late repeatedly, the largest excess first; `times` is by rank.

    `threads` is the CPU time and waiting of the ranks' training threads, where it is known.
    """
    if len(times) < 2:
        return ()
    whole, own = _own_work(job, times)
    if not np.isfinite(own).all():
        return ()
    groups = job.peer_groups
    typical, excess = median_of_peers(whole, groups), own - median_of_peers(own, groups)
    suspects = np.flatnonzero(excess > MIN_EXCESS_SHARE * typical)
    if not len(suspects):
        return ()
    uncertainty = _Uncertainty.of(job.even_own_s(), job)
    late = suspects[np.argsort(-excess[suspects], kind="stable")]
    phases, unmeasured = _phases(job, times, own)
    inside = _measured(times, INSIDE_REST) if job.table.clock == "cpu" else {}
    scheduled = _scheduled(job.table.ranks, threads or {})
    return tuple(
        Straggler(
            rank=job.table.ranks[row],
            own=_against(own, row, peers),
            typical_s=float(typical[row]),
            phases={phase: _against(column, row, peers) for phase, column in phases.items()},
            unmeasured=unmeasured,
            inside_rest={name: _against(column, row, peers) for name, column in inside.items()},
            standard_errors=uncertainty.standard_errors(float(excess[row]), pieces),
            slowest_share=uncertainty.slowest_share(row),
            since_step=uncertainty.since_step(pieces),
            late_blocks=_late_blocks(pieces[-1]),
            cpu=None if scheduled is None else _against(scheduled[0], row, peers),
            core_wait=None if scheduled is None else _against(scheduled[1], row, peers),
        )
        for row in late.tolist()
        if uncertainty.recurs(row)
        for peers in [job.peers_of(row)]
        for pieces in [uncertainty.pieces(row)]
    )


def excess_share(job: Job, times: Sequence[StepTimes], ranks: Sequence[int]) -> float | None:
    """Returns the largest excess of these ranks, late or not, as a share of a typical step."""
    rows = [row for row, rank in enumerate(job.table.ranks) if rank in ranks]
    if len(times) < 2 or not rows:
        return None
    whole, own = _own_work(job, times)
    if not np.isfinite(own).all():
        return None
    excess = own - median_of_peers(own, job.peer_groups)
    latest = max(rows, key=lambda row: float(excess[row]))
    typical_s = float(median_of_peers(whole, job.peer_groups)[latest])
    return float(excess[latest]) / typical_s if typical_s > 0 else None


def lost_s(job: Job, ranks: Sequence[int]) -> float:
    """Returns how much shorter a mean step would be if these ranks kept up with the others."""
    return job.saved_s(_excess_by_step_s(job, job.even_own_s(), ranks))


def _excess_by_step_s(job: Job, own_s: Floats, ranks: Sequence[int]) -> Floats:
    """Returns by how much these ranks were slower than their peers in each step; zero for other
    ranks.

    Noise is kept: what remains without the excess varies as a healthy rank does.
    """
    excess_s = np.zeros_like(own_s)
    together = timed_together(own_s)
    rows = [row for row, rank in enumerate(job.table.ranks) if rank in ranks]
    if together is None:
        means = job.table.mean_by_rank(own_s)
        others = median_of_peers(means, job.peer_groups)
        excess_s[rows] = np.maximum(means - others, 0.0)[rows, np.newaxis]
        return excess_s
    uncertainty = _Uncertainty.of(own_s, job)
    for row in rows:
        excess_s[row, together] = np.concatenate(
            [_beyond_noise(p) for p in uncertainty.pieces(row)]
        )
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


def median_of_peers(table: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """For each row the median of the other rows of its group; the row itself where it is alone."""
    found = np.array(table)
    for group in groups:
        if len(group) > 1:
            rows = list(group)
            found[rows] = median_of_others(table[rows])
    return found


def _own_work(job: Job, times: Sequence[StepTimes]) -> tuple[Floats, Floats]:
    """Returns each rank's step without waiting, and the part of it that can be compared between
    ranks: as if they had equally much to work on."""
    whole = _column(times, "own_s")
    hidden = _column(times, "backward_s") if job.wait_is_hidden else np.zeros(len(times))
    return whole, np.asarray(whole - np.nan_to_num(hidden) - _extra_work_s(job))


def _extra_work_s(job: Job) -> Floats:
    """Returns how much longer each rank works per step for having more to work on than its
    peers."""
    if job.extra_work_s is None:
        return np.zeros(len(job.table.ranks))
    return job.table.mean_by_rank(job.extra_work_s)


def _column(times: Sequence[StepTimes], name: str) -> Floats:
    return np.array([getattr(each, name) for each in times], dtype=np.float64)


def _scheduled(
    ranks: Sequence[int], threads: Mapping[int, ThreadTime]
) -> tuple[Floats, Floats] | None:
    """Returns CPU time and core wait of every rank; `None` where they are not known for all
    ranks."""
    if any(rank not in threads for rank in ranks):
        return None
    known = [threads[rank] for rank in ranks]
    return np.array([each.cpu_s for each in known]), np.array([each.wait_s for each in known])


def _late_blocks(difference: Floats) -> float | None:
    """Returns the share of equally long blocks of steps in which a rank is clearly late."""
    if len(difference) < BLOCKS * MIN_BLOCK_STEPS:
        return None
    means = np.array([block.mean() for block in np.array_split(difference, BLOCKS)])
    return float((means > CLEARLY_LATE * difference.mean()).mean())


def _against(column: Floats, row: int, peers: Sequence[int]) -> Against:
    others = [column[peer] for peer in peers if peer != row]
    return Against(float(column[row]), float(np.median(others)))


def _measured(times: Sequence[StepTimes], names: Sequence[str]) -> dict[str, Floats]:
    """Returns those of these times that every rank has."""
    columns = {name: _column(times, name) for name in names}
    return {name: column for name, column in columns.items() if np.isfinite(column).all()}


def _phases(
    job: Job, times: Sequence[StepTimes], own: Floats
) -> tuple[dict[Phase, Floats], tuple[Phase, ...]]:
    """Returns each rank's own work by phase, and the phases of compute that are hidden in the
    residual."""
    waiting = (Phase.COMMUNICATION, *((Phase.BACKWARD,) if job.wait_is_hidden else ()))
    parts = [phase for phase in MEASURED if phase not in waiting]
    columns = {
        phase: np.array([each.phase(phase) for each in times], dtype=np.float64) for phase in parts
    }
    found = {phase: column for phase, column in columns.items() if np.isfinite(column).all()}
    for phase, extra_s in _extra_by_phase(job, found).items():
        found[phase] = found[phase] - extra_s
    rest = own - sum(found.values(), np.zeros(len(own)))
    unmeasured = tuple(phase for phase in parts if phase in COMPUTE and phase not in found)
    return {**found, Phase.RESIDUAL: rest}, unmeasured


def _extra_by_phase(job: Job, columns: Mapping[Phase, Floats]) -> dict[Phase, Floats]:
    """Returns the time of uneven work in forward and backward, by how long they take."""
    worked = {
        phase: columns[phase] for phase in (Phase.FORWARD, Phase.BACKWARD) if phase in columns
    }
    total = sum(worked.values(), np.zeros(len(job.table.ranks)))
    shares = np.divide(_extra_work_s(job), total, out=np.zeros_like(total), where=total > 0)
    return {phase: column * shares for phase, column in worked.items()}


def _beyond_noise(difference: Floats) -> Floats:
    """Returns the part of a rank's differences from the others that makes their mean positive.

    First what every usual step has; then, from the largest, what only some steps have.
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
    """Returns the mean of the half of the values that lie closest together."""
    ordered = np.sort(values)
    half = max(1, len(ordered) // 2)
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    first = int(np.argmin(widths))
    return float(ordered[first : first + half].mean())


def _independent_steps(noise: Floats) -> float:
    """Returns how many independent steps a series is worth.

    A short series underestimates its autocorrelation, so the lag-1 autocorrelation is corrected for
    that bias and taken to decay geometrically.
    """
    steps, series = len(noise), describe_series(noise)
    neighbours = (steps * series.autocorrelation[0] + 1) / (steps - 4)
    neighbours = min(max(neighbours, 0.0), 0.99)
    return min(series.effective_count, steps * (1 - neighbours) / (1 + neighbours))


def _slowest_shares(shared_s: Floats, groups: Sequence[Sequence[int]]) -> Floats:
    """Returns for each row the share of steps in which it was the slowest of its group."""
    shares = np.zeros(len(shared_s))
    for group in groups:
        rows = list(group)
        slowest = shared_s[rows].argmax(axis=0)
        shares[rows] = np.bincount(slowest, minlength=len(rows)) / len(slowest)
    return shares


@dataclass(frozen=True, slots=True)
class _Uncertainty:
    """How much of a rank's excess may be chance, judged by how its steps vary."""

    differences: tuple[Floats, ...]
    """A series per rank: its steps minus its peers' median."""
    variance: float
    """Pooled over ranks: noise affects all alike, so a rank that varies more has a cause for it."""
    numbers: Ints | None
    """The steps of the series; `None` where each rank was timed in different steps."""
    slowest_shares: Floats | None
    """By row: the share of these steps in which no peer took longer."""
    others_s: float
    """A step of the ranks without any excess, approximately."""

    @classmethod
    def of(cls, own_s: Floats, job: Job) -> _Uncertainty:
        """Returns the uncertainty from every rank's own work in the job's steps."""
        steps, groups = job.table, job.peer_groups
        means = steps.mean_by_rank(own_s)
        usual_s = float(np.median(means))
        together = timed_together(own_s)
        if together is None:
            others = median_of_peers(means, groups)
            rows = tuple(
                row[np.isfinite(row)] - other for row, other in zip(own_s, others, strict=True)
            )
            # Timed in different steps, both sides of a comparison vary on their own.
            variance = 2 * float(np.mean([row.var() for row in rows if len(row)]))
            return cls(rows, variance, None, None, usual_s)
        shared = own_s[:, together]
        table = shared - median_of_peers(shared, groups)
        compared = [row for group in groups if len(group) > 1 for row in group]
        variance = float(table[compared].var(axis=1).mean()) if compared else 0.0
        slowest = _slowest_shares(shared, groups)
        return cls(tuple(table), variance, steps.numbers[together], slowest, usual_s)

    def recurs(self, row: int) -> bool:
        """Returns whether the rank is late repeatedly rather than in a few single steps."""
        series = self.differences[row]
        if len(series) < MIN_STEPS:
            return False
        few = np.partition(series, -FEW_STEPS)[-FEW_STEPS:]
        return bool(series.sum() > 2 * np.maximum(few, 0).sum())

    def pieces(self, row: int) -> list[Floats]:
        """Returns the rank's series, split at the step at which it became late: that change is not
        noise."""
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
        """Returns the step at which the rank became late; `None` where it always was."""
        if self.numbers is None or len(pieces) == 1:
            return None
        return int(self.numbers[len(pieces[0])])

    def slowest_share(self, row: int) -> float | None:
        """Returns the share of steps in which no peer took longer."""
        return None if self.slowest_shares is None else float(self.slowest_shares[row])

    def standard_errors(self, excess_s: float, pieces: Sequence[Floats]) -> float:
        """Returns the excess divided by its standard error."""
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
