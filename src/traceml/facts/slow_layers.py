"""Finds layers and kernels that are slow on one rank alone, or that became slow during the run.

Ranks that do the same work are compared by the logarithm of the time that each layer takes in each
burst of steps. What slows a whole rank, or a whole burst, slows all of its layers by about the same
factor. That factor is taken out first, because the rules about stragglers and slowdowns tell it.
What is left is a layer's own. It is told where it is larger than the spread of the bursts, of the
other layers and of the other ranks explains, corrected for the number of all that was compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from traceml.facts.burst_times import BurstTimes, kernel_bursts, longest_layers
from traceml.facts.robust_statistics import (
    MEDIAN_ERROR,
    Values,
    known_mean,
    known_median,
    log_of,
    noise_of,
    spread_beyond,
    t_quantile,
)
from traceml.store.layer_records import LayerRecords

CHANCE = 0.01
"""That anything is named although all ranks, and all bursts, are alike: of the whole run."""
MIN_FACTOR = 1.25
"""A layer that takes less than this times as long is not told …"""
SURE_FACTOR = 1.05
"""… nor one whose factor may be below this: equal ranks differ by as much in some layer."""
MIN_SHARE = 0.01
"""Of the time in all layers: what costs less per step is not told."""
MIN_BURSTS = 4
"""Of each side: fewer do not show their own spread."""
MIN_LAYERS = 3
"""With fewer there is nothing from which to tell a slow layer from a slow rank."""
MIN_HIGH_SHARE = 0.75
"""Of the bursts: a layer that is slow in fewer is slow now and then."""
SAME_WORK = 0.01
"""Calls per step of one layer may differ by this share; else the ranks do different work."""
MIN_BURSTS_AROUND = 5
"""Before a change over time, and after it: the moment is looked for, and single bursts are easily
found that are high by chance."""
LARGE_FACTOR = 3.0
"""A layer that takes so many times as long …"""
MIN_BURSTS_AROUND_LARGE = 3
"""… needs no more bursts than this before and after: a short or starved run has few."""
SEARCHES = 2
"""For a change over time: one for large factors, one for all."""
MIN_LASTING_SHARE = 0.9
"""Of the bursts since then, and before: those that have to be on the right side of the middle."""
OTHERS_SHARE = 0.5
"""Of a layer's change: other ranks that changed by more have changed, too."""


@dataclass(frozen=True, slots=True)
class SlowLayer:
    """A layer, or the kernels of one name in it, that takes longer on one rank than elsewhere."""

    layer: str
    """Dotted; empty for the model itself, or for kernels that no layer launched."""
    rank: int
    factor: float
    """Its time as a multiple of that of the other ranks, without what slows the whole rank."""
    interval: tuple[float, float]
    """The 95 % confidence interval of the factor."""
    rank_s: float
    """Seconds per step on this rank, and on the median of the others."""
    others_s: float
    excess_s: float
    """What the factor costs per step."""
    high_bursts: int
    """The bursts in which it took clearly longer than on the others …"""
    bursts: int
    """… of how many."""
    rank_factor: float
    """How much slower than the others all layers of this rank are."""
    peers: tuple[int, ...]
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class SlowedLayer:
    """A layer, or the kernels of one name in it, that takes longer since some step, while the
    others do not."""

    layer: str
    rank: int
    since_step: int
    factor: float
    interval: tuple[float, float]
    """The 95 % confidence interval of the factor."""
    before_s: float
    after_s: float
    """Seconds per step."""
    excess_s: float
    """What the factor costs in each step since then."""
    bursts_before: int
    bursts_after: int
    also_ranks: tuple[int, ...] = ()
    """Other ranks on which it has become slower at that time."""
    other_ranks: tuple[int, ...] = ()
    """Ranks on which it has not."""
    kernel: str | None = None


# Across ranks


def slow_on_one_rank(names: Sequence[str], ranks: Sequence[BurstTimes]) -> tuple[SlowLayer, ...]:
    """Returns the layers that are slow on one rank alone, the most expensive first."""
    known = [each for each in ranks if len(each.steps) >= MIN_BURSTS]
    if len(known) < 2:
        return ()
    seconds = np.array([known_mean(each.seconds) for each in known])
    chosen = longest_layers(seconds)
    found = _compared_ranks(known, chosen, seconds[:, chosen])
    if np.sum(~np.isnan(found.away), axis=1).max() < MIN_LAYERS:
        return ()
    told = [
        found.told(names[chosen[place]], row, place)
        for row, place in found.sure_places(CHANCE / (len(known) * len(names)))
    ]
    return tuple(sorted(filter(None, told), key=lambda each: -each.excess_s))


