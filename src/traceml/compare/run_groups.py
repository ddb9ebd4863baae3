"""Groups runs by what they have in common, and sums up each group: mean, 95 % interval, best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from traceml.compare.students_t import MeanError, reach
from traceml.model.metric import METRICS
from traceml.model.metric_direction import direction_of
from traceml.model.run_values import RunValue

Values = Sequence[RunValue | None]

_MORE_IS_BETTER = {
    **{metric.key: metric.more_is_better for metric in METRICS if metric.word},
    "throughput": True,
    "peak_memory_bytes": False,
    "duration_s": False,
}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One column of a group of runs; the run is the unit."""

    count: int
    """Runs with a finite number."""
    mean: float | None
    low: float | None
    """The 95 % confidence interval of the mean; `None` for fewer than two runs."""
    high: float | None
    minimum: float | None
    maximum: float | None
    best: float | None
    """The minimum or the maximum; `None` where it is not known which is better."""
    not_finite: int
    """Runs with a NaN or an infinite value, which are in no other number here."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that have the same values under the keys that they are grouped by."""

    values: Mapping[str, RunValue | None]
    rows: tuple[int, ...]
    """Their places in the list of runs."""
    columns: Mapping[str, Aggregate]


GroupOrder = Sequence[tuple[str, bool]]
"""Keys, and whether the largest come first."""


def group_runs(
    numbers: Sequence[int],
    by: Mapping[str, Values],
    columns: Mapping[str, Values],
    order: GroupOrder = (),
    limit: int | None = None,
    said: Mapping[str, bool] | None = None,
) -> list[RunGroup]:
    """Returns the groups of runs, with aggregates of the columns.

    `numbers` says which group each run is in, `by` what they have in common. They are sorted by
    that, or by other keys: of a column by its mean. `said` is what the scripts said of columns:
    whether more is better.
    """
    places: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        places.setdefault(number, []).append(row)
    groups = list(places.values())
    said = said or {}
    groups.sort(key=lambda rows: tuple(_order(values[rows[0]]) for values in by.values()))
    for key, descending in reversed(order):
        groups = _sorted(groups, _values_of_groups(groups, key, by, columns), descending)
    return [
        RunGroup(
            values={key: values[rows[0]] for key, values in by.items()},
            rows=tuple(rows),
            columns={
                key: aggregate([values[row] for row in rows], is_more_better(key, said.get(key)))
                for key, values in columns.items()
            },
        )
        for rows in groups[:limit]
    ]


def _values_of_groups(
    groups: Sequence[Sequence[int]],
    key: str,
    by: Mapping[str, Values],
    columns: Mapping[str, Values],
) -> Values:
    """Returns what groups are sorted by: a value that they have in common, or a mean."""
    if key in by:
        return [by[key][rows[0]] for rows in groups]
    values = columns[key]
    return [_mean(_finite([values[row] for row in rows])) for rows in groups]


def _sorted(groups: list[list[int]], values: Values, descending: bool) -> list[list[int]]:
    """Returns the groups by these values; those without one are last in both directions."""
    known = [place for place, value in enumerate(values) if value is not None]
    known.sort(key=lambda place: _order(values[place]), reverse=descending)
    missing = [place for place, value in enumerate(values) if value is None]
    return [groups[place] for place in (*known, *missing)]


def aggregate(values: Values, more_is_better: bool | None) -> Aggregate:
    """Returns the mean of the numbers, its interval and the extremes; others are not counted."""
    numbers = _numbers(values)
    finite = _finite(values)
    lowest, highest = min(finite, default=None), max(finite, default=None)
    mean = _mean(finite)
    low, high = _interval(finite, mean)
    return Aggregate(
        count=len(finite),
        mean=mean,
        low=low,
        high=high,
        minimum=lowest,
        maximum=highest,
        best=None if more_is_better is None else highest if more_is_better else lowest,
        not_finite=len(numbers) - len(finite),
    )


def is_more_better(key: str, said: bool | None = None) -> bool | None:
    """Returns whether more of a column is better: what the scripts said of it, else what its name
    suggests; `None` where neither says."""
    section, _, name = key.partition(".")
    if section == "facts":
        return _MORE_IS_BETTER.get(name)
    return None if section == "params" else direction_of(name, said).higher_is_better


def _numbers(values: Values) -> list[float]:
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def _finite(values: Values) -> list[float]:
    return [number for number in _numbers(values) if math.isfinite(number)]


def _mean(finite: Sequence[float]) -> float | None:
    if not finite:
        return None
    try:
        return fmean(finite)
    except OverflowError:  # of several numbers near the largest
        return fmean([number / len(finite) for number in finite]) * len(finite)


def _interval(
    finite: Sequence[float], mean: float | None
) -> tuple[float, float] | tuple[None, None]:
    """Returns the 95 % confidence interval of the mean; none for fewer than two numbers, or where
    it exceeds all numbers."""
    if mean is None or len(finite) < 2:
        return None, None
    try:
        half = reach(MeanError(stdev(finite) / math.sqrt(len(finite)), len(finite) - 1))
    except OverflowError:
        return None, None
    is_known = math.isfinite(mean - half) and math.isfinite(mean + half)
    return (mean - half, mean + half) if is_known else (None, None)


def _order(value: RunValue | None) -> tuple[int, float, str]:
    """Returns what groups are sorted by: numbers, then texts, then what is missing."""
    if value is None:
        return (3, 0.0, "")
    if isinstance(value, bool | str | tuple):
        return (1, 0.0, str(value).casefold())
    return (2, 0.0, "") if math.isnan(value) else (0, float(value), "")
