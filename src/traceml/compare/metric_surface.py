"""A metric as a smooth surface over two numeric parameters, known only where runs are near."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from traceml.compare.parameter_columns import Floats

SIZE = 36
"""Places of the surface in each direction."""
MIN_SETTINGS = 16
MIN_DISTINCT = 6
"""With fewer different values of a parameter, a grid of its values says more."""
MIN_LOG_RATIO = 30.0
"""Between the 5th and the 95th percentile: from here on an axis is logarithmic."""
MIN_WIDTH, MAX_WIDTH = 0.06, 0.2
"""Of the kernel, as a share of an axis."""
REACH = 2.0
"""A place is known when a run is within so many widths."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """How values of a parameter lie on an axis from 0 to 1."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, values: Floats) -> AxisScale:
        """Returns a scale from the smallest to the largest value."""
        low, high = float(values.min()), float(values.max())
        few, most = np.quantile(values, (0.05, 0.95))
        return cls(low, high, bool(low > 0 and most / MIN_LOG_RATIO >= few))

    def places(self, values: Floats) -> Floats:
        """Returns where values lie."""
        ends = np.array([self.low, self.high])
        if self.is_log:
            values, ends = np.log(values), np.log(ends)
        # Halved first: the distance of two of the largest numbers is not a number.
        found: Floats = (values / 2 - ends[0] / 2) / (ends[1] / 2 - ends[0] / 2)
        return found

    def values(self, places: Floats) -> Floats:
        """Returns the values at places."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            found: Floats = np.exp(low + places * (high - low))
            return found
        return self.low * (1 - places) + self.high * places


@dataclass(frozen=True, slots=True)
class MetricSurface:
    """The metric over two parameters."""

    across: AxisScale
    down: AxisScale
    at_across: Floats
    at_down: Floats
    values: Floats
    """By `at_down`, then `at_across`; NaN where no run is near."""


def surface_of(across: Floats, down: Floats, metric: Floats) -> MetricSurface | None:
    """Returns the metric smoothed by a Gaussian kernel over two parameters; `None` where the
    settings are too few, or a parameter has too few different values."""
    known = np.isfinite(across) & np.isfinite(down) & np.isfinite(metric)
    across, down, metric = across[known], down[known], metric[known]
    if len(metric) < MIN_SETTINGS:
        return None
    if min(len(np.unique(across)), len(np.unique(down))) < MIN_DISTINCT:
        return None
    scales = AxisScale.over(across), AxisScale.over(down)
    x, y = scales[0].places(across), scales[1].places(down)
    width = min(MAX_WIDTH, max(MIN_WIDTH, len(metric) ** (-1 / 6) / 3))
    grid = np.linspace(0.0, 1.0, SIZE)
    near_x, near_y = _distances(grid, x) / width, _distances(grid, y) / width
    # By place down, place across and run.
    squares = near_y[:, None, :] ** 2 + near_x[None, :, :] ** 2
    weights = np.exp(-squares / 2)
    is_near = squares.min(axis=2) <= REACH**2
    shares = weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-300)
    values = np.where(is_near, shares @ metric, math.nan)
    return MetricSurface(*scales, scales[0].values(grid), scales[1].values(grid), values)


def _distances(places: Floats, others: Floats) -> Floats:
    found: Floats = places[:, None] - others[None, :]
    return found
