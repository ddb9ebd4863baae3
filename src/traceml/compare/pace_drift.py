"""By how much two runs may differ because their step time drifted, estimated from the drift within
them.

A machine that is slow for a while can be slow for a whole run. How much of the drift remains in a
run's mean is estimated from the run itself, by comparing short and long parts of it: for
independent steps the variance falls as parts get longer, for a drifting step time it hardly does.
The same decrease is assumed from the long parts to the whole run. What independent steps would
leave is in the interval of the steps already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import pstdev, variance

from traceml.compare.students_t import quantile

LONG_PARTS = 8
SHORT_PARTS = 32
MIN_BLOCKS = 16
"""Of a run: with fewer, short and long parts cannot be distinguished."""

MIN_RATIO = 1e-12
"""Of the shortest block to the longest: below it the ratios are numerically useless."""

Blocks = Sequence[float]


def drift_reach(a: Blocks, b: Blocks) -> float | None:
    """Returns by how much the means of two runs may differ, as a logarithm: a 95 % limit.

    `a` and `b` are mean times of consecutive blocks of steps; `None` with too few blocks.
    """
    if not (is_usable(a) and is_usable(b)):
        return None
    short_count = min(SHORT_PARTS, len(a), len(b))
    short, long = (
        [math.log(y / x) for x, y in zip(parts(a, count), parts(b, count), strict=True)]
        for count in (short_count, LONG_PARTS)
    )
    long_variance = variance(long)
    if long_variance == 0:
        return 0.0
    ratio = variance(short) / long_variance
    fall = math.log(max(ratio, 1.0)) / math.log(short_count / LONG_PARTS)
    left = LONG_PARTS ** -min(fall, 1.0) - 1 / LONG_PARTS
    return quantile(LONG_PARTS - 1) * math.sqrt(long_variance * left)


def spread_of_parts(blocks: Blocks) -> float:
    """Returns the spread of the long parts of one run, as a share of their mean."""
    long = parts(blocks, LONG_PARTS)
    return pstdev(long) / (sum(long) / len(long))


def is_usable(blocks: Blocks) -> bool:
    """Returns whether there are enough blocks, all with positive times."""
    if len(blocks) < MIN_BLOCKS or max(blocks) == math.inf:
        return False
    return min(blocks) > 0 and min(blocks) / max(blocks) > MIN_RATIO


def parts(blocks: Blocks, count: int) -> list[float]:
    """Returns the means of so many equal parts of the run, relative to the largest block.

    A block that lies across two parts counts in both.
    """
    scale = max(blocks)
    sums = [0.0, *accumulate(block / scale for block in blocks)]

    def total_up_to(place: float) -> float:
        whole = min(int(place), len(blocks) - 1)
        return sums[whole] + (place - whole) * (sums[whole + 1] - sums[whole])

    length = len(blocks) / count
    ends = [total_up_to(min(length * part, len(blocks))) for part in range(count + 1)]
    return [(later - earlier) / length for earlier, later in pairwise(ends)]
