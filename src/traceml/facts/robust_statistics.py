"""Statistics that a few wild values hardly change: medians, and spreads by medians.

NaN is a value that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

NORMAL_SPREAD = 1.4826
"""The standard deviation of normal values, as a multiple of their median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""The standard error of a median, as a multiple of that of a mean."""


def log_of(seconds: Values) -> Values:
    """Returns natural logarithms; NaN where a value is not above zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs: Values = np.where(seconds > 0, np.log(seconds), np.nan)
    return logs


def known_mean(values: Values) -> Values:
    """Returns means over the first axis of what is known; NaN where nothing is."""
    is_known = ~np.isnan(values)
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, values, 0.0).sum(axis=0)
    means: Values = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def known_median(values: Values, axis: int) -> Values:
    """Returns medians of what is known; NaN where nothing is."""
    counts = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    ordered = np.sort(values, axis=axis)  # NaN come last
    low, high = np.maximum(counts - 1, 0) // 2, counts // 2
    high = np.minimum(high, values.shape[axis] - 1)
    middle = (np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)) / 2
    medians: Values = np.squeeze(middle, axis=axis)
    return medians


def noise_of(deviations: Sequence[Values]) -> Values:
    """Returns the standard deviation of a layer's bursts, by rank and layer.

    It is no less than that of the same layer on all ranks, nor than that of most layers: of few
    bursts some seem to have no noise at all.
    """
    # A median lies among its values, and the fewer they are the nearer to them.
    lengths = [np.maximum(np.sum(~np.isnan(each), axis=0), 2) for each in deviations]
    wide = [
        np.abs(each) * length / (length - 1)
        for each, length in zip(deviations, lengths, strict=True)
    ]
    of_layer = known_median(np.concatenate(wide), axis=0)
    least = np.maximum(of_layer, known_median(of_layer[None], axis=1))
    own = np.array([known_median(each, axis=0) for each in wide])
    noise: Values = NORMAL_SPREAD * np.fmax(own, least)
    return noise


def spread_beyond(values: Values, errors: Values) -> float:
    """Returns by how much values differ beyond their errors: as a standard deviation, by their
    median size, which a few that are far away do not change."""
    known = ~np.isnan(values)
    if not known.any():
        return math.nan
    size = NORMAL_SPREAD * float(np.median(np.abs(values[known])))
    return math.sqrt(max(0.0, size**2 - float(np.median(errors[known])) ** 2))


def t_quantile(chance: float, freedom: npt.NDArray[np.generic]) -> Values:
    """Returns how many standard errors a mean exceeds with this probability, by Student's t.

    Wallace's approximation: of few values it is too large rather than too small.
    """
    degrees = np.maximum(np.asarray(freedom, np.float64), 1.0)
    normal = NormalDist().inv_cdf(1 - chance) * (8 * degrees + 3) / (8 * degrees + 1)
    # Beyond this exponent no measured time is sure; exp would overflow.
    quantiles: Values = np.sqrt(degrees * np.expm1(np.minimum(normal**2 / degrees, 60.0)))
    return quantiles
