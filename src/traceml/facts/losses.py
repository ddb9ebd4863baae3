"""How the loss went: whether it stayed a number, and whether it jumped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.model import layout
from traceml.store.records import Metric, RankRecords

WINDOW = 20
"""Values before a jump that say what the loss usually is; with fewer nobody can say."""
JUMP = 3.0
"""Times the usual loss: a batch that is merely hard does not reach it. A jump that comes back must
also be so many times the largest before it: a loss that jumps now and then always did."""
JUMP_SPREADS = 6.0
"""Robust standard deviations of the logarithm: a loss that is noisy by nature (reinforcement
learning, adversarial training) jumps by factors all the time, and its own spread says so."""
BELL_MEDIAN, BELL_95 = 0.6745, 1.645
"""Where half of a bell curve's values, and 95 of 100, lie: in standard deviations."""
MATTERS = 0.05
"""Of what the loss was at first: a jump far below that is a loss that has all but vanished."""
LASTS = 10
"""Values after a jump that all stay high: the loss has not come back."""
NORM_RISE = 3.0
"""Times the usual gradient norm, for it to have risen before the loss was lost."""

_NOT_TRAINING = ("val", "eval", "test", "dev")


@dataclass(frozen=True, slots=True)
class Jump:
    """A value of the loss far above those before it."""

    step: int
    usual: float
    value: float
    lasts: bool
    """It stayed there, as far as the values go."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The loss, or a gradient norm, was no number."""

    name: str
    first_step: int
    count: int
    last_finite: float | None
    """The value before."""
    to_the_end: bool
    ranks: tuple[int, ...] = ()
    norm_before: float | None = None
    norm_usual: float | None = None
    """The gradient norm just before, and what it usually was, where it had risen first."""


@dataclass(frozen=True, slots=True)
class LossFacts:
    """The loss over the run, as far as it was looked at or logged."""

    values: int
    name: str = "loss"
    first: float | None = None
    last: float | None = None
    not_finite: NotFinite | None = None
    jumps: tuple[Jump, ...] = ()


@dataclass(frozen=True, slots=True)
class _Values:
    """One loss: step numbers counted from 1, and values."""

    name: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    rank: int | None = None
    first_lost_step: int | None = None
    """Where it is known although the value itself was thinned out."""


def loss_facts(ranks: Sequence[RankRecords], metrics: Sequence[Metric]) -> LossFacts | None:
    """What is known of the loss; `None` where it was neither seen nor logged."""
    seen = [found for rank in ranks if (found := _seen(rank)) is not None]
    logged = [_logged(metric) for metric in metrics if metric.history and "loss" in _low(metric)]
    training = [each for each in logged if not _is_for_evaluation(each.name)]
    main = seen[0] if seen else min(training, key=lambda each: len(each.name), default=None)
    norms = [_logged(m) for m in metrics if m.history and "norm" in _low(m)]
    watched = [*seen, *training, *norms] if main is not None else [*logged, *norms]
    lost = _not_finite(watched, norms)
    if main is None:
        return None if lost is None else LossFacts(0, lost.name, not_finite=lost)
    finite = main.values[np.isfinite(main.values)]
    return LossFacts(
        values=len(main.values),
        name=main.name,
        first=float(finite[0]) if len(finite) else None,
        last=float(main.values[-1]),
        not_finite=lost,
        jumps=_jumps(main),
    )


def _low(metric: Metric) -> str:
    return metric.name.lower()


def _is_for_evaluation(name: str) -> bool:
    return any(word in name.lower() for word in _NOT_TRAINING)


def _seen(rank: RankRecords) -> _Values | None:
    """The loss that `backward` was called on, at the steps at which it was looked at."""
    complete = (rank.steps["flags"] & layout.NO_STEP) == 0
    before = rank.earlier_steps + int(rank.blocks["complete_steps"].sum())
    numbers = before + np.cumsum(complete)
    looked = complete & ((rank.steps["flags"] & layout.StepFlag.LOSS_SEEN) != 0)
    if not looked.any():
        return None
    return _Values("loss", numbers[looked], rank.steps["loss"][looked], rank.rank.rank)


