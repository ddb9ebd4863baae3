"""What happened to the loss: whether it stayed finite, and whether it jumped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from traceml.facts.loss_values import Floats, LossScale, LossValues, logged_loss, seen_loss
from traceml.store.records import LoggedMetric, RankRecords

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
"""Values after a jump that all stay high, and the last ones of all as well: the loss has not come
back."""
MAX_PLATEAU = 10_000
"""Values after a jump that are looked at: beyond it the loss is at home there."""
NORM_RISE = 3.0
"""Times the usual gradient norm, for it to have risen before the loss was lost."""
LOSS_RISE = 1000.0
"""Times the usual loss, for it to have grown before it was lost: training diverged, in whichever
layer a number then first became too large."""

_NOT_TRAINING = ("val", "eval", "test", "dev")
_NO_LOSS = ("scale", "weight")
"""A `loss_scale` is a GradScaler's."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A value of the loss far above those before it."""

    step: int
    usual: float
    value: float
    lasts: bool
    """Whether the loss stayed high to the end of the recorded values, as a finite number."""
    is_lost: bool = False
    """Whether it became NaN or infinite, and no usual value followed."""
    is_back: bool = True
    """Whether usual values followed; else it was high in the few values that were left."""
    was_restarted: bool = False
    """Whether it was high until the ranks were started again."""
    name: str = "loss"
    is_logged: bool = False


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The loss was NaN or infinite ("lost"); without any loss, a gradient norm that was."""

    name: str
    first_step: int
    """The first step of the last unbroken run of non-finite values if the values end in it;
    otherwise the first non-finite step."""
    earliest_step: int
    """The first non-finite step, whether the loss recovered or not."""
    count: int
    values: int
    last_finite: float | None
    """The last finite value before that …"""
    finite_step: int | None
    """… and its step: the loss became non-finite after it and at the latest at `first_step`."""
    to_the_end: bool
    lasts: bool
    """Whether it stayed non-finite to the end, and for longer than any stretch that it recovered
    from."""
    is_logged: bool = False
    """Whether the steps are numbered by the script, which may differ from TraceML's numbering."""
    is_norm: bool = False
    ranks: tuple[int, ...] = ()
    norm_before: float | None = None
    norm_usual: float | None = None
    """The gradient norm just before, and what it usually was, where it had risen first."""
    usual: float | None = None
    """What the loss usually was, where it had grown far above that before it was lost."""


@dataclass(frozen=True, slots=True)
class LossFacts:
    """The loss over the run, as far as it was read or logged."""

    values: int
    name: str = "loss"
    first: float | None = None
    last: float | None = None
    is_logged: bool = False
    """Whether the steps are numbered by the script, which may differ from TraceML's numbering."""
    scale: LossScale = LossScale.AS_GIVEN
    backwards: int | None = None
    """Backward passes of a usual step; `None` for a logged loss."""
    not_finite: NotFinite | None = None
    jumps: tuple[Jump, ...] = ()


def loss_facts(
    ranks: Sequence[RankRecords],
    metrics: Sequence[LoggedMetric],
    attempt_firsts: Sequence[int] = (),
) -> LossFacts | None:
    """Returns what is known about the loss; `None` where it was neither read nor logged.

    A loss that the script logs is preferred: the script knows what its loss means. With the steps
    `attempt_firsts`, from 0, ranks were started again: what the loss was before says nothing of
    what it should be since.
    """
    seen = [found for rank in ranks if (found := seen_loss(rank)) is not None]
    logged = [logged_loss(metric) for metric in metrics if metric.history and _is_loss(metric)]
    logged.sort(key=lambda each: len(each.name))
    training = [each for each in logged if not _is_for_evaluation(each.name)]
    main = next(iter([*training, *seen]), None)
    norms = [logged_loss(m) for m in metrics if m.history and "loss" not in m.name.lower()]
    lost = _not_finite(seen, training if main is not None else logged, norms)
    if main is None:
        return None if lost is None else LossFacts(0, lost.name, not_finite=lost)
    smoothest = next((each for each in [*training, *seen] if len(each.values) > WINDOW), main)
    finite = main.values[np.isfinite(main.values)]
    first = main.first if main.first is not None and math.isfinite(main.first) else None
    return LossFacts(
        values=len(main.values),
        name=main.name,
        first=float(finite[0]) if first is None and len(finite) else first,
        last=float(main.values[-1]),
        is_logged=main.rank is None,
        scale=main.scale,
        backwards=main.usual_backwards,
        not_finite=lost,
        jumps=_jumps(smoothest, attempt_firsts),
    )


