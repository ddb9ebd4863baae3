"""Where a series of runs changes its level: binary segmentation with a permutation test.

The unit is the version of the code with the mean of its runs, because runs that are made one after
the other often share the machine's state; with few versions it is the run. A segment is divided
where that explains most of the variance: at one place, or at two with a stretch between them, so
that a slowdown which was mended later is found as well. The test is whether units in a random order
would be explained as well by their best division: under "no change" that is exact for any
distribution of the noise, whose size comes from the runs themselves. Runs of the same code are
never divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import numpy as np
import numpy.typing as npt

from traceml.compare.statistics import between_groups, mean_error
from traceml.compare.students_t import CONFIDENCE, reach, together

LEVEL = 0.01
"""Series without any change in which one is found; many series are looked at again and again."""
PERMUTATIONS = 1999
MIN_RUNS = 12
"""The smallest number of units that is judged. With fewer, hardly any order is unlikely enough by
chance: of the orders of five and five, 2 of 252 keep them apart; of six and six, 2 of 924."""
MIN_SEGMENT_RUNS = 2
"""One run that is different is an outlier."""
RESAMPLINGS = 400
MIN_CHANGE = 0.01
"""As a share: a smaller change is not worth a search, however sure it is."""

_Numbers = npt.NDArray[np.float64]
_SEED = 2026  # the same runs have the same answer


@dataclass(frozen=True, slots=True)
class StableStretch:
    """A stretch of runs without a change."""

    first: int
    end: int
    """The place after its last run."""
    mean: float
    """Geometric where all values of the series are positive, else arithmetic."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change between two neighbouring levels."""

    place: int
    """The first run after it."""
    earliest: int
    latest: int
    """The 95 % interval of that place."""
    before: float
    after: float
    difference: float
    difference_interval: tuple[float, float]
    ratio: float | None
    """After by before, with its 95 % interval; `None` where not all values are positive."""
    ratio_interval: tuple[float, float] | None
    p: float
    """Of the test that found it: the share of random orders that look at least as divided."""


def find_changes(
    values: Sequence[float], codes: Sequence[int], min_change: float = MIN_CHANGE
) -> list[ChangePoint]:
    """Returns the changes of a series in their order.

    `codes` numbers the version of the code of each run; neighbours of the same number are never
    divided. `min_change` is the smallest change that counts, as a share of the level before.
    """
    starts = _units(codes)
    if len(starts) == len(values):
        return _find_changes(values, codes, min_change)
    means = [level.mean for level in _stretches(values, [*starts, len(values)])]
    found = _find_changes(means, range(len(means)), min_change)
    return [
        replace(
            change,
            place=starts[change.place],
            earliest=starts[change.earliest],
            latest=starts[change.latest],
        )
        for change in found
    ]


def _units(codes: Sequence[int]) -> list[int]:
    """Returns where each unit of the series begins: each version of the code where these are
    enough, else each run."""
    starts = [n for n, code in enumerate(codes) if n == 0 or code != codes[n - 1]]
    return starts if len(starts) >= MIN_RUNS else list(range(len(codes)))


def _find_changes(
    values: Sequence[float], codes: Sequence[int], min_change: float
) -> list[ChangePoint]:
    if len(values) < MIN_RUNS or max(values) == min(values):
        return []
    is_ratio = min(values) > 0
    scaled = np.log(values) if is_ratio else np.asarray(values, dtype=np.float64)
    allowed = np.array(
        [0, *(n for n in range(1, len(values)) if codes[n] != codes[n - 1]), len(values)]
    )
    found = dict(_divide(scaled, allowed, 0, len(values), np.random.default_rng(_SEED), LEVEL))
    places = sorted(found)
    while places:
        changes = [
            _change(values, scaled, allowed, around, found[around[1]], is_ratio)
            for around in _neighbours(places, len(values))
        ]
        weak = [change for change in changes if not _is_clear(change, min_change)]
        if not weak:
            return changes
        # One at a time, the least of them first: without it its neighbours have more runs.
        places.remove(min(weak, key=lambda change: abs(change.difference)).place)
    return []


def levels(values: Sequence[float], changes: Sequence[ChangePoint]) -> list[StableStretch]:
    """Returns the stretches between changes; their means are over runs."""
    return _stretches(values, [0, *(change.place for change in changes), len(values)])


def _stretches(values: Sequence[float], ends: Sequence[int]) -> list[StableStretch]:
    is_ratio = min(values, default=0.0) > 0
    return [
        StableStretch(first, end, _centre(values[first:end], is_ratio))
        for first, end in pairwise(ends)
        if end > first
    ]


def _neighbours(places: Sequence[int], length: int) -> Iterator[tuple[int, int, int]]:
    """Yields for each change where the level before it begins, itself, and where the next one
    ends."""
    ends = [0, *places, length]
    for n, place in enumerate(places, start=1):
        yield ends[n - 1], place, ends[n + 1]


