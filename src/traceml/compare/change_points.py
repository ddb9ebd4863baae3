"""Where a series of runs changes its level: optimal partitions, tested by random series.

Along commits the unit is the version of the code with the mean of its runs, because runs that are
made one after the other often share the machine's state; in time it is the run. The series is
divided at the places with the smallest squared error, where each place costs a penalty. The penalty
rises until each place explains more than chance does: of series that are made of the residuals in
random order, with their autocorrelation, few have a stretch that stands out as much. The residuals
are those of the whole series, so that a level of three units is judged by the noise of all of them.
Runs of the same code are never divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean

import numpy as np
import numpy.typing as npt

from traceml.compare.statistics import between_groups, mean_error
from traceml.compare.students_t import CONFIDENCE, reach, together

LEVEL = 0.01
"""Series without any change in which one is found; many series are looked at again and again."""
PERMUTATIONS = 1000
AUTOCORRELATION = 0.2
"""What is assumed at the least between neighbours: a machine's state may last longer than a run,
and a dozen runs cannot show whether it did."""
MAX_AUTOCORRELATION = 0.9
PENALTY = 3.0
"""Of a place in the first partition, in variances of the noise and logarithms of the length. With
less than the test asks for, it keeps all changes; with far less it would fit the noise."""
MIN_RUNS = 12
"""The smallest number of units that is judged. With fewer, hardly any order is unlikely enough by
chance: of the orders of five and five, 2 of 252 keep them apart; of six and six, 2 of 924."""
MIN_SEGMENT_RUNS = 2
"""One run that is different is an outlier."""
RESAMPLINGS = 400
MIN_CHANGE = 0.01
"""As a share: a smaller change is not worth a search, however sure it is."""

_Numbers = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]
_SEED = 2026  # the same runs have the same answer
_BATCH = 100
_ONE_SIGMA = 0.6827
"""Of normal values, those that are nearer to their mean than their standard deviation."""
_MAX_TURN = 2
"""Runs of a version in a row where two versions alternate: `traceml bench` runs A B B A A B."""


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
    """Of the test that found it: the share of random series in which a stretch stands out as
    much."""


def find_changes(
    values: Sequence[float],
    codes: Sequence[int],
    min_change: float = MIN_CHANGE,
    started: Sequence[float] | None = None,
) -> list[ChangePoint]:
    """Returns the changes of a series in their order.

    `codes` numbers the version of the code of each run; neighbours of the same number are never
    divided. `min_change` is the smallest change that counts, as a share of the level before.
    `started` is when each run did, which shows whether two versions alternated.
    """
    starts = unit_starts(codes, started)
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


def unit_starts(codes: Sequence[int], started: Sequence[float] | None = None) -> list[int]:
    """Returns where each unit of the series begins: each version of the code, or each run where two
    versions alternated."""
    starts = [n for n, code in enumerate(codes) if n == 0 or code != codes[n - 1]]
    if len(starts) == 2 and started is not None and _alternate(codes, started):
        return list(range(len(codes)))
    return starts


def _alternate(codes: Sequence[int], started: Sequence[float]) -> bool:
    """Returns whether versions took turns, so that each met every state of the machine."""
    in_time = [codes[n] for n in sorted(range(len(codes)), key=started.__getitem__)]
    return all(len(list(turn)) <= _MAX_TURN for _, turn in groupby(in_time))


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
    found = _significant_cuts(scaled, allowed)
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


def levels(
    values: Sequence[float],
    changes: Sequence[ChangePoint],
    codes: Sequence[int],
    started: Sequence[float] | None = None,
) -> list[StableStretch]:
    """Returns the stretches between changes, with their means over the units of the series (commits
    or runs), as the changes have them."""
    is_ratio = min(values, default=0.0) > 0
    units = _stretches(values, [*unit_starts(codes, started), len(values)])
    return [
        StableStretch(
            first,
            end,
            _centre([unit.mean for unit in units if first <= unit.first < end], is_ratio),
        )
        for first, end in pairwise([0, *(change.place for change in changes), len(values)])
        if end > first
    ]


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


def _significant_cuts(scaled: _Numbers, allowed: _Places) -> dict[int, float]:
    """Returns the places at which the series is divided, each with its p-value.

    Each place of a partition with the smallest squared error explains at least the penalty. Where
    the one that explains least is not significant, the penalty rises to what it explains, and the
    best partition has fewer places.
    """
    centred = scaled - scaled.mean()
    penalty = PENALTY * math.log(len(centred)) * _noise_variance(centred)
    random = np.random.default_rng(_SEED)
    while places := _best_partition(centred, allowed, penalty):
        explained = {
            around[1]: _explained(centred, around) for around in _neighbours(places, len(centred))
        }
        p_values = _p_values(centred, allowed, explained, random)
        if p_values is not None:
            return p_values
        # The least of them may be the penalty itself, but for rounding.
        penalty = max(penalty, min(explained.values())) * (1 + 1e-9)
    return {}


def _noise_variance(centred: _Numbers) -> float:
    """Returns about how much the runs vary, from the differences of neighbours: a change of the
    level is in one of them only."""
    steps = np.abs(np.diff(centred))
    spread = float(np.quantile(steps, _ONE_SIGMA))
    # Values such as a peak of memory are the same in most runs.
    return (spread**2 if spread > 0 else float(np.mean(steps**2))) / 2


def _best_partition(centred: _Numbers, allowed: _Places, penalty: float) -> list[int]:
    """Returns the places that divide a series with the smallest squared error around the means of
    the pieces, where each place costs the penalty (optimal partitioning, Jackson et al. 2005)."""
    sums = _sums(centred)[allowed]
    costs = np.full(len(allowed), np.inf)
    costs[0] = 0.0
    last_place = np.zeros(len(allowed), dtype=np.int64)
    for n in range(1, len(allowed)):
        lengths = allowed[n] - allowed[:n]
        # The squared error is the sum of squares, which is the same for all, less this.
        error = -((sums[n] - sums[:n]) ** 2) / lengths
        total = np.where(lengths >= MIN_SEGMENT_RUNS, costs[:n] + error + penalty, np.inf)
        last_place[n] = np.argmin(total)
        costs[n] = total[last_place[n]]
    places = []
    n = last_place[-1]
    while n > 0:
        places.append(int(allowed[n]))
        n = last_place[n]
    return places[::-1]


def _explained(centred: _Numbers, around: tuple[int, int, int]) -> float:
    """Returns by how much a place between two pieces lowers the squared error."""
    first, place, end = around
    difference = centred[first:place].mean() - centred[place:end].mean()
    return float(difference**2 * (place - first) * (end - place) / (end - first))


def _p_values(
    centred: _Numbers, allowed: _Places, explained: Mapping[int, float], random: np.random.Generator
) -> dict[int, float] | None:
    """Returns for each place the share of random series in which a stretch stands out as much;
    `None` once that is more than the level for the place that explains least."""
    rest = _residuals(centred, list(explained))
    autocorrelation = _autocorrelation(rest, len(explained) + 1)
    gains = np.array(list(explained.values()))
    wanted = gains / (float(rest @ rest) + gains) * (1 - 1e-9)
    at_least = np.zeros(len(wanted))
    for _ in range(PERMUTATIONS // _BATCH):
        series = random.permuted(np.tile(rest, (_BATCH, 1)), axis=1)
        best = _best_stretch(_autocorrelated(series, autocorrelation), allowed)
        at_least += np.count_nonzero(best[:, None] >= wanted, axis=0)
        p_values = (at_least + 1) / (PERMUTATIONS + 1)
        if p_values.max() > LEVEL:
            return None
    return dict(zip(explained, p_values.tolist(), strict=True))


def _residuals(centred: _Numbers, places: Sequence[int]) -> _Numbers:
    """Returns the differences from the means of the pieces, made as large as the noise: the means
    are nearer to their runs than the true levels are."""
    pieces = [centred[first:end] for first, end in pairwise([0, *places, len(centred)])]
    rest = np.concatenate([piece - piece.mean() for piece in pieces])
    return rest * math.sqrt((len(rest) - 1) / (len(rest) - len(pieces)))


def _autocorrelation(rest: _Numbers, pieces: int) -> float:
    """Returns the autocorrelation of neighbouring residuals, and no less than is assumed."""
    squares = float(rest @ rest)
    if not squares:
        return AUTOCORRELATION
    # That of residuals around a mean is too small, by about one over their number.
    found = float(rest[1:] @ rest[:-1]) / squares + pieces / len(rest)
    return min(MAX_AUTOCORRELATION, max(AUTOCORRELATION, found))


def _autocorrelated(series: _Numbers, autocorrelation: float) -> _Numbers:
    """Returns autocorrelated series (AR(1)) of the variance of these, which are independent."""
    fresh = math.sqrt(1 - autocorrelation**2)
    made: _Numbers = series.copy()
    for n in range(1, made.shape[1]):
        made[:, n] = autocorrelation * made[:, n - 1] + fresh * series[:, n]
    return made


def _best_stretch(series: _Numbers, allowed: _Places) -> _Numbers:
    """Returns for each series the largest share of its variance that a single stretch with a level
    of its own explains, at the beginning, at the end or inside."""
    centred = series - series.mean(axis=1, keepdims=True)
    sums = _sums(centred)[:, allowed]
    length = series.shape[1]
    best = np.zeros(len(series))
    for n, left in enumerate(allowed[:-1]):
        inside = allowed[n + 1 :] - left
        after = length - allowed[n + 1 :]
        # A stretch up to the end divides at one place, as one from the beginning does.
        is_free = (inside >= MIN_SEGMENT_RUNS) & ((after >= MIN_SEGMENT_RUNS) | (after == 0))
        is_free &= inside < length
        if 0 < left < MIN_SEGMENT_RUNS or not is_free.any():
            continue
        weight = np.where(is_free, length / (inside * np.maximum(length - inside, 1)), 0.0)
        explained = (sums[:, n + 1 :] - sums[:, n, None]) ** 2 * weight
        np.maximum(best, explained.max(axis=1), out=best)
    squares: _Numbers = np.maximum((centred**2).sum(axis=1), np.finfo(np.float64).tiny)
    share: _Numbers = best / squares
    return share


def _sums(series: _Numbers) -> _Numbers:
    """Returns the sums of the first values of a series, of each number of them from 0."""
    start = np.zeros((*series.shape[:-1], 1))
    return np.concatenate([start, np.cumsum(series, axis=-1)], axis=-1)


def _change(
    values: Sequence[float],
    scaled: _Numbers,
    allowed: _Places,
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
    scaled: _Numbers, allowed: _Places, around: tuple[int, int, int]
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
