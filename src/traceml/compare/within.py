"""How well a mean over the steps of one run is known from those steps.

Neighbouring steps hang together, so a run of a thousand steps is worth fewer: what counts is how
the mean of *many* steps wanders. That is the power of the slowest swings of the series. They are
found by cosines over the block means; with all cosines this is the plain variance of the blocks, as
good as any where blocks are independent. Where neighbouring blocks still hang together, only the
slowest are used, corrected for what the dependence between blocks leaves out of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import mul
from statistics import fmean

from traceml.compare.student import MIN_DEGREES_OF_FREEDOM, Error
from traceml.summaries.record import StepSeries

MAX_BLOCKS = 64
MIN_BLOCKS = 4
"""With fewer, their spread says nothing."""
MIN_EFFECTIVE_BLOCKS = 4
"""With fewer, the interval is so wide that no change would ever be shown."""
CLEAR_ERRORS = 1.0
"""Standard errors from which on a correlation of neighbouring blocks is taken for one."""
MAX_CORRELATION = 0.97
"""Beyond it a run is worth a step or two, and no correction is to be trusted."""


def within_run(series: StepSeries | None, mean_ms: float) -> Error | None:
    """The error of the mean step time as a share of it; `None` where the steps do not show it."""
    if series is None:
        return None
    return share_of_mean(series.block_means_ms) or _by_count(series, mean_ms)


def share_of_mean(block_means: Sequence[float]) -> Error | None:
    """Of blocks of equal length, as a share of their mean; `None` of too few, or of no times."""
    largest = max(block_means, default=0.0)
    if not 0 < largest < math.inf or min(block_means) < 0:
        return None
    shares = _joined([block / largest for block in block_means])
    error = error_of_mean(shares)
    return error and Error(error.size / fmean(shares), error.freedom)


def error_of_mean(block_means: Sequence[float]) -> Error | None:
    """Of blocks of equal length, in their own unit; `None` where they are too few."""
    scale = max(map(abs, block_means), default=0.0) or 1.0
    if not math.isfinite(scale):
        return None
    blocks = _joined([block / scale for block in block_means])  # extreme numbers have no squares
    if len(blocks) < MIN_BLOCKS:
        return None
    mean = fmean(blocks)
    error = _by_blocks([block - mean for block in blocks])
    return Error(error.size * scale, error.freedom)


def _by_count(series: StepSeries, mean_ms: float) -> Error | None:
    """For a summary without block means: from the number of independent steps it is worth."""
    stdev_ms, count = series.stdev_ms, series.effective_count
    if mean_ms <= 0 or stdev_ms is None or count is None or count < MIN_DEGREES_OF_FREEDOM + 1:
        return None
    share = stdev_ms / mean_ms / math.sqrt(count)
    return Error(share, count - 1) if math.isfinite(share) and share >= 0 else None


def _joined(blocks: Sequence[float]) -> Sequence[float]:
    """At most so many blocks; where a file has more, neighbours are taken together."""
    length = math.ceil(len(blocks) / MAX_BLOCKS)
    if length <= 1:
        return blocks
    starts = range(0, len(blocks) - length + 1, length)
    return [fmean(blocks[start : start + length]) for start in starts]


def _by_blocks(around: Sequence[float]) -> Error:
    """From how far each block lies from the mean of all."""
    count = len(around)
    correlation = _correlation(around)
    if correlation * math.sqrt(count) <= CLEAR_ERRORS:
        power = math.fsum(x * x for x in around) / (count - 1)  # of all swings, added up
        return Error(math.sqrt(power / count), count - 1)
    swings = min(count - 1, max(MIN_EFFECTIVE_BLOCKS, round((count - 1) * (1 - correlation) ** 2)))
    power = fmean(
        _power(around, swing) * _left_out(correlation, math.pi * swing / count)
        for swing in range(1, swings + 1)
    )
    return Error(math.sqrt(power / count), swings)


def _correlation(around: Sequence[float]) -> float:
    """Of neighbouring blocks, corrected for the bias that a short series has, from zero up."""
    total = math.fsum(x * x for x in around)
    if total == 0:
        return 0.0
    found = math.fsum(x * y for x, y in pairwise(around)) / total
    found += (1 + 3 * max(found, 0.0)) / len(around)
    return min(max(found, 0.0), MAX_CORRELATION)


def _power(around: Sequence[float], swing: int) -> float:
    """Of the cosine with so many half periods over the run."""
    part = math.fsum(map(mul, around, _cosine(len(around), swing)))
    return 2 / len(around) * part * part


@lru_cache(maxsize=MAX_BLOCKS * MAX_BLOCKS)
def _cosine(count: int, swing: int) -> tuple[float, ...]:
    step = math.pi * swing / count
    return tuple(math.cos(step * (place + 0.5)) for place in range(count))


def _left_out(correlation: float, angle: float) -> float:
    """How much more power the mean itself has than this swing, by the blocks' correlation."""
    swing = 1 + correlation * correlation - 2 * correlation * math.cos(angle)
    return swing / (1 - correlation) ** 2
