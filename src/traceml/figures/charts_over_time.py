"""Charts over time: what the agent sampled, a curve each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from traceml.facts.history import SensorHistory
from traceml.figures.charts_over_ranks import is_measured, rank_series
from traceml.figures.colours import series_colour
from traceml.figures.page import Axis, Lines, Series
from traceml.figures.units import Floats, Unit, moment_unit, moments, scaled

Curves = Mapping[str, Floats]
"""The sampled values in order, by what was sampled."""


def curves(
    name: str,
    title: str,
    sensors: SensorHistory,
    shown: Sequence[tuple[str, Floats | None]],
    unit: Unit,
    y: Axis,
) -> Lines | None:
    """Returns a line per quantity, by its name in the legend; `None` where none was measured."""
    measured = [
        (words, curve) for words, curve in shown if curve is not None and is_measured(curve)
    ]
    series = tuple(
        Series(words, series_colour(number), scaled(curve, unit))
        for number, (words, curve) in enumerate(measured)
    )
    return _drawn(name, title, sensors, series, y)


def curves_by(
    name: str,
    title: str,
    sensors: SensorHistory,
    table: Mapping[int, Curves] | Mapping[str, Curves],
    field: str,
    noun: str,
    unit: Unit,
    y: Axis,
    labels: Sequence[str] = (),
) -> Lines | None:
    """Returns a line per rank, GPU or node for one field; `None` where none was measured.

    `labels` are what they are called in the legend; else it is the noun with the number.
    """
    rows = table_of(table, field)
    if rows is None:
        return None
    names = labels or [f"{noun} {place}" for place in table]
    return _drawn(name, title, sensors, rank_series(rows, names, unit, noun), y)


def table_of(table: Mapping[int, Curves] | Mapping[str, Curves], field: str) -> Floats | None:
    """Returns a row per rank, GPU or node; `None` where none has the field."""
    lengths = {len(curve) for each in table.values() for curve in each.values()}
    missing = np.full(max(lengths, default=0), np.nan)
    rows = [each.get(field, missing) for each in table.values()]
    if not rows or not any(is_measured(row) for row in rows):
        return None
    return np.stack(rows)


def peak(curve: Floats | None) -> float | None:
    """Returns the highest measured value."""
    if curve is None or not is_measured(curve):
        return None
    return float(np.nanmax(curve))


def _drawn(
    name: str, title: str, sensors: SensorHistory, series: tuple[Series, ...], y: Axis
) -> Lines | None:
    if not series or not len(sensors.at_s):
        return None
    unit = moment_unit(sensors.at_s)
    return Lines(
        id=name,
        title=title,
        x=Axis("elapsed", unit.symbol),
        y=y,
        at=moments(sensors.at_s, unit),
        series=series,
    )
