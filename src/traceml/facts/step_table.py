"""The one table of a run's steps: every number about step time is a reduction of it.

It holds the complete steps that all ranks have taken: a row per rank, a column per step. What is
decided here is decided once: how steps are numbered, which clock they are taken on, which of them
are warm-up, and what a step without a phase spent on it. `facts/sums.py` adds the table up by rank
and by block, `facts/times.py` makes means of such sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from traceml.facts.warmup import warmup_steps
from traceml.model.phase import IN_BETWEEN, IN_BODY, Phase
from traceml.store.records import RankRecords
from traceml.store.step_records import WIDE, incomplete_so_far, is_incomplete, wide_fields

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COLUMNS = (*WIDE, "samples")
MAJORITY = 0.5
"""Of steps or ranks: what more than this share of them has stands for all of them."""
MIN_TIMED_STEPS = 5
"""Short steps are timed on the GPU now and then; so many of them stand for the rest."""


class Clock(NamedTuple):
    """Whose clock times are taken on: `gpu` or `cpu`."""

    parts: str
    """For means and phases."""
    steps: str
    """For single steps: the host's clock where too few steps were timed on the GPU."""


def choose_clock(timed: Floats, taken: Floats) -> Clock:
    """The GPU's own clock where enough steps of every rank have been timed on it, else the host's.

    `timed` and `taken` have an entry per rank: how many of its steps have a time on the GPU, and
    how many there are.
    """
    mostly = bool((timed > MAJORITY * taken).all())
    enough = mostly or bool((timed >= MIN_TIMED_STEPS).all())
    return Clock("gpu" if enough else "cpu", "gpu" if mostly else "cpu")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The complete steps of one rank at full resolution."""

    index: Ints
    """Which complete step of the rank each row is, from 0."""
    rows: Ints
    """A row per step, a column per field of `WIDE`; -1 is "not measured"."""
    samples: npt.NDArray[np.int32]

    def take(self, chosen: Ints | slice) -> RankSteps:
        """Only these rows."""
        return RankSteps(self.index[chosen], self.rows[chosen], self.samples[chosen])


def complete_steps(records: RankRecords) -> RankSteps:
    """A rank's complete steps, numbered; neither aborted ones nor the tail.

    An aborted step on one rank therefore shifts nobody.
    """
    steps = np.ascontiguousarray(records.steps)
    found = RankSteps(record_numbers(records), wide_fields(steps), steps["samples"])
    incomplete = is_incomplete(steps)
    return found.take(np.flatnonzero(~incomplete)) if incomplete.any() else found


def record_numbers(records: RankRecords) -> Ints:
    """Which complete step of the run each of a rank's records is, from 0.

    An incomplete record has the number of the complete step that follows it; a step that was lost
    keeps its number, and so do those after it.
    """
    folded, folded_complete = (
        int(records.blocks[name].sum()) for name in ("steps", "complete_steps")
    )
    numbers = _counted_on(records.steps["sequence"], folded) - (folded - folded_complete)
    return numbers - incomplete_so_far(records.steps)


def _counted_on(sequence: npt.NDArray[np.uint64], folded: int) -> Ints:
    """Each record's number from 0; a rank that was started again counts on where it ended."""
    numbers = sequence.astype(np.int64) - 1
    if len(numbers):
        numbers += max(0, folded - int(numbers[0]))
    for restart in np.flatnonzero(numbers[1:] <= numbers[:-1]) + 1:
        numbers[restart:] += numbers[restart - 1] + 1 - numbers[restart]
    return numbers


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps that all ranks share, and what lies before them where old steps are folded.

    The tables that its methods return have a row per rank and a column per step after warm-up, in
    seconds; NaN is "not measured".
    """

    ranks: tuple[int, ...]
    """The global rank of each row."""
    index: Ints
    """Which complete step of the run each shared step is, from 0; warm-up included."""
    rank_steps: tuple[RankSteps, ...]
    """One entry per rank, all with the same index."""
    older: tuple[RankSteps, ...]
    """Full-resolution steps before the shared ones; empty unless some rank's are folded."""
    blocks: tuple[npt.NDArray[Any], ...]
    warmup: int
    """How many of the shared steps are warm-up, and in no mean."""
    clocks: Clock
    single_steps: Floats
    """Input wait and body of each step after warm-up, on the clock for single steps."""

    @property
    def clock(self) -> str:
        """The clock that means and phases are taken on."""
        return self.clocks.parts

    @property
    def folded(self) -> bool:
        """Whether any rank's oldest steps are kept only as blocks."""
        return any(len(blocks) for blocks in self.blocks)

    @property
    def numbers(self) -> Ints:
        """The number of each column's step, counted from 1."""
        return self.index[self.warmup :] + 1

    def field(self, name: str) -> Floats:
        """One field of the record, as it was measured."""
        column = WIDE.index(name)
        table = np.stack([rank.rows[self.warmup :, column] for rank in self.rank_steps])
        return np.where(table >= 0, table * 1e-9, np.nan)

    def phase(self, phase: Phase) -> Floats:
        """One phase on the run's clock; the residual is what the others leave of the body.

        In a step without a phase that its rank has measured in others, the phase took no time.
        """
        if phase is Phase.RESIDUAL:
            rest = self.body()
            for part in IN_BODY:
                rest = rest - np.nan_to_num(self._clocked(part.value))
            return np.maximum(rest - np.nan_to_num(self._clocked("graph")), 0.0)
        return self._with_zeros(self._clocked(phase.value))

    def body(self) -> Floats:
        """The step without its input wait."""
        return self._clocked("body")

    def step(self) -> Floats:
        """The whole step: input wait and body."""
        return self.body() + np.nan_to_num(self._clocked("input"))

    def outside(self) -> Floats:
        """What passed before the step and is neither its input wait, evaluation nor a checkpoint;
        on the host's clock."""
        left = self.field("wall_ns")
        for name in (Phase.INPUT.value, "body", *IN_BETWEEN):
            left = left - np.nan_to_num(self.field(f"{name}_ns"))
        return np.maximum(left, 0.0)

    def in_rest(self, name: str) -> Floats:
        """What the host spent on something, as far as the step's rest has room for it."""
        return np.minimum(self.field(name), self.phase(Phase.RESIDUAL))

    def own(self) -> Floats:
        """What each rank itself took: the step without exposed communication."""
        return self.step() - np.nan_to_num(self._clocked(Phase.COMMUNICATION.value))

    def over_ranks(self) -> Floats:
        """Each single step's mean over the ranks that measured it; NaN where none did."""
        return _mean_over_ranks(self.single_steps)

    def _clocked(self, name: str) -> Floats:
        return self.field(f"gpu_{name}_ns" if self.clock == "gpu" else f"{name}_ns")

    def _with_zeros(self, table: Floats) -> Floats:
        """Zero in the timed steps that lack what their rank has measured in others."""
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
    """The steps that all these ranks share; `None` where there is none.

    `complete` are their complete steps, where they are at hand. At most `max_warmup` of the first
    steps of training are warm-up; by default, a tenth.
    """
    found = [complete_steps(rank) for rank in ranks] if complete is None else complete
    if not found:
        return None
    common = reduce(_intersect, (steps.index for steps in found))
    if not len(common):
        return None
    shared = tuple(
        steps if len(steps.index) == len(common) else _only(steps, common) for steps in found
    )
    blocks = tuple(rank.blocks for rank in ranks)
    is_folded = any(len(each) for each in blocks)
    clocks, single_s, host_s = _single_steps(shared)
    warmup = 0
    if not is_folded:  # which happens after very many: their warm-up no longer weighs anything
        over_ranks = _mean_over_ranks(single_s)
        known_s = np.where(np.isfinite(over_ranks), over_ranks, host_s)
        warmup = warmup_steps(known_s, min(rank.earlier_steps for rank in ranks), max_warmup)
    return StepTable(
        ranks=tuple(rank.rank.rank for rank in ranks),
        index=common,
        rank_steps=shared,
        older=tuple(_before(steps, int(common[0])) for steps in found) if is_folded else (),
        blocks=blocks,
        warmup=warmup,
        clocks=clocks,
        single_steps=single_s[:, warmup:],
    )


