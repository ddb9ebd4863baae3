"""The standard error of a mean over the steps of one run, estimated from those steps.

Steps are autocorrelated, so a thousand steps count for fewer independent ones: the error follows
from the long-run variance, which is the power of the series at the lowest frequencies. It is
estimated by cosine coefficients of the block means. With all frequencies this is the plain variance
of the blocks, which is right for independent blocks. Where neighbouring blocks are still
correlated, only the lowest frequencies are used, corrected for the correlation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import mul
from statistics import fmean

from traceml.compare.students_t import MIN_DEGREES_OF_FREEDOM, MeanError
from traceml.summaries.record import StepSeries

MAX_BLOCKS = 64
MIN_BLOCKS = 4
"""With fewer, their spread says nothing."""
MIN_FREQUENCIES = 4
"""With fewer, the interval would be too wide to show any change."""
CLEAR_ERRORS = 1.0
"""Standard errors above which the correlation of neighbouring blocks is taken as real."""
MAX_CORRELATION = 0.97
"""Beyond it a run is worth a step or two, and the correction is unreliable."""


def within_run(series: StepSeries | None, mean_ms: float) -> MeanError | None:
    """Returns the error of the mean step time as a share of it; `None` where the steps do not show
    it."""
    if series is None:
        return None
    return share_of_mean(series.block_means_ms) or _by_count(series, mean_ms)


def share_of_mean(block_means: Sequence[float]) -> MeanError | None:
    """Returns the error for blocks of equal length, as a share of their mean; `None` with too few
    blocks, or times that are not positive."""
    largest = max(block_means, default=0.0)
    if not 0 < largest < math.inf or min(block_means) < 0:
        return None
    shares = _joined([block / largest for block in block_means])
    error = error_of_mean(shares)
    return error and MeanError(error.size / fmean(shares), error.freedom)


def error_of_mean(block_means: Sequence[float]) -> MeanError | None:
    """Returns the error for blocks of equal length, in their unit; `None` with too few blocks."""
    scale = max(map(abs, block_means), default=0.0) or 1.0
    if not math.isfinite(scale):
        return None
    blocks = _joined([block / scale for block in block_means])  # extreme numbers have no squares
    if len(blocks) < MIN_BLOCKS:
        return None
    mean = fmean(blocks)
    error = _by_blocks([block - mean for block in blocks])
    return MeanError(error.size * scale, error.freedom)


def _by_count(series: StepSeries, mean_ms: float) -> MeanError | None:
    """Returns the error for a summary without block means, from its effective number of steps."""
    stdev_ms, count = series.stdev_ms, series.effective_count
    if mean_ms <= 0 or stdev_ms is None or count is None or count < MIN_DEGREES_OF_FREEDOM + 1:
        return None
    share = stdev_ms / mean_ms / math.sqrt(count)
    return MeanError(share, count - 1) if math.isfinite(share) and share >= 0 else None


def _joined(blocks: Sequence[float]) -> Sequence[float]:
    """Returns at most `MAX_BLOCKS` blocks; if there are more, neighbours are averaged."""
    length = math.ceil(len(blocks) / MAX_BLOCKS)
    if length <= 1:
        return blocks
    starts = range(0, len(blocks) - length + 1, length)
    return [fmean(blocks[start : start + length]) for start in starts]


def _by_blocks(deviations: Sequence[float]) -> MeanError:
    """Returns the error from each block's deviation from the mean."""
    count = len(deviations)
    correlation = _correlation(deviations)
    if correlation * math.sqrt(count) <= CLEAR_ERRORS:
        power = math.fsum(x * x for x in deviations) / (count - 1)  # of all frequencies, added up
        return MeanError(math.sqrt(power / count), count - 1)
    frequencies = min(count - 1, max(MIN_FREQUENCIES, round((count - 1) * (1 - correlation) ** 2)))
    power = fmean(
        _power(deviations, frequency) * _power_at_zero(correlation, math.pi * frequency / count)
        for frequency in range(1, frequencies + 1)
    )
    return MeanError(math.sqrt(power / count), frequencies)


def _correlation(deviations: Sequence[float]) -> float:
    """Returns the lag-1 autocorrelation of the blocks, corrected for the bias of a short series; at
    least zero."""
    total = math.fsum(x * x for x in deviations)
    if total == 0:
        return 0.0
    found = math.fsum(x * y for x, y in pairwise(deviations)) / total
    found += (1 + 3 * max(found, 0.0)) / len(deviations)
    return min(max(found, 0.0), MAX_CORRELATION)


def _power(deviations: Sequence[float], frequency: int) -> float:
    """Returns the power of the cosine with so many half periods over the run."""
    part = math.fsum(map(mul, deviations, _cosine(len(deviations), frequency)))
    return 2 / len(deviations) * part * part


@lru_cache(maxsize=MAX_BLOCKS * MAX_BLOCKS)
def _cosine(count: int, frequency: int) -> tuple[float, ...]:
    step = math.pi * frequency / count
    return tuple(math.cos(step * (place + 0.5)) for place in range(count))


def _power_at_zero(correlation: float, angle: float) -> float:
    """Returns how much more power there is at frequency zero than at this one, by the
    correlation."""
    at_angle = 1 + correlation * correlation - 2 * correlation * math.cos(angle)
    return at_angle / (1 - correlation) ** 2
