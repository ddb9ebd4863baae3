"""The one table of a run's steps: every number about step time is a reduction of it.

It holds the complete steps that all ranks have taken: a row per rank, a column per step. What is
decided here is decided once: how steps are numbered, which clock they are taken on, which of them
are warm-up, and what a step without a phase spent on it. `facts/sums.py` adds the table up by rank
and by block, `facts/times.py` makes means of such sums.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from traceml.facts.robust_statistics import known_median
from traceml.model.phase import IN_BETWEEN, IN_BODY, Phase
from traceml.model.record_layout import GPU_FIELDS
from traceml.store.records import RankRecords
from traceml.store.step_columns import StepColumns, columns_of
from traceml.store.step_records import WIDE, is_incomplete, record_numbers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLUMNS = (*WIDE, "samples")
MAJORITY = 0.5
"""Of steps or ranks: what more than this share of them has is taken to hold for all."""
MIN_TIMED_STEPS = 5
"""Of short steps only some are timed on the GPU; this many of them represent the others."""
LONG_STEP = 2.0
"""Times the median step on the host's clock: from here on, steps are told apart by their length."""
MIN_MISSED_SHARE = 0.5
"""Of the extra time of long steps that the GPU did not time. Where all steps together take at least
this much longer on the host than by the GPU's times, those steps are missing there."""
MAX_WARMUP_SHARE = 0.10
"""Of the steps. A slow beginning that lasts longer is not warm-up but how the run was."""
CLEARLY_SLOWER = 1.5
"""Times the median of the later steps: compilers and allocators cost multiples of a step."""
WARMUP_DEVIATIONS = 6.0
"""Robust standard deviations that a warm-up step also lies above the median of the later ones."""
MIN_STEPS_FOR_WARMUP = 3
"""With fewer steps nothing tells which of them is the unusual one."""


class Clock(NamedTuple):
    """The clocks of a run's times: each `gpu` or `cpu`."""

    means: str
    """The clock of means and phases."""
    steps: str
    """The clock of single steps: the host's where too few steps were timed on the GPU."""


def choose_clock(timed: Floats, taken: Floats) -> Clock:
    """Returns the GPU's clock where enough steps of every rank were timed on it, else the host's.

    `timed` and `taken` have an entry per rank: how many of its steps have a GPU time, and how many
    steps it took.
    """
    mostly = bool((timed > MAJORITY * taken).all())
    enough = mostly or bool((timed >= MIN_TIMED_STEPS).all())
    return Clock("gpu" if enough else "cpu", "gpu" if mostly else "cpu")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The complete steps of one rank that are kept one by one."""

    index: Ints
    """The number of each step among the rank's complete steps, from 0."""
    columns: StepColumns
    """The records of these steps; -1 means "not measured"."""

    def take(self, chosen: Ints | slice) -> RankSteps:
        """Returns the selected steps."""
        return RankSteps(self.index[chosen], self.columns[chosen])