def _divide(
    scaled: _Numbers,
    allowed: npt.NDArray[np.int64],
    first: int,
    end: int,
    random: np.random.Generator,
    level: float,
) -> Iterator[tuple[int, float]]:
    """Yields the places at which a part of the series is divided, each with its p-value.

    Each way to divide it has half of the level. The pieces of a part share its level, so that more
    changes are no more often wrong.
    """
    inside = allowed[(allowed >= first) & (allowed <= end)] - first
    cuts = np.unique(np.concatenate(([0], inside, [end - first])))
    part = scaled[first:end]
    if np.ptp(part) == 0:
        return
    centred = part - part.mean()
    for arcs in (_Arcs.from_the_beginning(cuts), _Arcs.inside(cuts)):
        explained, (left, right) = arcs.best(centred)
        p = _permutation_p(centred, arcs, explained, random, level / 2)
        if p <= level / 2:
            break
    else:
        return
    places = [place for place in (left, right) if 0 < place < end - first]
    for place in places:
        yield first + place, p
    ends = [0, *places, end - first]
    for begin, stop in pairwise(ends):
        share = level / (len(ends) - 1)
        yield from _divide(scaled, allowed, first + begin, first + stop, random, share)


@dataclass(frozen=True, slots=True)
class _Arcs:
    """All pairs of places between which a part of the series may have a level of its own."""

    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    weight: _Numbers
    """What the squared sum over the arc of a series around zero is multiplied by to get the
    variance that the division explains."""

    @classmethod
    def from_the_beginning(cls, places: npt.NDArray[np.int64]) -> _Arcs:
        """Returns the arcs that begin the part: one place divides it."""
        return cls._of(places[:1].repeat(len(places)), places, int(places[-1]))

    @classmethod
    def inside(cls, places: npt.NDArray[np.int64]) -> _Arcs:
        """Returns the arcs that leave something on both sides: two places divide it."""
        first, second = np.triu_indices(len(places) - 2, k=1)
        return cls._of(places[1:-1][first], places[1:-1][second], int(places[-1]))

    @classmethod
    def _of(cls, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], length: int) -> _Arcs:
        """Returns those of the arcs that leave enough units in every piece."""
        inside = right - left
        is_free = (
            (inside >= MIN_SEGMENT_RUNS)
            & ((left == 0) | (left >= MIN_SEGMENT_RUNS))
            & (length - right >= MIN_SEGMENT_RUNS)
        )
        left, right, inside = left[is_free], right[is_free], inside[is_free]
        return cls(left, right, length / (inside * (length - inside)))

    def best(self, centred: _Numbers) -> tuple[float, tuple[int, int]]:
        """Returns how much variance the best division explains, and its two places."""
        if not len(self.left):
            return 0.0, (0, 0)
        sums = np.concatenate(([0.0], np.cumsum(centred)))
        explained = (sums[self.right] - sums[self.left]) ** 2 * self.weight
        at = int(np.argmax(explained))
        return float(explained[at]), (int(self.left[at]), int(self.right[at]))


def _permutation_p(
    centred: _Numbers, arcs: _Arcs, explained: float, random: np.random.Generator, level: float
) -> float:
    """Returns the share of random orders that are explained as well; it stops once that is clearly
    more than the level."""
    if not explained:
        return 1.0
    at_least, enough = 0, math.ceil(level * (PERMUTATIONS + 1))
    for tried in range(1, PERMUTATIONS + 1):
        best, _ = arcs.best(random.permutation(centred))
        at_least += best >= explained * (1 - 1e-9)
        if at_least >= enough:
            return (at_least + 1) / (tried + 1)
    return (at_least + 1) / (PERMUTATIONS + 1)


def _change(
    values: Sequence[float],
    scaled: _Numbers,
    allowed: npt.NDArray[np.int64],
    around: tuple[int, int, int],
    p: float,
    is_ratio: bool,
) -> ChangePoint:
    first, place, end = around
    a, b = values[first:place], values[place:end]
    before, after = _centre(a, is_ratio), _centre(b, is_ratio)
    estimate = between_groups(a, b) if is_ratio else None
    if estimate is not None:
        ratio_interval = (estimate.low, estimate.high)
        interval = (before * (estimate.low - 1), before * (estimate.high - 1))
    else:
        ratio_interval = None
        half = reach(together((mean_error(a), mean_error(b))), CONFIDENCE)
        interval = (after - before - half, after - before + half)
    earliest, latest = _place_interval(scaled, allowed, around)
    return ChangePoint(
        place=place,
        earliest=earliest,
        latest=latest,
        before=before,
        after=after,
        difference=after - before,
        difference_interval=interval,
        ratio=None if estimate is None else estimate.ratio,
        ratio_interval=ratio_interval,
        p=p,
    )


def _is_clear(change: ChangePoint, min_change: float) -> bool:
    low, high = change.difference_interval
    is_large = abs(change.difference) >= min_change * abs(change.before)
    return is_large and (low > 0 or high < 0)


def _place_interval(
    scaled: _Numbers, allowed: npt.NDArray[np.int64], around: tuple[int, int, int]
) -> tuple[int, int]:
    """Returns between which places 95 % of the changes of resampled runs are found.

    Runs are drawn from each level with replacement, and the place is estimated again.
    """
    first, place, end = around
    random = np.random.default_rng(_SEED)
    drawn = np.hstack(
        [
            random.choice(scaled[begin:stop], (RESAMPLINGS, stop - begin))
            for begin, stop in ((first, place), (place, end))
        ]
    )
    centred = drawn - drawn.mean(axis=1, keepdims=True)
    inside = allowed[(allowed > first) & (allowed < end)] - first
    sums = np.cumsum(centred, axis=1)[:, inside - 1]
    length = end - first
    best = inside[np.argmax(sums**2 * (length / (inside * (length - inside))), axis=1)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(best, [tail, 1 - tail], method="nearest") + first
    return min(int(low), place), max(int(high), place)


def _centre(values: Sequence[float], is_ratio: bool) -> float:
    return math.exp(fmean(map(math.log, values))) if is_ratio else fmean(values)