def _logged(metric: Metric) -> _Values:
    return _Values(
        metric.name,
        np.array([step for step, _ in metric.history], dtype=np.int64),
        np.array([value for _, value in metric.history], dtype=np.float64),
        first_lost_step=metric.first_not_finite_step,
    )


def _not_finite(every: Sequence[_Values], norms: Sequence[_Values]) -> NotFinite | None:
    """The one that was lost first; where all ranks lost it, all of them are named."""
    lost = [(step, each) for each in every if (step := _first_lost_step(each)) is not None]
    if not lost:
        return None
    step, first = min(lost, key=lambda found: found[0])
    before = first.values[(first.steps < step) & np.isfinite(first.values)]
    usual, just_before = _risen(norms, step)
    return NotFinite(
        name=first.name,
        first_step=step,
        count=max(1, int(np.count_nonzero(~np.isfinite(first.values)))),
        last_finite=float(before[-1]) if len(before) else None,
        to_the_end=not math.isfinite(float(first.values[-1])),
        ranks=tuple(sorted({each.rank for _, each in lost if each.rank is not None})),
        norm_usual=usual,
        norm_before=just_before,
    )


def _first_lost_step(each: _Values) -> int | None:
    lost = each.steps[~np.isfinite(each.values)]
    known = [int(step) for step in lost[:1]]
    if each.first_lost_step is not None:
        known.append(each.first_lost_step)
    return min(known, default=None)


def _risen(norms: Sequence[_Values], step: int) -> tuple[float | None, float | None]:
    """What a gradient norm usually was and just before a step, where it had clearly risen."""
    for norm in norms:
        finite = norm.values[(norm.steps < step) & np.isfinite(norm.values)]
        if len(finite) >= 3:
            usual, last = float(np.median(finite)), float(finite[-3:].max())
            if usual > 0 and last >= NORM_RISE * usual:
                return usual, last
    return None, None


def _jumps(loss: _Values) -> tuple[Jump, ...]:
    finite = np.isfinite(loss.values)
    steps, values = loss.steps[finite], loss.values[finite]
    if len(values) <= WINDOW or (values <= 0).any():
        return ()  # a loss that falls below zero has no level to jump from
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)[:-1]
    usual = np.median(windows, axis=1)
    times = values[WINDOW:] / usual
    most_before = np.maximum.accumulate(np.concatenate((np.ones(1), times)))[:-1]
    matters = MATTERS * float(np.median(values[:WINDOW]))
    found: list[Jump] = []
    end = 0
    for place in np.flatnonzero((times >= JUMP) & (values[WINDOW:] >= matters)).tolist():
        if place < end or not _is_out_of_line(windows[place], values[WINDOW + place]):
            continue
        jump, end = _describe(steps[WINDOW:], values[WINDOW:], place, float(usual[place]))
        if jump.lasts or times[place] >= JUMP * most_before[place]:
            found.append(jump)
    return tuple(found)


def _is_out_of_line(before: npt.NDArray[np.float64], value: float) -> bool:
    """Whether a value lies far outside the spread of those before it."""
    logarithms = np.log(before)
    centre = float(np.median(logarithms))
    middle = float(np.median(np.abs(logarithms - centre))) / BELL_MEDIAN
    upper = (float(np.percentile(logarithms, 95)) - centre) / BELL_95  # a long tail is noise too
    return math.log(value) - centre >= JUMP_SPREADS * max(middle, upper)


def _describe(
    steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64], position: int, usual: float
) -> tuple[Jump, int]:
    """The jump at a position, and the last position that belongs to it."""
    after = values[position : position + LASTS]
    low = np.flatnonzero(after < JUMP * usual)
    lasts = not len(low) and len(after) == LASTS
    high = after[: low[0]] if len(low) else after
    end = len(values) if lasts else position + len(high)
    return Jump(int(steps[position]), usual, float(high.max()), lasts), end
