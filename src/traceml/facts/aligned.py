"""Lines up the complete steps of all ranks: the steps that every rank has taken.

A rank's steps are numbered by complete step from 0, so an aborted step on one rank shifts nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import layout
from traceml.store.records import RankRecords

Ints = npt.NDArray[np.int64]

WIDE = tuple(name for name, kind in layout.STEP if kind == "q")
"""The 64-bit fields of a step record; they lie side by side at its beginning."""
COLUMNS = (*WIDE, "samples")


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


@dataclass(frozen=True, slots=True)
class Aligned:
    """The steps that all ranks share, and what lies before them where old steps are folded."""

    index: Ints
    ranks: tuple[RankSteps, ...]
    """One entry per rank, all with the same index."""
    older: tuple[RankSteps, ...]
    """Full-resolution steps before the shared ones; empty unless some rank's are folded."""
    blocks: tuple[npt.NDArray[Any], ...]

    @property
    def folded(self) -> bool:
        """Whether any rank's oldest steps are kept only as blocks."""
        return any(len(blocks) for blocks in self.blocks)


def complete_steps(records: RankRecords) -> RankSteps:
    """A rank's complete steps, numbered; neither aborted ones nor the tail."""
    steps = np.ascontiguousarray(records.steps)
    rows: Ints = np.ndarray(
        (len(steps), len(WIDE)), np.int64, steps, strides=(steps.dtype.itemsize, 8)
    )
    incomplete = (steps["flags"] & layout.NO_STEP) != 0
    folded, folded_complete = (
        int(records.blocks[name].sum()) for name in ("steps", "complete_steps")
    )
    index = _numbered(steps["sequence"], folded) - (folded - folded_complete)
    if not incomplete.any():
        return RankSteps(index, rows, steps["samples"])
    index -= np.cumsum(incomplete)
    return RankSteps(index, rows, steps["samples"]).take(np.flatnonzero(~incomplete))


def _numbered(sequence: npt.NDArray[np.uint64], folded: int) -> Ints:
    """Each record's number from 0; a rank that was started again counts on where it ended."""
    numbers = sequence.astype(np.int64) - 1
    if len(numbers):
        numbers += max(0, folded - int(numbers[0]))
    for restart in np.flatnonzero(numbers[1:] <= numbers[:-1]) + 1:
        numbers[restart:] += numbers[restart - 1] + 1 - numbers[restart]
    return numbers


def align(
    ranks: Sequence[RankRecords], complete: Sequence[RankSteps] | None = None
) -> Aligned | None:
    """The steps that all these ranks share; `None` where there is none.

    `complete` are their complete steps, where they are at hand.
    """
    found = [complete_steps(rank) for rank in ranks] if complete is None else complete
    if not found:
        return None
    common = reduce(_intersect, (steps.index for steps in found))
    if not len(common):
        return None
    aligned = Aligned(
        index=common,
        ranks=tuple(
            steps if len(steps.index) == len(common) else _only(steps, common) for steps in found
        ),
        older=(),
        blocks=tuple(rank.blocks for rank in ranks),
    )
    if not aligned.folded:
        return aligned
    older = tuple(
        steps.take(slice(0, int(np.searchsorted(steps.index, common[0])))) for steps in found
    )
    return Aligned(aligned.index, aligned.ranks, older, aligned.blocks)


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