def _is_loss(metric: LoggedMetric) -> bool:
    name = metric.name.lower()
    return "loss" in name and not any(word in name for word in _NO_LOSS)


def _is_for_evaluation(name: str) -> bool:
    return any(word in name.lower() for word in _NOT_TRAINING)


def _not_finite(
    seen: Sequence[LossValues], logged: Sequence[LossValues], norms: Sequence[LossValues]
) -> NotFinite | None:
    """Returns the loss that became non-finite for good, otherwise one that ever did, otherwise a
    norm.

    Losses are compared by step only within one rank: logged metrics have their own numbering.
    """
    found = [lost for each in logged if (lost := _lost(each)) is not None]
    by_rank = [lost for each in seen if (lost := _lost(each)) is not None]
    if by_rank:
        first = min(by_rank, key=lambda lost: (not lost.to_the_end, lost.first_step))
        found.insert(0, replace(first, ranks=tuple(n for lost in by_rank for n in lost.ranks)))
    if found:
        usual, before = _risen(norms)
        chosen = min(found, key=lambda lost: (not lost.lasts, not lost.to_the_end))
        return replace(chosen, norm_usual=usual, norm_before=before)
    in_norms = [replace(lost, is_norm=True) for each in norms if (lost := _lost(each)) is not None]
    return min(in_norms, key=lambda lost: not lost.lasts, default=None)


def _lost(each: LossValues) -> NotFinite | None:
    """Returns where one loss was NaN or infinite; `None` where it never was."""
    lost = ~np.isfinite(each.values)
    known = [int(step) for step in each.steps[lost][:1]]
    if each.first_lost_step is not None:
        known.append(each.first_lost_step)
    if not known:
        return None
    start, longest_before = _last_stretch(lost)
    to_the_end = start < len(lost)
    earliest = min(known)
    first = _stretch_step(each, start) if to_the_end else earliest
    before_step, before = _last_finite(each, first)
    return NotFinite(
        name=each.name,
        first_step=first,
        earliest_step=earliest,
        count=max(1, int(np.count_nonzero(lost))),
        values=len(each.values),
        last_finite=before,
        finite_step=before_step,
        usual=_grown_from(each, first, before),
        to_the_end=to_the_end,
        lasts=len(lost) - start > longest_before,
        is_logged=each.rank is None,
        ranks=() if each.rank is None else (each.rank,),
    )


def _last_finite(each: LossValues, first_lost: int) -> tuple[int | None, float | None]:
    """Returns the last finite value before a step, and its step."""
    there = np.flatnonzero((each.steps < first_lost) & np.isfinite(each.values))
    if len(there):
        return int(each.steps[there[-1]]), float(each.values[there[-1]])
    before = each.before_lost
    if before is not None and before.step < first_lost:
        return before.step, before.value
    return None, None


def _grown_from(each: LossValues, first_lost: int, last: float | None) -> float | None:
    """Returns the median of the finite losses before a step, where the last of them is far above;
    `None` where it is not, and of losses that may be negative, which have no level."""
    values = each.values[(each.steps < first_lost) & np.isfinite(each.values)]
    if last is None or len(values) < 2 or (values <= 0).any():
        return None
    usual = float(np.median(values[:-1]))
    return usual if last >= LOSS_RISE * usual else None


