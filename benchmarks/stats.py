"""Medians and their intervals, by the standard library alone: a timed process stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the order statistics that hold the true one with 95 % confidence.

    Exact for any distribution of independent values; of fewer than six the whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    outside = 0  # how many values may be left out at each end
    tail = 0.0
    while outside < count // 2:
        tail += comb(count, outside) / 2**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside += 1
    lowest = max(outside - 1, 0)
    return median(ordered), ordered[lowest], ordered[count - 1 - lowest]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the (sorted) values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
