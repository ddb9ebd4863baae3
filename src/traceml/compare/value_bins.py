"""A metric along a parameter: means in a few bins, where the gain ends, and a grid of two
parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from traceml.compare.importance_record import ValueBin
from traceml.compare.parameter_columns import Column, Floats
from traceml.compare.statistics import mean_error
from traceml.compare.students_t import MeanError, reach, together, two_sided_p

MAX_BINS = 5
MAX_CATEGORIES = 12
MIN_PER_BIN = 2
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Binned:
    """The bins of a parameter, and which one each setting is in (-1: in none)."""

    bins: tuple[ValueBin, ...]
    numbers: NDArray[np.int64]


def bins_of(column: Column, metric: Floats, max_bins: int = MAX_BINS) -> Binned:
    """Returns the mean of the metric in each bin: the values themselves where they are few, else
    ranges of a number with about as many settings in each."""
    numbers = _bin_numbers(column, max_bins)
    bins = []
    for number in range(int(numbers.max(initial=-1)) + 1):
        inside = numbers == number
        mean, interval = _mean(metric[inside])
        bins.append(_bin(column, inside, mean, interval))
    return Binned(tuple(bins), numbers)


def _bin_numbers(column: Column, max_bins: int) -> NDArray[np.int64]:
    if column.ranks is None:
        numbers = np.where(column.known, column.levels, -1)
        numbers[numbers >= MAX_CATEGORIES] = -1
        return numbers
    known = column.known
    levels, distinct = column.levels, len(np.unique(column.levels[known]))
    if distinct <= max_bins:
        return np.where(known, levels, -1)
    bins = max(1, min(max_bins, int(known.sum()) // MIN_PER_BIN))
    shares = (np.nan_to_num(column.ranks, nan=0.0) - 0.5) / known.sum()
    numbers = np.clip((shares * bins).astype(np.int64), 0, bins - 1)
    # Ties share a rank and so a bin; what stays empty between them is left out.
    numbers[known] = np.unique(numbers[known], return_inverse=True)[1]
    return np.where(known, numbers, -1)


def _bin(
    column: Column,
    inside: NDArray[np.bool_],
    mean: float | None,
    interval: tuple[float, float] | None,
) -> ValueBin:
    values = [column.values[place] for place in np.flatnonzero(inside)]
    settings = len(values)
    is_one = len({(type(value) is bool, value) for value in values}) == 1
    value = values[0] if is_one else None
    if column.ranks is None:
        return ValueBin(value=value, settings=settings, mean=mean, interval=interval)
    numbers = column.numbers[inside]
    low, high = float(numbers.min()), float(numbers.max())
    return ValueBin(
        value=value, low=low, high=high, settings=settings, mean=mean, interval=interval
    )


def _mean(values: Floats) -> tuple[float | None, tuple[float, float] | None]:
    if not len(values):
        return None, None
    mean = math.fsum(value / len(values) for value in values)
    try:
        distance = reach(mean_error(values.tolist())) if len(values) > 1 else math.nan
    except OverflowError:
        distance = math.nan
    interval = (mean - distance, mean + distance)
    return mean, interval if all(map(math.isfinite, interval)) else None


def levels_off_at(
    column: Column, metric: Floats, binned: Binned, higher_is_better: bool | None
) -> float | None:
    """Returns the upper end of the last bin that is shown to be worse than the best one after it;
    past it the runs show no further gain.

    `None` where no gain is shown, where it goes on to the last bin, where a bin after the best is
    shown to be worse, and where it is not shown that the gain per bin is smaller past that bin than
    up to it.
    """
    means = [each.mean for each in binned.bins]
    if column.ranks is None or higher_is_better is None or len(means) < 3 or None in means:
        return None
    sign = 1 if higher_is_better else -1
    best = max(range(len(means)), key=lambda place: sign * (means[place] or 0.0))
    try:
        others = [place for place in range(len(means)) if place != best]
        worse = [place for place in others if _differ(metric, binned.numbers, place, best)]
        if not worse or worse[-1] > best or worse[-1] == len(means) - 2:
            return None
        knee = worse[-1] + 1
        rise, rest = (
            _gain(metric, binned.numbers, first, last, sign)
            for first, last in ((0, knee), (knee, len(means) - 1))
        )
        p = two_sided_p(rise[0] - rest[0], together((rise[1], rest[1])))
    except OverflowError:  # values near the largest number
        return None
    return binned.bins[worse[-1]].high if rise[0] > rest[0] and p < ALPHA else None


def _differ(metric: Floats, numbers: NDArray[np.int64], a: int, b: int) -> bool:
    """Returns whether two bins differ, by Welch's test; corrected for the bins compared."""
    left, right = (metric[numbers == place].tolist() for place in (a, b))
    if min(len(left), len(right)) < MIN_PER_BIN:
        return False
    error = together((mean_error(left), mean_error(right)))
    return two_sided_p(fmean(right) - fmean(left), error) * int(numbers.max()) < ALPHA


def _gain(
    metric: Floats, numbers: NDArray[np.int64], first: int, last: int, sign: int
) -> tuple[float, MeanError]:
    """Returns the slope of the metric per bin between two bins, by least squares, and its error."""
    inside = (numbers >= first) & (numbers <= last)
    places, values = numbers[inside].astype(float), sign * metric[inside]
    places = places - places.mean()
    slope = float(places @ values / (places @ places))
    left = values - values.mean() - slope * places
    freedom = max(1, len(values) - 2)
    size = math.sqrt(float(left @ left) / freedom / float(places @ places))
    return slope, MeanError(size, freedom)


def grid_of(
    rows: Binned, columns: Binned, metric: Floats
) -> tuple[tuple[tuple[float | None, ...], ...], tuple[tuple[int, ...], ...]]:
    """Returns the mean of the metric and the number of settings, by row and column."""
    inside = [
        [(rows.numbers == row) & (columns.numbers == column) for column in _places(columns.bins)]
        for row in _places(rows.bins)
    ]
    means = tuple(tuple(_mean(metric[cell])[0] for cell in row) for row in inside)
    return means, tuple(tuple(int(cell.sum()) for cell in row) for row in inside)


def _places(bins: Sequence[ValueBin]) -> range:
    return range(len(bins))
