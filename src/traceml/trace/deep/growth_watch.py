"""Tells whether a loss or a gradient norm grows, early enough to measure more before it is no
longer finite; and whether a norm has exploded."""

from __future__ import annotations

import math

GREW = 10.0
"""A value has grown when it is this many times the lowest level so far, and this many times the
last value that was reported."""
EXPLODED = 100.0
"""A norm has exploded when it is this many times the usual norm of the whole model."""
MIN_SEEN = 8
"""How many values come before one can have grown: the first ones may be anything."""
WEIGHT = 0.1
"""How much each value changes the level, a moving mean: it smooths two losses that take turns."""
CALM = 100
"""After this many values in a row without growth, the same growth is reported again."""


class GrowthWatch:
    """Follows positive values; others are ignored. Growth is measured from the lowest level so far:
    a moving mean would rise with an explosion."""

    def __init__(self) -> None:
        self._seen = self._calm = 0
        self._level = self._lowest = self._told = 0.0

    def has_grown(self, value: float) -> bool:
        """Whether this value is far above the lowest level, and above the last value that was
        reported as growth."""
        if not 0 < value < math.inf:
            return False
        is_high = self._seen >= MIN_SEEN and value >= GREW * self._lowest
        if not is_high:
            self._follow(value)
            return False
        self._calm = 0
        if value < GREW * self._told:
            return False
        self._told = value
        return True

    def _follow(self, value: float) -> None:
        self._calm += 1
        if self._calm >= CALM:
            self._told = 0.0
        self._level = value if not self._seen else self._level + WEIGHT * (value - self._level)
        self._seen += 1
        is_first = self._seen <= MIN_SEEN
        self._lowest = self._level if is_first else min(self._lowest, self._level)


class UsualNorm:
    """Knows which norm of the whole model is usual."""

    def __init__(self) -> None:
        self._usual: float | None = None

    def is_exploded(self, norm: float) -> bool:
        """Whether a norm is not finite, or far above what is usual."""
        if not math.isfinite(norm):
            return True
        usual = self._usual
        if usual is not None and norm > EXPLODED * usual:
            return True
        if usual is None:
            self._usual = norm
        elif norm < GREW * usual:  # larger ones do not change what is usual
            self._usual = usual + WEIGHT * (norm - usual)
        return False
