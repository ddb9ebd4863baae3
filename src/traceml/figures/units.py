"""One unit per axis: numbers are scaled to it here, and nowhere else.

Words with a number in them come from `model/quantities.py`; an axis needs the number alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.figures.page import Axis

Floats = npt.NDArray[np.float64]
Values = tuple["float | None", ...]

DIGITS = 4
"""Significant digits of a value that is drawn: finer than any screen, and JSON stays small."""
NEAR_ZERO = 0.5
"""Of the largest value: where the smallest is below this, an axis begins at zero."""
MIN_REACH = 0.05
"""As a share of the largest value: an axis covers at least this range."""
MAX_EXPONENT = 300
"""Powers of ten beyond this overflow a double."""
ROUND_NUMBERS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
ROUND_STEPS = (2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0)
"""Distances between two labels of an axis; the last is as long as any axis."""
MAX_STEPS = 5
TIME_AXIS_DIGITS = 5
"""Significant digits of a time axis: its values lie closer together than others."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of an axis."""

    symbol: str
    size: float
    """One of it, in the base unit (seconds, bytes, 1)."""


DURATIONS = (Unit("µs", 1e-6), Unit("ms", 1e-3), Unit("s", 1.0))
MOMENTS = (Unit("s", 1.0), Unit("min", 60.0), Unit("h", 3600.0))
BYTES = (Unit("KiB", 2.0**10), Unit("MiB", 2.0**20), Unit("GiB", 2.0**30), Unit("TiB", 2.0**40))
PERCENT = Unit("%", 0.01)
PLAIN = Unit("", 1.0)
CELSIUS = Unit("°C", 1.0)
WATT = Unit("W", 1.0)
CORES = Unit("cores", 1.0)


def time_unit(*lengths_s: Sequence[float] | Floats | float | None) -> Unit:
    """Returns the unit of an axis of durations."""
    return _largest_below(DURATIONS, _largest(lengths_s), 0.9995)


def moment_unit(at_s: Sequence[float] | Floats) -> Unit:
    """Returns the unit of an axis of elapsed time."""
    return _largest_below(MOMENTS, _largest((at_s,)), 3.0)


def memory_unit(*sizes_bytes: Sequence[float] | Floats | float | None) -> Unit:
    """Returns the unit of an axis of memory."""
    return _largest_below(BYTES, _largest(sizes_bytes), 0.9995)


def rate_unit(*bytes_per_s: Sequence[float] | Floats | float | None) -> Unit:
    """Returns the unit of an axis of bytes per second."""
    unit = memory_unit(*bytes_per_s)
    return Unit(f"{unit.symbol}/s", unit.size)


def scaled(values: Sequence[float] | Floats, unit: Unit, digits: int = DIGITS) -> Values:
    """Returns the values in a unit; NaN, which means not measured, becomes `None`."""
    return rounded(np.asarray(values, dtype=np.float64) / unit.size, digits)


def scaled_rows(table: Floats, unit: Unit) -> tuple[Values, ...]:
    """Returns every row of a table in a unit."""
    return tuple(scaled(row, unit) for row in table)


def scaled_one(value: float, unit: Unit) -> float:
    """Returns one measured number in a unit."""
    return scaled((value,), unit)[0] or 0.0


def moments(at_s: Floats, unit: Unit) -> tuple[float, ...]:
    """Returns times in a unit; all of them are known."""
    return tuple(value or 0.0 for value in scaled(at_s, unit, TIME_AXIS_DIGITS))


def fitted(label: str, unit: Unit, *tables: Floats) -> Axis:
    """Returns an axis fitted to the values: from zero only where the smallest comes near it.

    Values that hardly differ keep some room, so that noise is not drawn as large as a trend.
    """
    shown = [table[np.isfinite(table)] / unit.size for table in tables]
    known = np.concatenate([np.ravel(table) for table in shown])
    if not known.size:
        return Axis(label, unit.symbol)
    least, most = float(known.min()), float(known.max())
    if 0 <= least < NEAR_ZERO * most:
        return Axis(label, unit.symbol, low=0.0)
    reach = max(most - least, MIN_REACH * max(abs(least), abs(most)))
    if not 10.0**-MAX_EXPONENT < reach < 10.0**MAX_EXPONENT:
        return Axis(label, unit.symbol)
    low_shown, high_shown = rounded(np.array(_round_ends(least / 2 + most / 2, reach)))
    return Axis(label, unit.symbol, low=low_shown, high=high_shown)


def _round_ends(middle: float, reach: float) -> tuple[float, float]:
    """Returns the nearest two ends of an axis between which a few round steps fit."""
    power = 10.0 ** (math.floor(math.log10(reach)) - 1)
    ends = (
        (step, math.floor(low + 1e-9), math.ceil(high - 1e-9))
        for step in (times * power for times in ROUND_STEPS)
        for low, high in [((middle - reach / 2) / step, (middle + reach / 2) / step)]
    )
    return next((low * step, high * step) for step, low, high in ends if high - low <= MAX_STEPS)


def next_round(value: float) -> float:
    """Returns the next larger round number, to end an axis with."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step for step in ROUND_NUMBERS if step * power >= value * (1 - 1e-9)) * power


def rounded(values: Floats, digits: int = DIGITS) -> Values:
    """Returns the values with so many significant digits, ready for JSON."""
    known = np.isfinite(values)
    sizes = np.abs(np.where(known & (values != 0), values, 1.0))
    places = (digits - 1 - np.floor(np.log10(sizes)).astype(np.int64)).clip(
        -MAX_EXPONENT, MAX_EXPONENT
    )
    below = 10.0 ** np.maximum(places, 0)
    above = 10.0 ** np.maximum(-places, 0)
    # Both are whole powers of ten, so that what comes out is the double nearest to its digits.
    shown = np.round(np.where(known, values, 0.0) / above * below) / below * above
    if known.all():
        return tuple(shown.tolist())
    return tuple(
        value if is_known else None
        for value, is_known in zip(shown.tolist(), known.tolist(), strict=True)
    )


def _largest(groups: Iterable[Sequence[float] | Floats | float | None]) -> float:
    found = 0.0
    for group in groups:
        sizes = np.abs(np.atleast_1d(np.asarray(np.nan if group is None else group, np.float64)))
        sizes = sizes[np.isfinite(sizes)]
        if sizes.size:
            found = max(found, float(sizes.max()))
    return found


def _largest_below(units: Sequence[Unit], size: float, least: float) -> Unit:
    """Returns the largest unit of which the size holds at least `least`; the second of them for a
    size of 0."""
    if not size:
        return units[1]
    fitting = [unit for unit in units if size >= least * unit.size]
    return fitting[-1] if fitting else units[0]