def complete_steps(records: RankRecords) -> RankSteps:
    """Returns a rank's complete steps with their numbers.

    Aborted steps and the time after the last step are left out and have no number, so that an
    aborted step on one rank does not shift the numbers of the others.
    """
    found = RankSteps(record_numbers(records), columns_of(records.steps))
    incomplete = is_incomplete(found.columns)
    return found.take(np.flatnonzero(~incomplete)) if incomplete.any() else found


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps that all ranks share, and the older ones that are merged into blocks.

    The tables that its methods return have a row per rank and a column per step after warm-up, in
    seconds; NaN means "not measured".
    """

    ranks: tuple[int, ...]
    """The global rank of each row."""
    index: Ints
    """The number of each shared step among the run's complete steps, from 0; with warm-up."""
    rank_steps: tuple[RankSteps, ...]
    """One entry per rank, all with the same index."""
    older: tuple[RankSteps, ...]
    """Single steps before the shared ones; empty unless some rank has blocks."""
    blocks: tuple[npt.NDArray[Any], ...]
    warmup: int
    """How many of the shared steps are warm-up and therefore in no mean."""
    clocks: Clock
    single_steps: Floats
    """Input wait plus body of each step after warm-up, on the clock for single steps."""
    weights: Floats | None
    """Of each step after warm-up, by rank: how much what the GPU timed in it counts in a mean; 1 on
    average over the timed steps. `None` where all count the same (see `timed_weights`)."""

    @property
    def clock(self) -> str:
        """The clock of means and phases: `gpu` or `cpu`."""
        return self.clocks.means

    @property
    def folded(self) -> bool:
        """Whether any rank's oldest steps are merged into blocks."""
        return any(len(blocks) for blocks in self.blocks)

    @property
    def numbers(self) -> Ints:
        """The number of each column's step, counted from 1."""
        return self.index[self.warmup :] + 1

    def field(self, name: str) -> Floats:
        """Returns one field of the records as it was measured."""
        table = np.empty((len(self.rank_steps), len(self.index) - self.warmup))
        for row, rank in zip(table, self.rank_steps, strict=True):
            row[:] = rank.columns[name][self.warmup :]
        table[table < 0] = np.nan
        table *= 1e-9
        return table

    def phase(self, phase: Phase) -> Floats:
        """Returns one phase on the run's clock; the residual is what the other phases leave of the
        body.

        A step without a phase that its rank measured in other steps has zero there.
        """
        if phase is Phase.RESIDUAL:
            rest = self.body()
            for part in IN_BODY:
                rest = rest - np.nan_to_num(self._clocked(part.value))
            return np.maximum(rest - np.nan_to_num(self._clocked("graph")), 0.0)
        return self._with_zeros(self._clocked(phase.value))

    def body(self) -> Floats:
        """Returns the step without its input wait."""
        return self._clocked("body")

    def step(self) -> Floats:
        """Returns the whole step, input wait plus body, on the clock of the means; NaN where it was
        not timed on it.

        On the host's clock steps on a GPU come in bursts, because the host runs ahead of the GPU
        until its queue is full; only their mean is right.
        """
        if self.clocks.steps == self.clocks.means:
            return self.single_steps
        return self.body() + np.nan_to_num(self._clocked("input"))

    def longest_body_s(self) -> float | None:
        """Returns the longest step without its input wait, on the host's clock; `None` where only
        means of some steps are known."""
        bodies = self.field("body_ns")
        if self.folded or not np.isfinite(bodies).any():
            return None
        return float(np.nanmax(bodies))

    def outside(self) -> Floats:
        """Returns the time before the step that is neither its input wait nor evaluation nor a
        checkpoint, on the host's clock."""
        left = self.field("wall_ns")
        for name in (Phase.INPUT.value, "body", *IN_BETWEEN):
            left = left - np.nan_to_num(self.field(f"{name}_ns"))
        return np.maximum(left, 0.0)

    def in_rest(self, name: str) -> Floats:
        """Returns the host's time for one activity, limited to the step's residual."""
        return np.minimum(self.field(name), self.phase(Phase.RESIDUAL))

    def idle_for_the_host(self) -> Floats:
        """Returns how long the GPU waited for data or for the host between its phases.

        Where that was not measured, as in old records, the whole residual is taken for it.
        """
        idle = self.field("gpu_idle_between_ns")
        rest = self.phase(Phase.RESIDUAL)
        waited = np.nan_to_num(self.phase(Phase.INPUT))
        return waited + np.where(np.isfinite(idle), idle, rest)

    def own(self) -> Floats:
        """Returns each rank's own time: the step without exposed communication."""
        return self.step() - np.nan_to_num(self._clocked(Phase.COMMUNICATION.value))

    def mean_by_rank(self, table: Floats) -> Floats:
        """Returns each rank's mean over the steps in which it was timed; zero for a rank without
        any."""
        counted = np.isfinite(table).astype(np.float64)
        if self.weights is not None and not counted[self.weights == 0].any():
            counted *= self.weights  # on the host's clock, steps without a weight have a time too
        sums = np.where(counted > 0, table, 0.0) * counted
        return np.asarray(sums.sum(axis=1) / np.maximum(counted.sum(axis=1), 1e-9))

    def median_excess_s(self, phase: Phase, rank: int, peers: Collection[int]) -> float | None:
        """Returns by how much longer a phase takes on a rank than on the median of its peers, in
        the median step; `None` where it was not measured on both sides."""
        table = self.phase(phase)
        of_peers = [row for row, each in enumerate(self.ranks) if each in peers]
        if rank not in self.ranks or not of_peers:
            return None
        excess = table[self.ranks.index(rank)] - known_median(table[of_peers], axis=0)
        found = float(known_median(excess, axis=0))
        return None if math.isnan(found) else found

    def weights_of(self, chosen: npt.NDArray[np.bool_]) -> Floats | None:
        """Returns how much each of some steps counts that were timed on every rank; `None`: all the
        same, as on the host's clock, on which every step is timed."""
        if self.weights is None or (self.weights[:, chosen] == 0).any():
            return None
        host_s = np.array([_step_s(rank.columns, "")[self.warmup :] for rank in self.rank_steps])
        found = timed_weights(host_s.mean(axis=0), chosen)
        return None if found is None else found[chosen]

    def over_ranks(self) -> Floats:
        """Returns each step's mean over the ranks that measured it; NaN where none did."""
        return mean_over_ranks(self.single_steps)

    def _clocked(self, name: str) -> Floats:
        return self.field(f"gpu_{name}_ns" if self.clock == "gpu" else f"{name}_ns")

    def _with_zeros(self, table: Floats) -> Floats:
        """Returns the table with zero in timed steps that lack what their rank measured in
        others."""
        missing = np.isnan(table)
        lacking = missing.sum(axis=1, keepdims=True)
        is_partial = (lacking > 0) & (lacking < table.shape[1])
        if not is_partial.any():  # as nearly always
            return table
        return np.where(missing & is_partial & np.isfinite(self.body()), 0.0, table)