_TIMED = ("input_ns", "body_ns", "gpu_input_ns", "gpu_body_ns")
_TIMED_COLUMNS = [WIDE.index(name) for name in _TIMED]


def _single_steps(ranks: Sequence[RankSteps]) -> tuple[Clock, Floats, Floats]:
    """The clocks; every step of every rank; each step's mean over ranks on the host's clock."""
    stack = np.empty((len(_TIMED), len(ranks), len(ranks[0].index)))
    for position, steps in enumerate(ranks):
        stack[:, position] = steps.rows[:, _TIMED_COLUMNS].T
    cpu_input, cpu_body, gpu_input, gpu_body = stack
    taken = np.full(len(ranks), float(gpu_body.shape[1]))
    clocks = choose_clock((gpu_body >= 0).sum(axis=1).astype(np.float64), taken)
    waited, body = (gpu_input, gpu_body) if clocks.steps == "gpu" else (cpu_input, cpu_body)
    unmeasured = body < 0
    step_s: Floats = (np.maximum(waited, 0) + body) * 1e-9
    step_s[unmeasured] = np.nan
    host_s = ((np.maximum(cpu_input, 0) + cpu_body) * 1e-9).mean(axis=0)
    return clocks, step_s, host_s


def _mean_over_ranks(table: Floats) -> Floats:
    measured = np.isfinite(table)
    counts = measured.sum(axis=0)
    if counts.min(initial=len(table)) == len(table):
        return np.asarray(table.mean(axis=0))
    sums = np.where(measured, table, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _before(steps: RankSteps, first: int) -> RankSteps:
    return steps.take(slice(0, int(np.searchsorted(steps.index, first))))


def _only(steps: RankSteps, common: Ints) -> RankSteps:
    positions = np.searchsorted(steps.index, common)
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):  # neighbours, as they mostly are: no copy
        return steps.take(slice(first, last + 1))
    return steps.take(positions)


def _intersect(left: Ints, right: Ints) -> Ints:
    if np.array_equal(left, right):
        return left
    return np.intersect1d(left, right, assume_unique=True)