def _last_stretch(lost: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Returns where the last run of non-finite values begins, and the longest one before it."""
    finite = np.flatnonzero(~lost)
    stretches = np.diff(finite, prepend=-1) - 1
    return int(finite[-1]) + 1 if len(finite) else 0, int(stretches.max(initial=0))


def _stretch_step(each: LossValues, start: int) -> int:
    """Returns the step at which a run of non-finite values begins, even if its first values were
    thinned out."""
    step = int(each.steps[start])
    after = int(each.steps[start - 1]) if start else -1
    thinned = each.first_lost_step
    return thinned if thinned is not None and after < thinned < step else step


def _risen(norms: Sequence[LossValues]) -> tuple[float | None, float | None]:
    """Returns a gradient norm's usual value and its last finite one, where it clearly rose before.

    The norm becomes non-finite together with the loss, so their steps need not be compared.
    """
    for norm in norms:
        start, _ = _last_stretch(~np.isfinite(norm.values))
        finite = norm.values[:start][np.isfinite(norm.values[:start])]
        if start < len(norm.values) and len(finite) >= 3:
            usual, last = float(np.median(finite)), float(finite[-3:].max())
            if usual > 0 and last >= NORM_RISE * usual:
                return usual, last
    return None, None


def _jumps(loss: LossValues, attempt_firsts: Sequence[int]) -> tuple[Jump, ...]:
    """Returns the jumps of a loss, found within each attempt separately. Only a jump in the last
    attempt can stay high."""
    *before, last = loss.by_attempt(attempt_firsts)
    ended = (jump for each in before for jump in _jumps_within(replace(each, first_lost_step=None)))
    restarted = (
        replace(each, lasts=False, was_restarted=not (each.is_back or each.is_lost))
        for each in ended
    )
    return (*restarted, *_jumps_within(last))


def _jumps_within(loss: LossValues) -> tuple[Jump, ...]:
    finite = np.isfinite(loss.values)
    steps, values = loss.steps[finite], loss.values[finite]
    if len(values) <= WINDOW or (values <= 0).any():
        return ()  # a loss that falls below zero has no level to jump from
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)[:-1]
    usual = np.median(windows, axis=1)
    times = values[WINDOW:] / usual * _share_not_of_size(loss, finite)
    most_before = np.maximum.accumulate(np.concatenate((np.ones(1), times)))[:-1]
    matters = MATTERS * float(np.median(values[:WINDOW]))
    found: list[Jump] = []
    end = 0
    for place in np.flatnonzero((times >= JUMP) & (values[WINDOW:] >= matters)).tolist():
        if place < end or not _is_out_of_line(windows[place], values[WINDOW + place]):
            continue
        jump, end = _describe(steps[WINDOW:], values[WINDOW:], place, float(usual[place]))
        is_lost = not jump.is_back and _is_lost_after(loss, finite, jump.step)
        jump = replace(jump, is_lost=is_lost, lasts=jump.lasts and not is_lost)
        if jump.lasts or times[place] >= JUMP * most_before[place]:
            found.append(replace(jump, name=loss.name, is_logged=loss.rank is None))
    return tuple(found)


def _is_lost_after(loss: LossValues, finite: npt.NDArray[np.bool_], step: int) -> bool:
    """Returns whether the loss was NaN or infinite after a step."""
    thinned = loss.first_lost_step
    is_seen = bool((~finite[loss.steps > step]).any())
    return is_seen or (thinned is not None and thinned > step)


def _share_not_of_size(loss: LossValues, finite: npt.NDArray[np.bool_]) -> Floats | float:
    """Returns the part of each ratio that the number of micro-batches does not explain."""
    if loss.backwards is None:
        return 1.0
    sizes = loss.backwards[finite].astype(np.float64)
    usual = np.median(np.lib.stride_tricks.sliding_window_view(sizes, WINDOW)[:-1], axis=1)
    sizes = sizes[WINDOW:]
    known = (sizes > 0) & (usual > 0)
    ratio = np.divide(sizes, usual, out=np.ones_like(sizes), where=known)
    return np.asarray(np.minimum(ratio, 1 / ratio))


def _is_out_of_line(before: Floats, value: float) -> bool:
    """Returns whether a value lies far outside the spread of those before it."""
    logarithms = np.log(before)
    centre = float(np.median(logarithms))
    middle = float(np.median(np.abs(logarithms - centre))) / BELL_MEDIAN
    upper = (float(np.percentile(logarithms, 95)) - centre) / BELL_95  # a long tail is noise too
    return math.log(value) - centre >= JUMP_SPREADS * max(middle, upper)


def _describe(
    steps: npt.NDArray[np.int64], values: Floats, position: int, usual: float
) -> tuple[Jump, int]:
    """Returns the jump at a position, and the position after its last value."""
    after = values[position : position + MAX_PLATEAU]
    low = np.flatnonzero(after < JUMP * usual)
    high = after[: low[0]] if len(low) else after
    is_still_high = float(np.median(values[-LASTS:])) >= JUMP * usual
    lasts = len(high) >= LASTS and is_still_high
    end = len(values) if lasts else position + len(high)
    is_back = bool(len(low)) and not lasts
    return Jump(int(steps[position]), usual, float(high.max()), lasts, is_back=is_back), end