def step_table(
    ranks: Sequence[RankRecords],
    complete: Sequence[RankSteps] | None = None,
    max_warmup: int | None = None,
) -> StepTable | None:
    """Returns the step table of these ranks; `None` where they share no complete step.

    `complete` are the ranks' complete steps. At most `max_warmup` of the first steps of training
    are warm-up; by default, a tenth.
    """
    found = [complete_steps(rank) for rank in ranks] if complete is None else complete
    if not found:
        return None
    common = reduce(_intersect, (steps.index for steps in found))
    if not len(common):
        return None
    shared = tuple(
        steps if len(steps.index) == len(common) else _select(steps, common) for steps in found
    )
    blocks = tuple(rank.blocks for rank in ranks)
    is_folded = any(len(each) for each in blocks)
    clocks, single_s, host_s = _single_steps(shared)
    warmup = 0
    if not is_folded:  # which happens after very many: their warm-up no longer weighs anything
        over_ranks = mean_over_ranks(single_s)
        known_s = np.where(np.isfinite(over_ranks), over_ranks, host_s)
        warmup = warmup_steps(known_s, min(rank.earlier_steps for rank in ranks), max_warmup)
        if clocks.means == "gpu":
            filled = tuple(with_long_steps(rank, warmup) for rank in shared)
            if any(new is not old for new, old in zip(filled, shared, strict=True)):
                shared = filled
                clocks, single_s, _ = _single_steps(shared)
    return StepTable(
        ranks=tuple(rank.rank.rank for rank in ranks),
        index=common,
        rank_steps=shared,
        older=tuple(_before(steps, int(common[0])) for steps in found) if is_folded else (),
        blocks=blocks,
        warmup=warmup,
        clocks=clocks,
        single_steps=single_s[:, warmup:],
        weights=_all_weights(shared, warmup) if clocks.means == "gpu" and not is_folded else None,
    )


def _all_weights(ranks: Sequence[RankSteps], warmup: int) -> Floats | None:
    """Returns the weights of every rank's steps; `None` where all count the same."""
    found: list[Floats | None] = []
    for rank in ranks:
        is_timed = rank.columns["gpu_body_ns"][warmup:] >= 0
        if is_timed.all() or not is_timed.any():  # as nearly always
            found.append(None)
        else:
            found.append(timed_weights(_step_s(rank.columns, "")[warmup:], is_timed))
    if all(each is None for each in found):
        return None
    steps = len(ranks[0].index) - warmup
    return np.array([np.ones(steps) if each is None else each for each in found])


def timed_weights(host_s: Floats, is_timed: npt.NDArray[np.bool_]) -> Floats | None:
    """Returns how much each step counts that the GPU timed, so that they represent all steps.

    Of short steps only some are timed. A rare long one among them, an evaluation that nobody
    recognised, would count as many times too much as steps are left out. The host has timed every
    step: by that, steps are sorted into kinds, each twice as long as the one before, and each kind
    counts as much among the timed steps as among all. A kind of which none was timed is represented
    by the next shorter one (but see `with_long_steps`). `None` where all count the same.
    """
    kinds = _kinds(host_s)
    if kinds is None:
        return None
    taken = np.bincount(kinds).astype(np.float64)
    timed = np.bincount(kinds[is_timed], minlength=len(taken)).astype(np.float64)
    for kind in range(len(taken) - 1, 0, -1):
        if not timed[kind]:
            taken[kind - 1] += taken[kind]
    if not timed[0]:
        return None  # of the usual steps none was timed: nothing represents them
    of_all = taken / len(kinds)
    of_timed = np.maximum(timed, 1.0) / timed.sum()
    return np.asarray(np.where(is_timed, (of_all / of_timed)[kinds], 0.0))


def _kinds(host_s: Floats) -> Ints | None:
    """Returns the kind of each step by its length on the host's clock: 0 for the usual ones, one
    more whenever it is twice as long. `None` where all are usual."""
    known = np.nan_to_num(host_s)
    limit_s = LONG_STEP * float(np.median(known))
    if limit_s <= 0 or known.max() <= limit_s:
        return None
    kinds = np.zeros(len(known), np.int64)
    is_long = known > limit_s
    kinds[is_long] = 1 + np.floor(np.log2(known[is_long] / limit_s)).astype(np.int64)
    return kinds


