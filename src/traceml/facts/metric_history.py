"""Logged metrics over steps in few points, for charts: mean, lowest and highest of each point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceml.model.metric_direction import badness, guess_direction
from traceml.model.metric_segments import segments_by_metric, split_segment
from traceml.store.metric_follower import Logged

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_METRICS = 50
MAX_SEGMENTED = 12
"""Metrics of which segments are drawn."""
MAX_SEGMENTS = 8
"""Segments of one metric: more lines than that cannot be told apart."""
MAX_POINTS = 1000
"""Points of one curve: more than a chart has pixels."""
MAX_STRETCHES = 100
"""Stretches of values that cannot be drawn; where there are more, neighbours are joined."""
MAX_DRAWN = 1e300
"""Beyond it the arithmetic of an axis overflows; such a value is marked like an infinite one."""
TRAINING_LOSSES = ("loss", "train_loss", "training_loss", "train_batch_loss", "loss_train")
"""How people call the loss that they train with, in lower case and with `_` for other signs."""

NAN, INFINITE, MINUS_INFINITE, TOO_LARGE = "NaN", "Inf", "−Inf", "beyond ±1e300"
NOT_FINITE = "NaN or Inf"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring points that hold values which cannot be drawn."""

    first_step: int
    last_step: int
    kind: str
    """`NAN`, `INFINITE`, `MINUS_INFINITE` or `TOO_LARGE`."""
    count: int
    """How many such values."""


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """One logged metric; every array has one value per point."""

    name: str
    steps: Ints
    """The first step of each point."""
    values: Floats
    """The mean of the point's values; NaN where none can be drawn."""
    low: Floats
    high: Floats
    logged: int
    """How many values the points stand for."""
    stretches: tuple[Stretch, ...] = field(default=())
    """Where NaN, infinite and over-large values were logged."""

    @property
    def is_thinned(self) -> bool:
        """Whether a point stands for more than one value."""
        return self.logged > len(self.steps)

    @property
    def is_training_loss(self) -> bool:
        """Whether the script logged the loss that it trains with, judged by the name."""
        return is_training_loss(self.name)


def is_drawn(value: float) -> bool:
    """Returns whether a chart has a place for a value."""
    return abs(value) <= MAX_DRAWN  # NaN is not


def is_training_loss(name: str) -> bool:
    """Returns whether a metric's name is one of those for the loss of the training."""
    plain = "".join(sign if sign.isalnum() else "_" for sign in name.strip().lower())
    return plain in TRAINING_LOSSES


def metric_histories(
    logged: Mapping[str, Sequence[Logged]],
    steps: tuple[int, int] | None = None,
    max_points: int = MAX_POINTS,
) -> tuple[MetricHistory, ...]:
    """Returns the logged metrics, losses first, each thinned to what a chart can show; then the
    segments of metrics, those with the worst last values.

    With `steps`, the first and the last step, only values in that range, and so finer ones.
    """
    whole = sorted((name for name in logged if split_segment(name) is None), key=_order)
    names = [*whole[:MAX_METRICS], *_segments(logged)]
    return tuple(_metric(name, logged[name], steps, max_points) for name in names)


def _segments(logged: Mapping[str, Sequence[Logged]]) -> Iterator[str]:
    """Yields the segments that are drawn, metric by metric."""
    found = segments_by_metric(logged)
    for metric in sorted(found, key=_order)[:MAX_SEGMENTED]:
        is_up = guess_direction(metric)
        worst = {name: badness(logged[name][-1].values[-1], is_up) for name in found[metric]}
        yield from sorted(worst, key=worst.__getitem__)[:MAX_SEGMENTS]


def _order(name: str) -> tuple[bool, bool, str]:
    return not is_training_loss(name), "loss" not in name.lower(), name


def _metric(
    name: str, lives: Sequence[Logged], wanted: tuple[int, int] | None, max_points: int
) -> MetricHistory:
    steps: Ints = np.concatenate([np.array(life.steps, np.int64) for life in lives])
    values: Floats = np.concatenate([np.array(life.values, np.float64) for life in lives])
    if (np.diff(steps) <= 0).any():  # a step that was taken again: the last value holds
        steps, latest = np.unique(steps[::-1], return_index=True)
        values = values[::-1][latest]
    if wanted is not None:
        begin, end = np.searchsorted(steps, wanted[0]), np.searchsorted(steps, wanted[1], "right")
        steps, values = steps[begin:end], values[begin:end]
    return thinned(name, steps, values, max_points)


def no_history(name: str) -> MetricHistory:
    """Returns a metric of which nothing was logged."""
    nothing = np.empty(0)
    return MetricHistory(name, np.empty(0, np.int64), nothing, nothing, nothing, 0)


def thinned(name: str, steps: Ints, values: Floats, max_points: int = MAX_POINTS) -> MetricHistory:
    """Returns values, in the order of their steps, as at most so many points."""
    if not len(steps):
        return no_history(name)
    size = -(-len(steps) // max_points)
    starts = np.arange(0, len(steps), size)
    with np.errstate(invalid="ignore"):
        known = np.abs(values) <= MAX_DRAWN
    counts = np.add.reduceat(known.astype(np.int64), starts)
    # Each value is divided before it is added: a sum of large ones would overflow.
    shares = np.where(known, values, 0.0) / np.repeat(
        np.maximum(counts, 1), np.diff(np.append(starts, len(steps)))
    )
    some = counts > 0
    return MetricHistory(
        name,
        steps[starts],
        np.where(some, np.add.reduceat(shares, starts), np.nan),
        np.where(some, np.minimum.reduceat(np.where(known, values, np.inf), starts), np.nan),
        np.where(some, np.maximum.reduceat(np.where(known, values, -np.inf), starts), np.nan),
        len(steps),
        stretches_of(steps, values, starts),
    )


def stretches_of(steps: Ints, values: Floats, starts: Ints) -> tuple[Stretch, ...]:
    """Returns where values cannot be drawn; those in neighbouring points are one stretch."""
    found: list[Stretch] = []
    kinds = {
        NAN: np.isnan(values),
        INFINITE: values == np.inf,
        MINUS_INFINITE: values == -np.inf,
        TOO_LARGE: np.isfinite(values) & (np.abs(values) > MAX_DRAWN),
    }
    for kind, is_one in kinds.items():
        places = np.flatnonzero(is_one)
        points = np.searchsorted(starts, places, side="right") - 1
        found += [
            Stretch(int(steps[group[0]]), int(steps[group[-1]]), kind, len(group))
            for group in (places[part] for part in neighbours(points))
        ]
    return tuple(sorted(found, key=lambda stretch: stretch.first_step))


def neighbours(points: Ints) -> list[Ints]:
    """Returns the indices of points in groups of neighbours, at most `MAX_STRETCHES` of them."""
    if not len(points):
        return []
    reach, breaks = 1, np.flatnonzero(np.diff(points) > 1) + 1
    while len(breaks) >= MAX_STRETCHES:
        reach *= 2
        breaks = np.flatnonzero(np.diff(points) > reach) + 1
    return np.split(np.arange(len(points)), breaks)
