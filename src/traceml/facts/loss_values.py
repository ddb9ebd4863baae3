"""The values of a loss: as the records have them, or as the script logged them, on one scale.

A loop that accumulates gradients calls `backward` once per micro-batch, and many frameworks divide
the loss by the number of micro-batches in the window first. The last window of an epoch is often
shorter, and then the numbers jump though the loss does not. Nobody says whether a loss is divided:
it is inferred where windows differ in size, and otherwise left as it was passed to `backward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store.records import LoggedMetric, RankRecords, SeenLoss
from traceml.store.step_records import is_incomplete, record_numbers

CLEARER = 0.5
"""Of the change of the loss from one window size to another: the division has to explain all but
this much of it."""

SURELY_BEFORE = 20
"""Values. Ranks that log one loss side by side do not get further apart: a step that was logged so
many values ago, and is no earlier one, is of an earlier attempt."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class LossScale(str, Enum):
    """How the values relate to what the script passed to `backward`, or logged."""

    AS_GIVEN = "as_given"
    """As the script gave them."""
    DIVIDED = "divided"
    """The script divides the loss by the number of micro-batches; multiplied by it again here."""


@dataclass(frozen=True, slots=True)
class LossValues:
    """One loss: its values in order, with their steps, counted from 1 or numbered by the script."""

    name: str
    steps: Ints
    values: Floats
    rank: int | None = None
    """`None` for a loss that the script logged."""
    backwards: Ints | None = None
    """Backward passes of each step, 0 where not known; `None` for a logged loss."""
    scale: LossScale = LossScale.AS_GIVEN
    first: float | None = None
    """The first finite value of the run, even if `values` no longer holds it."""
    first_lost_step: int | None = None
    """The first step whose loss was not finite, even if `values` no longer holds it."""
    before_lost: SeenLoss | None = None
    """The last finite value before that step, where it is known."""

    @property
    def usual_backwards(self) -> int | None:
        """The median number of backward passes per step; `None` where not known."""
        known = () if self.backwards is None else self.backwards[self.backwards > 0]
        return int(np.median(known)) if len(known) else None

    def by_attempt(self, firsts: Sequence[int]) -> list[LossValues]:
        """Returns the values of each attempt of the ranks; at least one part.

        `firsts` are the numbers, from 0, of the attempts' first steps. The script's own numbers are
        not known to be those: where they begin again, another attempt began.
        """
        if self.rank is None:
            steps = self.steps
            earlier = steps[np.maximum(np.arange(len(steps)) - SURELY_BEFORE, 0)]
            begins_again = (np.diff(steps, prepend=steps[:1]) < 0) & (steps <= earlier)
            cuts = np.flatnonzero(begins_again)
        else:
            cuts = np.searchsorted(self.steps, np.array(firsts[1:], np.int64) + 1)
        edges = [0, *cuts.tolist(), len(self.steps)]
        return [self._part(slice(*each)) for each in pairwise(edges)]

    def _part(self, part: slice) -> LossValues:
        backwards = None if self.backwards is None else self.backwards[part]
        return replace(self, steps=self.steps[part], values=self.values[part], backwards=backwards)


def logged_loss(metric: LoggedMetric) -> LossValues:
    """Returns a loss that the script logged as a metric."""
    return LossValues(
        metric.name,
        np.array([step for step, _ in metric.history], dtype=np.int64),
        np.array([value for _, value in metric.history], dtype=np.float64),
        first=metric.first,
        first_lost_step=metric.first_not_finite_step,
    )


def seen_loss(rank: RankRecords) -> LossValues | None:
    """Returns the loss that a rank called `backward` on, at the steps at which it was read."""
    is_read = (rank.steps["flags"] & int(record_layout.StepFlag.LOSS_SEEN)) != 0
    if not is_read.any():
        return None
    complete = ~is_incomplete(rank.steps)
    numbers = record_numbers(rank) + 1
    lags = np.where(is_read, np.maximum(rank.steps["loss_lag"].astype(np.int64), 0), 0)
    # A step that was not completed counts where its loss was lost: that may be why it was not.
    at = np.flatnonzero(is_read & (complete | (lags > 0) | ~np.isfinite(rank.steps["loss"])))
    if not len(at):
        return None
    steps, backwards = _whose(rank, numbers, at, lags[at])
    order = np.argsort(steps, kind="stable")
    known = rank.losses
    found = LossValues(
        "loss",
        steps[order],
        rank.steps["loss"][at][order],
        rank.rank.rank,
        backwards[order],
        first_lost_step=None if known.first_lost is None else known.first_lost.step,
        before_lost=known.before_lost,
    )
    return _rescaled(found, None if known.first is None else known.first.value)


def _whose(rank: RankRecords, numbers: Ints, at: Ints, lags: Ints) -> tuple[Ints, Ints]:
    """Returns the steps that the recorded losses belong to, and their numbers of backward
    passes."""
    sequence = rank.steps["sequence"].astype(np.int64)
    place = np.maximum(at - lags, 0)
    is_here = (at >= lags) & (sequence[place] == sequence[at] - lags)  # no other life's, none lost
    steps = np.where(is_here, numbers[place], np.maximum(numbers[at] - lags, 1))
    return steps, np.where(is_here, np.maximum(rank.steps["micro_batches"][place], 0), 0)


def _rescaled(loss: LossValues, first: float | None) -> LossValues:
    """Returns the loss of whole steps, where the script divides it by the number of
    micro-batches."""
    backwards = loss.backwards
    if backwards is None or not is_divided(loss.values, backwards):
        return replace(loss, first=first)
    usual = loss.usual_backwards or 1
    times = np.where(backwards > 0, backwards, usual)
    before = loss.before_lost
    return replace(
        loss,
        values=loss.values * times,
        scale=LossScale.DIVIDED,
        first=None if first is None else first * usual,
        before_lost=None if before is None else replace(before, value=before.value * usual),
    )


def is_divided(values: Floats, backwards: Ints) -> bool:
    """Returns whether the loss changes with the number of backward passes as a divided loss
    does."""
    known = np.isfinite(values) & (values != 0) & (backwards > 0)
    sizes, logarithms = backwards[known], np.log(np.abs(values[known]))
    changes = np.flatnonzero(sizes[1:] != sizes[:-1])
    if not len(changes):
        return False
    change = logarithms[changes + 1] - logarithms[changes]
    explained = np.log(sizes[changes] / sizes[changes + 1])
    rest, whole = np.median(np.abs(change - explained)), np.median(np.abs(change))
    return bool(rest < CLEARER * whole)
