"""Arms of live traffic: which one is better, by intervals that hold however often one looks.

A usual 95 % interval that is looked at every day excludes the truth sooner or later. A confidence
sequence holds at all times at once: one may look daily, and stop when it excludes zero.

Bounded outcomes (converted or not) get the empirical Bernstein sequence of Waudby-Smith and Ramdas
(2024, "Estimating means of bounded random variables by betting", theorem 2), which holds at every
sample size: of the outcomes of both arms in pairs, and of each arm by itself. Others get the normal
mixture of Robbins in its asymptotic form (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024,
"Time-uniform central limit theory", theorem 2.2), from a hundred outcomes per arm on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from traceml.compare.record import Status
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.model.metric_direction import direction_of, unknown_direction

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

ALPHA = 0.05
MAX_BET = 0.5
"""The largest weight of one outcome, as its authors recommend."""
MIN_OUTCOMES = 100
"""Per arm, before the asymptotic sequence says anything."""
TUNED_FOR = 1000
"""Outcomes at which the mixture is tightest; a constant, because it may not depend on the data."""
MAX_LOOKS = 400
"""Days that are listed; more than a year."""
EMPIRICAL_BERNSTEIN, MIXTURE = "empirical Bernstein", "asymptotic normal mixture"


@dataclass(frozen=True, slots=True)
class Arm:
    """The outcomes of one arm in the order in which they came, and the day of each (2026-11-16)
    where all are known."""

    name: str
    outcomes: Sequence[float]
    days: Sequence[str] = ()


class Look(Struct, frozen=True):
    """What was known at the end of a day."""

    day: str
    counts: tuple[int, int]
    """Outcomes so far: of the first arm, and of this one."""
    delta: float | None = None
    interval: tuple[float, float] | None = None


class ArmMean(Struct, frozen=True):
    """One arm by itself."""

    name: str
    count: int
    mean: float | None = None


class ArmDifference(Struct, frozen=True, kw_only=True):
    """One arm against the first."""

    status: str
    delta: float | None = None
    pct_change: float | None = None
    interval: tuple[float, float] | None = None
    """Holds the true difference at all times at once, in 95 of 100 such experiments; `None` before
    there are enough outcomes."""
    decided_on: str | None = None
    """The first day after which the interval excluded zero."""
    looks: tuple[Look, ...] = ()
    """By day, where the outcomes have one."""


class ArmsComparison(Struct, frozen=True, kw_only=True):
    """Live traffic: every arm against the first."""

    outcome: str
    higher_is_better: bool | None = None
    direction_from: str | None = None
    method: str
    bounds: tuple[float, float] | None = None
    """The range that an outcome can have; `None` where it is not known."""
    arms: tuple[ArmMean, ...]
    differences: dict[str, ArmDifference]


def compare_arms(
    arms: Sequence[Arm],
    outcome: str,
    bounds: tuple[float, float] | None = None,
    terms: Terms | None = None,
) -> ArmsComparison:
    """Returns every arm against the first one; `bounds` is the range that an outcome can have.

    Of outcomes that are all 0 or 1 that range is known. The error of 5 % is shared by all arms.
    """
    terms = terms or Terms()
    known = bounds or _known_bounds(arms)
    _refuse_outside(arms, known)
    direction = direction_of(outcome, terms.higher_is_better)
    if direction.higher_is_better is None and terms.fail_on:
        raise UsageError(unknown_direction(outcome))  # else a proven drop would pass the gate
    source = None
    if direction.higher_is_better is not None:
        source = "name" if direction.is_guessed else "user"
    alpha = ALPHA / max(1, len(arms) - 1)
    first = arms[0]
    return ArmsComparison(
        outcome=outcome,
        higher_is_better=direction.higher_is_better,
        direction_from=source,
        method=EMPIRICAL_BERNSTEIN if known else MIXTURE,
        bounds=known,
        arms=tuple(ArmMean(arm.name, len(arm.outcomes), _mean(arm.outcomes)) for arm in arms),
        differences={
            arm.name: _difference(first, arm, known, alpha, direction.higher_is_better, terms)
            for arm in arms[1:]
        },
    )


def _known_bounds(arms: Sequence[Arm]) -> tuple[float, float] | None:
    values = {value for arm in arms for value in arm.outcomes}
    return (0.0, 1.0) if values <= {0.0, 1.0} else None


def _refuse_outside(arms: Sequence[Arm], bounds: tuple[float, float] | None) -> None:
    if bounds is None:
        return
    if bounds[0] >= bounds[1]:
        raise UsageError(f"the range {bounds[0]:g} to {bounds[1]:g} is none; give LOW, then HIGH")
    for arm in arms:
        outside = [value for value in arm.outcomes if not bounds[0] <= value <= bounds[1]]
        if outside:
            raise UsageError(
                f"an outcome of {arm.name} is {outside[0]:g}, outside of the range {bounds[0]:g} "
                f"to {bounds[1]:g}; give the range that outcomes can have"
            )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _difference(
    first: Arm,
    other: Arm,
    bounds: tuple[float, float] | None,
    alpha: float,
    higher_is_better: bool | None,
    terms: Terms,
) -> ArmDifference:
    sequence = _Sequences(first, other, bounds, alpha)
    counts = len(first.outcomes), len(other.outcomes)
    interval = sequence.interval(*counts)
    looks = tuple(_looks(first, other, sequence))
    decided = next((look.day for look in looks if _excludes_zero(look.interval)), None)
    lhs, delta = _mean(first.outcomes), sequence.delta(*counts)
    return ArmDifference(
        status=_status(interval, delta, lhs, higher_is_better, terms).value,
        delta=delta,
        pct_change=100 * delta / abs(lhs) if delta is not None and lhs else None,
        interval=interval,
        decided_on=decided,
        looks=looks,
    )


def _looks(first: Arm, other: Arm, sequence: _Sequences) -> list[Look]:
    """Returns what was known after each day; empty where the days are not known."""
    if not first.days or not other.days:
        return []
    days = sorted({*first.days, *other.days})[-MAX_LOOKS:]
    found = []
    for day in days:
        counts = (_until(first.days, day), _until(other.days, day))
        found.append(Look(day, counts, sequence.delta(*counts), sequence.interval(*counts)))
    return found


def _until(days: Sequence[str], day: str) -> int:
    """Returns how many outcomes came until the end of a day."""
    return bisect_right(days, day)


def _excludes_zero(interval: tuple[float, float] | None) -> bool:
    return interval is not None and (interval[0] > 0 or interval[1] < 0)


def _status(
    interval: tuple[float, float] | None,
    delta: float | None,
    lhs: float | None,
    higher_is_better: bool | None,
    terms: Terms,
) -> Status:
    """Returns the verdict on one arm: what is shown to be within the tolerance, or within the
    regression that is allowed, is no change."""
    if interval is None or delta is None or lhs is None:
        return Status.INCONCLUSIVE
    better = terms.tolerance * abs(lhs)
    allowed = (terms.max_regression or 0.0) * abs(lhs)
    worse = better if terms.max_regression is None else allowed
    low, high = (-worse, better) if higher_is_better else (-better, worse)
    if higher_is_better is None:
        low, high = -better, better
    if low <= interval[0] and interval[1] <= high:
        return Status.NO_CHANGE
    if not _excludes_zero(interval) or higher_is_better is None:
        return Status.INCONCLUSIVE
    if (interval[0] > 0) is higher_is_better:
        return Status.IMPROVEMENT
    return Status.REGRESSION if abs(delta) > allowed else Status.INCONCLUSIVE


class _Sequences:
    """The confidence sequence of the difference of two arms, for any number of outcomes of each."""

    def __init__(
        self, first: Arm, other: Arm, bounds: tuple[float, float] | None, alpha: float
    ) -> None:
        import numpy as np

        self._arms = [np.asarray(arm.outcomes, dtype=float) for arm in (first, other)]
        self._alpha = alpha
        self._bounds = bounds
        if bounds is not None:
            # Two valid answers at half of the error each: their intersection is valid, too.
            self._by_arm = [scaled_sequence(each, bounds, alpha / 4) for each in self._arms]
            pairs = min(map(len, self._arms))
            width = bounds[1] - bounds[0]
            differences = self._arms[1][:pairs] - self._arms[0][:pairs]
            self._by_pair = scaled_sequence(differences, (-width, width), alpha / 2)

    def delta(self, first: int, other: int) -> float | None:
        """Returns the difference of the means of so many outcomes."""
        if not first or not other:
            return None
        return float(self._arms[1][:other].mean() - self._arms[0][:first].mean())

    def interval(self, first: int, other: int) -> tuple[float, float] | None:
        """Returns the interval after so many outcomes; `None` where they are too few."""
        if self._bounds is not None:
            return self._bounded(first, other)
        return mixture_interval(self._arms[0][:first], self._arms[1][:other], self._alpha)

    def _bounded(self, first: int, other: int) -> tuple[float, float] | None:
        """Returns the narrower limits of two: those of the first outcome of each arm paired, the
        second and so on, and those of each arm by itself, which lose less where one is larger."""
        pairs = min(first, other)
        if not pairs:
            return None
        (low_a, high_a), (low_b, high_b) = self._by_arm
        low, high = self._by_pair
        return (
            float(max(low[pairs - 1], low_b[other - 1] - high_a[first - 1])),
            float(min(high[pairs - 1], high_b[other - 1] - low_a[first - 1])),
        )


def scaled_sequence(
    values: Numbers, bounds: tuple[float, float], alpha: float
) -> tuple[Numbers, Numbers]:
    """Returns the limits of the mean after each value, of values in a known range."""
    low, high = bounds
    below, above = empirical_bernstein((values - low) / (high - low), alpha)
    return low + below * (high - low), low + above * (high - low)


def empirical_bernstein(values: Numbers, alpha: float) -> tuple[Numbers, Numbers]:
    """Returns the lower and the upper limit of the mean after each of these values in 0–1; all of
    them hold at once, but for a chance of `alpha`."""
    import numpy as np

    count = np.arange(1, len(values) + 1)
    mean = (0.5 + np.cumsum(values)) / (count + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    # A weight may depend on what came before only.
    mean_before = np.concatenate([[0.5], mean[:-1]])
    variance_before = np.concatenate([[0.25], variance[:-1]])
    surprise = math.log(2 / alpha)
    weight = np.sqrt(2 * surprise / (variance_before * count * np.log1p(count)))
    weight = np.minimum(weight, MAX_BET)
    spread = np.cumsum((values - mean_before) ** 2 * (-np.log1p(-weight) - weight))
    total = np.cumsum(weight)
    middle, reach = np.cumsum(weight * values) / total, (surprise + spread) / total
    lower = np.maximum.accumulate(np.clip(middle - reach, 0, 1))
    return lower, np.minimum.accumulate(np.clip(middle + reach, 0, 1))


def mixture_interval(a: Numbers, b: Numbers, alpha: float) -> tuple[float, float] | None:
    """Returns the interval of the difference of two means; `None` before `MIN_OUTCOMES` per arm."""
    if min(len(a), len(b)) < MIN_OUTCOMES:
        return None
    count = len(a) + len(b)
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    width = -2 * math.log(alpha)
    mixing = (width + math.log(width + 1)) / TUNED_FOR
    spread = count * mixing + 1
    reach = error * math.sqrt(2 * spread / (count * mixing) * math.log(math.sqrt(spread) / alpha))
    middle = float(b.mean() - a.mean())
    return middle - reach, middle + reach