def with_long_steps(rank: RankSteps, warmup: int) -> RankSteps:
    """Returns a rank's steps with the host's times as those of the GPU in long steps of a kind of
    which the GPU timed none: a single step of seconds, as when a library tries out algorithms for a
    batch of another size, would be in no mean.

    A step is also long on the host where it waits for what the GPU has to do from earlier steps.
    Then all steps together take as long on both clocks, and nothing is missing.
    """
    steps = rank.columns
    host_s, gpu_s = _step_s(steps, "")[warmup:], _step_s(steps, "gpu_")[warmup:]
    is_timed = np.isfinite(gpu_s)
    kinds = None if is_timed.all() or not is_timed.any() else _kinds(host_s)
    weights = None if kinds is None else timed_weights(host_s, is_timed)
    if kinds is None or weights is None:
        return rank
    is_kind_timed = np.bincount(kinds[is_timed], minlength=int(kinds.max()) + 1) > 0
    is_missing = ~is_timed & ~is_kind_timed[kinds]
    if not is_missing.any():
        return rank
    mean_s = float(np.nansum(weights * gpu_s) / weights[is_timed].sum())
    missing_s = float(np.nansum(host_s - mean_s))
    if missing_s < MIN_MISSED_SHARE * float((host_s[is_missing] - mean_s).sum()):
        return rank
    chosen = warmup + np.flatnonzero(is_missing)
    table = steps.table.copy()
    for name in GPU_FIELDS:
        if name in steps.places and (on_host := name.removeprefix("gpu_")) in WIDE:
            table[steps.places[name], chosen] = steps[on_host][chosen]
    return RankSteps(rank.index, replace(steps, table=table))


def _single_steps(ranks: Sequence[RankSteps]) -> tuple[Clock, Floats, Floats]:
    """Returns the clocks, every rank's step times, and each step's mean over ranks on the host's
    clock."""
    steps = len(ranks[0].index)
    timed = [np.count_nonzero(rank.columns["gpu_body_ns"] >= 0) for rank in ranks]
    clocks = choose_clock(np.array(timed, np.float64), np.full(len(ranks), float(steps)))
    step_s, host_s = np.empty((len(ranks), steps)), np.zeros(steps)
    for row, rank in zip(step_s, ranks, strict=True):
        on_host_s = _step_s(rank.columns, "")
        host_s += np.where(np.isnan(on_host_s), 0.0, on_host_s)
        row[:] = _step_s(rank.columns, "gpu_") if clocks.steps == "gpu" else on_host_s
    return clocks, step_s, host_s / len(ranks)


def _step_s(columns: StepColumns, prefix: str) -> Floats:
    """Returns input wait plus body of each step on one clock; NaN where it was not measured."""
    body_ns = columns[f"{prefix}body_ns"]
    step_ns = np.maximum(columns[f"{prefix}input_ns"], 0) + body_ns
    return np.where(body_ns >= 0, step_ns * 1e-9, np.nan)


def mean_over_ranks(table: Floats) -> Floats:
    """The mean of each column over the ranks that measured it; NaN where none did."""
    measured = np.isfinite(table)
    counts = measured.sum(axis=0)
    if counts.min(initial=len(table)) == len(table):
        return np.asarray(table.mean(axis=0))
    sums = np.where(measured, table, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _before(steps: RankSteps, first: int) -> RankSteps:
    return steps.take(slice(0, int(np.searchsorted(steps.index, first))))


def _select(steps: RankSteps, common: Ints) -> RankSteps:
    positions = np.searchsorted(steps.index, common)
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):  # neighbours, as they mostly are: no copy
        return steps.take(slice(first, last + 1))
    return steps.take(positions)


def _intersect(left: Ints, right: Ints) -> Ints:
    if np.array_equal(left, right):
        return left
    return np.intersect1d(left, right, assume_unique=True)


def warmup_steps(step_s: npt.NDArray[np.float64], earlier: int = 0, most: int | None = None) -> int:
    """Returns how many of the leading steps are warm-up: clearly slower than those after them.

    Only an unbroken sequence of slow steps from the very first one counts, so that stalls which
    recur stay in the means. `step_s` may begin later than training did: `earlier` steps came before
    it. `most` is the largest number of warm-up steps since training began; by default a tenth.
    """
    if len(step_s) < MIN_STEPS_FOR_WARMUP:
        return 0
    by_default = math.ceil(len(step_s) * MAX_WARMUP_SHARE)
    most = (by_default if most is None else min(most, len(step_s) // 2)) - earlier
    if most <= 0:
        return 0
    later = step_s[most:][np.isfinite(step_s[most:])]
    if not len(later):
        return 0
    typical = float(np.median(later))
    spread = 1.4826 * float(np.median(np.abs(later - typical)))
    slow = step_s[:most] > max(CLEARLY_SLOWER * typical, typical + WARMUP_DEVIATIONS * spread)
    return most if slow.all() else int(np.argmin(slow))