def slow_kernels(
    records: Sequence[LayerRecords], ranks: Mapping[int, int]
) -> tuple[tuple[SlowLayer, ...], tuple[SlowedLayer, ...]]:
    """Returns the kernels that are slow in a layer of one rank alone, and those that became slow
    in a layer; the most expensive first."""
    if all(len(each.kernels) < MIN_BURSTS for each in records):
        return (), ()
    kernels, bursts = kernel_bursts(records, ranks)
    numbers = [str(place) for place in range(len(kernels))]
    slow = slow_on_one_rank(numbers, bursts)
    slowed = slowed_down(numbers, bursts)
    return (
        tuple(_of_kernel(each, *kernels[int(each.layer)]) for each in slow),
        tuple(_of_kernel(each, *kernels[int(each.layer)]) for each in slowed),
    )


Slow = TypeVar("Slow", SlowLayer, SlowedLayer)


def _of_kernel(found: Slow, kernel: str, layer: str) -> Slow:
    return replace(found, kernel=kernel, layer=layer)


@dataclass(frozen=True, slots=True)
class _ComparedRanks:
    """The layers of ranks against those of the other ranks; by rank and layer."""

    ranks: Sequence[BurstTimes]
    seconds: Values
    logs: Sequence[Values]
    """By rank, then by burst and layer."""
    counts: npt.NDArray[np.int64]
    """How many bursts each layer has."""
    others: _Others
    factors: Values
    """By rank: the logarithm of what slows all of its layers."""
    away: Values
    """The logarithm of each layer's own factor; NaN where it is not compared."""
    errors: Values

    def sure_places(self, chance: float) -> list[tuple[int, int]]:
        """Returns the ranks and layers that are slower than chance explains, and by enough."""
        limit = t_quantile(chance, self.freedom) * self.errors
        usual_s = np.nansum(self.others.seconds_of(self.seconds), axis=1)[:, None]
        is_told = (
            (self.away - limit > math.log(SURE_FACTOR))
            & (self.away >= math.log(MIN_FACTOR))
            & (self.excess_s >= MIN_SHARE * usual_s)
        )
        return [(int(row), int(place)) for row, place in np.argwhere(is_told)]

    @property
    def freedom(self) -> npt.NDArray[np.int64]:
        """Degrees of freedom by layer: the noise is estimated from the bursts of all ranks."""
        freedom: npt.NDArray[np.int64] = np.sum(np.maximum(self.counts - 1, 0), axis=0)
        return np.maximum(freedom, 1)

    @property
    def excess_s(self) -> Values:
        """What each layer's own factor costs per step."""
        return self.seconds * -np.expm1(-self.away)

    def told(self, name: str, row: int, place: int) -> SlowLayer | None:
        """Returns what is told of a layer; `None` where it is slow only now and then."""
        expected = self.others.logs[row, place] + self.factors[row]
        high = int(np.sum(self.logs[row][:, place] > expected + math.log(SURE_FACTOR)))
        count = int(self.counts[row, place])
        if high < MIN_HIGH_SHARE * count:
            return None
        log_factor, near = self.away[row, place], t_quantile(0.05 / 2, self.freedom)[place]
        return SlowLayer(
            layer=name,
            rank=self.ranks[row].rank,
            factor=math.exp(log_factor),
            interval=_interval(log_factor, near * self.errors[row, place]),
            rank_s=float(self.seconds[row, place]),
            others_s=math.exp(self.others.logs[row, place]),
            excess_s=float(self.excess_s[row, place]),
            high_bursts=high,
            bursts=count,
            rank_factor=math.exp(self.factors[row]),
            peers=tuple(
                each.rank
                for other, each in enumerate(self.ranks)
                if other != row and not np.isnan(self.away[other, place])
            ),
        )


def _compared_ranks(
    ranks: Sequence[BurstTimes], chosen: npt.NDArray[np.intp], seconds: Values
) -> _ComparedRanks:
    """Compares ranks by the chosen layers; `seconds` are the mean times of those."""
    logs = [log_of(each.seconds[:, chosen]) for each in ranks]
    counts = np.array([np.sum(~np.isnan(each), axis=0) for each in logs])
    usual = np.array([known_median(each, axis=0) for each in logs])
    noise = noise_of([each - middle for each, middle in zip(logs, usual, strict=True)])
    same = (counts >= MIN_BURSTS) & _same_work(np.array([each.calls[chosen] for each in ranks]))
    away, errors, others = _against_others(np.where(same, usual, np.nan), noise, counts)
    factors = known_median(away, axis=1)
    away -= factors[:, None]
    error = np.hypot(errors, spread_beyond(away, errors))
    return _ComparedRanks(ranks, seconds, logs, counts, others, factors, away, error)


