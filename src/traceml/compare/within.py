"""How well one run's mean step time is known from its own steps.

Neighbouring steps hang together, so a run of a thousand steps is worth fewer: what counts is how
the mean of *many* steps wanders. That is the power of the slowest swings of the series. They are
found by cosines over the block means; with all cosines this is the plain variance of the blocks, as
good as any where blocks are independent. Where neighbouring blocks still hang together, only the
slowest are used, corrected for what the dependence between blocks leaves out of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from traceml.compare.student import FEWEST_FREEDOM, Error
from traceml.summaries.record import StepSeries

MOST_BLOCKS = 64
FEWEST_BLOCKS = 4
"""With fewer, their spread says nothing."""
FEWEST_SWINGS = 4
"""With fewer, the interval is so wide that no change would ever be shown."""
CLEAR_ERRORS = 1.0
"""Standard errors from which on a correlation of neighbouring blocks is taken for one."""
MOST_CORRELATION = 0.97
"""Beyond it a run is worth a step or two, and no correction is to be trusted."""


def within_run(series: StepSeries | None, mean_ms: float) -> Error | None:
    """The error of the mean step time as a share of it; `None` where the steps do not show it."""
    if series is None:
        return None
    blocks = _blocks(series.block_means_ms)
    return _by_blocks(blocks) if len(blocks) >= FEWEST_BLOCKS else _by_count(series, mean_ms)


def _by_count(series: StepSeries, mean_ms: float) -> Error | None:
    """For a summary without block means: from the number of independent steps it is worth."""
    stdev_ms, count = series.stdev_ms, series.effective_count
    if mean_ms <= 0 or stdev_ms is None or count is None or count < FEWEST_FREEDOM + 1:
        return None
    share = stdev_ms / mean_ms / math.sqrt(count)
    return Error(share, count - 1) if math.isfinite(share) and share >= 0 else None


def _blocks(means: Sequence[float]) -> list[float]:
    """At most so many blocks of equal length, as shares of their mean."""
    length = max(1, math.ceil(len(means) / MOST_BLOCKS))
    largest = max(means, default=0.0)
    if largest <= 0 or min(means) < 0:
        return []
    shares = [mean / largest for mean in means]
    whole = [
        fmean(shares[start : start + length])
        for start in range(0, len(shares) - length + 1, length)
    ]
    mean = fmean(whole)
    return [block / mean for block in whole] if mean > 0 else []


def _by_blocks(blocks: Sequence[float]) -> Error:
    count = len(blocks)
    correlation = _correlation(blocks)
    swings = count - 1
    if correlation * math.sqrt(count) <= CLEAR_ERRORS:
        correlation = 0.0
    else:
        swings = min(swings, max(FEWEST_SWINGS, round(swings * (1 - correlation) ** 2)))
    power = fmean(
        _power(blocks, swing) * _left_out(correlation, math.pi * swing / count)
        for swing in range(1, swings + 1)
    )
    return Error(math.sqrt(power / count), swings)


def _correlation(blocks: Sequence[float]) -> float:
    """Of neighbouring blocks, corrected for the bias that a short series has, from zero up."""
    around = [block - 1 for block in blocks]
    total = math.fsum(x * x for x in around)
    if total == 0:
        return 0.0
    found = math.fsum(x * y for x, y in pairwise(around)) / total
    found += (1 + 3 * max(found, 0.0)) / len(blocks)
    return min(max(found, 0.0), MOST_CORRELATION)


def _power(blocks: Sequence[float], swing: int) -> float:
    """Of the cosine with so many half periods over the run."""
    step = math.pi * swing / len(blocks)
    part = math.fsum(
        (block - 1) * math.cos(step * (place + 0.5)) for place, block in enumerate(blocks)
    )
    return 2 / len(blocks) * part * part


def _left_out(correlation: float, angle: float) -> float:
    """How much more power the mean itself has than this swing, by the blocks' correlation."""
    swing = 1 + correlation * correlation - 2 * correlation * math.cos(angle)
    return swing / (1 - correlation) ** 2
