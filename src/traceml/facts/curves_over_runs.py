"""The history of one metric over several runs: mean, lowest and highest at common steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.metric_history import Floats, Ints, MetricHistory

MAX_POINTS = 300


@dataclass(frozen=True, slots=True)
class CurveOverRuns:
    """One value per common step; NaN where no run has logged before and after it."""

    mean: Floats
    low: Floats
    high: Floats
    spread: Floats
    """The standard deviation of the runs; NaN for fewer than two."""
    counts: Ints
    """How many runs there are at each step."""
    runs: int
    """How many runs have a point that can be drawn."""


def common_steps(histories: Sequence[MetricHistory], max_points: int = MAX_POINTS) -> Floats:
    """Returns the steps at which runs are compared: all that any of them logged, or evenly spaced
    ones where those are too many."""
    drawn = [_drawn(history)[0] for history in histories]
    steps = np.unique(np.concatenate([np.empty(0), *drawn]))
    if len(steps) <= max_points:
        return steps
    # Both ends are kept, and steps stay whole numbers as the scripts counted them.
    return np.unique(np.round(np.linspace(steps[0], steps[-1], max_points)))


def curve_over_runs(histories: Sequence[MetricHistory], at: Floats) -> CurveOverRuns:
    """Returns the mean and the range of runs at these steps.

    Between two of its points a run's value is interpolated; before its first and after its last
    point the run does not count.
    """
    values = np.full((len(histories), len(at)), np.nan)
    for row, history in zip(values, histories, strict=True):
        steps, known = _drawn(history)
        if len(steps):
            row[:] = np.interp(at, steps, known, left=np.nan, right=np.nan)
    known = ~np.isnan(values)
    counts = known.sum(axis=0)
    # Each is divided before it is added: a sum of large ones would overflow.
    mean = np.where(known, values, 0.0) / np.maximum(counts, 1)
    low = np.where(known, values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(known, values, -np.inf).max(axis=0, initial=-np.inf)
    some = counts > 0
    middle = np.where(some, mean.sum(axis=0), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.where(known, (values - middle) ** 2, 0.0).sum(axis=0)
        spread = np.sqrt(squares / np.where(counts > 1, counts - 1, np.nan))
    return CurveOverRuns(
        middle,
        np.where(some, low, np.nan),
        np.where(some, high, np.nan),
        spread,
        counts,
        int(known.any(axis=1).sum()),
    )


def _drawn(history: MetricHistory) -> tuple[Floats, Floats]:
    """Returns the steps and values of the points that can be drawn."""
    known = ~np.isnan(history.values)
    return history.steps[known].astype(np.float64), history.values[known]