@dataclass(frozen=True, slots=True)
class _Others:
    """The median of the other ranks, by rank and layer."""

    logs: Values

    def seconds_of(self, seconds: Values) -> Values:
        """Returns what the layers take on a usual rank, for each rank."""
        return np.where(np.isnan(self.logs), np.nan_to_num(seconds), np.exp(self.logs))


def _against_others(
    usual: Values, noise: Values, counts: npt.NDArray[np.int64]
) -> tuple[Values, Values, _Others]:
    """Returns how far each rank's layers are from the median of the other ranks, with the standard
    error by the noise of the bursts of both."""
    variances = noise**2 / np.maximum(counts, 1)
    medians, doubts = np.full_like(usual, np.nan), np.full_like(usual, np.nan)
    for row in range(len(usual)):
        rest = np.delete(usual, row, axis=0)
        medians[row] = known_median(rest, axis=0)
        known = np.where(np.isnan(rest), np.nan, np.delete(variances, row, axis=0))
        doubts[row] = known_median(known, axis=0)
    return usual - medians, MEDIAN_ERROR * np.sqrt(variances + doubts), _Others(medians)


def _same_work(calls: Values) -> npt.NDArray[np.bool_]:
    """Returns where a rank calls a layer as often as the median rank."""
    usual = known_median(calls, axis=0)
    return np.abs(calls - usual) <= SAME_WORK * usual


# Over time


def slowed_down(names: Sequence[str], ranks: Sequence[BurstTimes]) -> tuple[SlowedLayer, ...]:
    """Returns the layers that became slow during the run, the most expensive first.

    A layer that did so on several ranks is told once, of the rank where it costs the most.
    """
    told = {
        **_slowed_by(names, ranks, LARGE_FACTOR, MIN_BURSTS_AROUND_LARGE),
        **_slowed_by(names, ranks, MIN_FACTOR, MIN_BURSTS_AROUND),
    }
    return tuple(sorted(told.values(), key=lambda each: -each.excess_s))


def _slowed_by(
    names: Sequence[str], ranks: Sequence[BurstTimes], min_factor: float, min_around: int
) -> dict[str, SlowedLayer]:
    """Returns the layers that became so many times as slow, with so many bursts before that and
    after it; by name."""
    known = [each for each in ranks if len(each.steps) >= 2 * min_around]
    if not known:
        return {}
    chosen = longest_layers(np.array([known_mean(each.seconds) for each in known]))
    changes = [_changes(each.seconds[:, chosen], min_around) for each in known]
    found: dict[int, list[SlowedLayer]] = {}
    for each, change in zip(known, changes, strict=True):
        tests = SEARCHES * len(known) * len(names) * len(each.steps)
        for place in change.sure_places(CHANCE / tests, min_factor):
            layer = change.told(place, names[chosen[place]], each)
            if layer is not None and not change.may_be_interruptions(place, CHANCE / tests):
                found.setdefault(place, []).append(layer)
    return {
        names[chosen[place]]: _with_others(
            max(of_layer, key=lambda one: one.excess_s), place, known, changes
        )
        for place, of_layer in found.items()
    }


@dataclass(frozen=True, slots=True)
class _BestSplits:
    """The best split of each layer's bursts into earlier and later ones, on one rank."""

    seconds: Values
    logs: Values
    """Without what slows a whole burst."""
    splits: npt.NDArray[np.intp]
    """By layer: the first of the later bursts."""
    change: Values
    error: Values
    freedom: float

    def sure_places(self, chance: float, min_factor: float) -> list[int]:
        """Returns the layers whose later bursts are slower than chance explains, and by enough."""
        limit = t_quantile(chance, np.array(self.freedom)) * self.error
        is_sure = (self.change - limit > math.log(SURE_FACTOR)) & (
            self.change >= math.log(min_factor)
        )
        return [int(place) for place in np.flatnonzero(is_sure)]

    def may_be_interruptions(self, place: int, chance: float) -> bool:
        """Returns whether a layer may have been interrupted in each of its few later bursts.

        An interruption adds as much to any layer: how often that happens is seen in the others.
        """
        split = int(self.splits[place])
        earlier_s, later_s = np.split(self.seconds[:, place], [split])
        if len(later_s) >= MIN_BURSTS_AROUND:
            return False
        excess_s = float(np.nanmedian(later_s) - np.nanmedian(earlier_s))
        added_s = np.delete(self.seconds - known_median(self.seconds, axis=0), place, axis=1)
        interrupted, seen = np.sum(added_s > excess_s / 2), np.sum(~np.isnan(added_s))
        share = (interrupted + 1) / (seen + 2)
        return bool(share ** len(later_s) >= chance)

    def told(self, place: int, name: str, of_rank: BurstTimes) -> SlowedLayer | None:
        """Returns what is told of a layer; `None` where it did not last, or costs too little."""
        split, change = int(self.splits[place]), float(self.change[place])
        earlier, later = self.logs[:split, place], self.logs[split:, place]
        middle = float(np.nanmedian(earlier)) + change / 2
        lasting = min(np.mean(later > middle), np.mean(earlier < middle))
        if lasting < MIN_LASTING_SHARE:
            return None
        before_s = float(np.nanmean(self.seconds[:split, place]))
        after_s = float(np.nanmean(self.seconds[split:, place]))
        excess_s = after_s * -math.expm1(-change)
        if excess_s < MIN_SHARE * float(np.nansum(known_mean(self.seconds[:split]))):
            return None
        near = float(t_quantile(0.05 / 2, np.array(self.freedom)) * self.error[place])
        return SlowedLayer(
            layer=name,
            rank=of_rank.rank,
            since_step=int(of_rank.steps[split]),
            factor=math.exp(change),
            interval=_interval(change, near),
            before_s=before_s,
            after_s=after_s,
            excess_s=excess_s,
            bursts_before=split,
            bursts_after=len(later),
        )


def _changes(seconds: Values, min_around: int) -> _BestSplits:
    """Returns the best split of each layer's bursts that leaves so many on either side."""
    logs = log_of(seconds)
    logs -= known_median(logs - known_median(logs, axis=0), axis=1)[:, None]
    filled = np.where(np.isnan(logs), known_median(logs, axis=0), logs)
    splits = _splits(_without_spikes(filled), min_around)
    count = len(logs)
    is_later = np.arange(count)[:, None] >= splits
    before = known_median(np.where(is_later, np.nan, filled), axis=0)
    change = known_median(np.where(is_later, filled, np.nan), axis=0) - before
    left = filled - before - change * is_later
    size = MEDIAN_ERROR * np.sqrt(1 / splits + 1 / (count - splits))
    error = size * noise_of([left])[0] * _inflation(left)
    return _BestSplits(
        seconds=seconds,
        logs=logs,
        splits=splits,
        change=change,
        error=np.hypot(error, spread_beyond(change, error)),
        freedom=count - 2.0,
    )


def _without_spikes(values: Values) -> Values:
    """Returns the median of each three neighbours: a level stays, a single high value goes."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    found: Values = np.median([padded[:-2], values, padded[2:]], axis=0)
    return found


def _splits(values: Values, min_around: int) -> npt.NDArray[np.intp]:
    """Returns for each layer where its bursts are best split in two: the first later one."""
    count = len(values)
    sums = np.cumsum(values, axis=0)[:-1]
    sizes = np.arange(1, count)[:, None]
    differences = (sums[-1] + values[-1] - sums) / (count - sizes) - sums / sizes
    weights = np.sqrt(sizes * (count - sizes) / count)
    weights[: min_around - 1] = weights[count - min_around :] = 0.0
    places: npt.NDArray[np.intp] = np.argmax(differences * weights, axis=0) + 1
    return places


def _inflation(left: Values) -> Values:
    """Returns by how much the error of a mean grows because neighbouring bursts are alike."""
    squares = np.sum(left**2, axis=0)
    products = np.sum(left[1:] * left[:-1], axis=0)
    alike = np.clip(products / np.where(squares > 0, squares, 1.0), 0.0, 0.9)
    inflation: Values = np.sqrt((1 + alike) / (1 - alike))
    return inflation


def _with_others(
    found: SlowedLayer, place: int, known: Sequence[BurstTimes], changes: Sequence[_BestSplits]
) -> SlowedLayer:
    """Returns a layer with the other ranks on which it did, and did not, become slower."""
    also: list[int] = []
    not_so: list[int] = []
    for each, change in zip(known, changes, strict=True):
        later = each.steps >= found.since_step
        if each.rank == found.rank or not later.any() or later.all():
            continue
        logs = change.logs[:, place]
        grown = known_mean(logs[later]) - known_mean(logs[~later])
        (also if grown >= OTHERS_SHARE * math.log(found.factor) else not_so).append(each.rank)
    return replace(found, also_ranks=tuple(also), other_ranks=tuple(not_so))


def _interval(log_factor: float, near: float) -> tuple[float, float]:
    return math.exp(log_factor - near), math.exp(log_factor + near)
