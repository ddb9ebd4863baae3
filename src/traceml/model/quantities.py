"""The one formatter: seconds, shares, bytes and counts in the form people read them.

`None`, and a number that is none, is "n/a": not measured is never shown as zero.
"""

from __future__ import annotations

import math
import re
from typing import TypeGuard

NOT_MEASURED = "n/a"
NOT_FINITE = "not finite"

MIN_TIMES = 10.0
"""From so much more on, nobody reads it as a percentage."""

_POWER = re.compile(r"e(?:(-)|\+)0*(\d)")
_MEMORY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_OPERATION_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


def _is_number(value: float | None) -> TypeGuard[float]:
    """Whether there is a number that arithmetic can be done with."""
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits, from a damaged file
        return False


def duration(seconds: float | None) -> str:
    """A length of time in the unit that suits it: 84 µs, 43.8 ms, 1.24 s, 3 min 20 s."""
    if not _is_number(seconds):
        return NOT_MEASURED
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.{1 if seconds < 1e-5 else 0}f} µs"
    if seconds < 0.99995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def milliseconds(ms: float | None, signed: bool = False) -> str:
    """Milliseconds, whatever their size, so that a column of them compares at a glance."""
    if not _is_number(ms):
        return NOT_MEASURED
    return f"{ms:{'+' if signed else ''},.{ms_decimals(ms)}f} ms"


def ms_decimals(ms: float) -> int:
    """How many digits a number of milliseconds is shown with behind its point."""
    size = abs(ms)
    if size >= 9999.5:
        return 0
    if size >= 0.9995 or size == 0:
        return 1
    return 2 if size >= 0.01 else 3


def percent(share: float | None, signed: bool = False) -> str:
    """A share of 1 as a percentage, with one decimal below ten."""
    if not _is_number(share):
        return NOT_MEASURED
    value = share * 100
    decimals = 1 if round(abs(value), 1) < 10 else 0
    return f"{value:{'+' if signed else ''},.{decimals}f}%"


def excess(share: float | None) -> str:
    """How much larger something is, as a share of what it is compared with: 24%, 200%, 186×."""
    if not _is_number(share):
        return NOT_MEASURED
    return percent(share) if share < MIN_TIMES else f"{1 + share:,.0f}×"


def memory(size_bytes: float | None) -> str:
    """An amount of memory in binary units."""
    if not _is_number(size_bytes):
        return NOT_MEASURED
    size = abs(size_bytes)
    unit = 0
    while size >= 1023.95 and unit < len(_MEMORY_UNITS) - 1:
        size /= 1024
        unit += 1
    decimals = 0 if unit == 0 else 2 if unit >= 3 and size < 9.995 else 1
    sign = "-" if size_bytes < 0 else ""
    return f"{sign}{size:,.{decimals}f} {_MEMORY_UNITS[unit]}"


def operations(number: float | None, per: str = "") -> str:
    """Floating-point operations in the unit that suits them: 125 MFLOP, 3.47 TFLOP, 989 TFLOP/s."""
    if not _is_number(number):
        return NOT_MEASURED
    unit = 0
    while number >= 999.5 and unit < len(_OPERATION_UNITS) - 1:
        number /= 1000
        unit += 1
    decimals = 0 if unit == 0 or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{decimals}f} {_OPERATION_UNITS[unit]}{per}"


def count(number: int | None, noun: str = "") -> str:
    """A whole number, with its noun in the right form where one is given."""
    if number is None:
        return NOT_MEASURED
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def significant(value: float | None) -> str:
    """A number of no unit, such as a loss, in four significant digits: 6.138, 9.28e-5, 12,345."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"  # and never "-0"
    return f"{value:,.0f}" if 999.95 < abs(value) < 1e9 else written(value, ".4g")


def param_words(value: object) -> str:
    """A parameter's value, written alike in lists, comparisons and on pages: 3 and not 3.0, 1e-5,
    true, none, and quotes where a text is empty."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _POWER.sub(r"e\1\2", repr(value).removesuffix(".0"))
    return '""' if value == "" else str(value)


def last_logged(value: float | None) -> str:
    """The last value of a metric that was logged. A summary's file keeps none for NaN and Inf, so
    that they are shown alike right after the run and later."""
    return significant(value) if value is not None and math.isfinite(value) else NOT_FINITE


def written(value: float, form: str) -> str:
    """A number in a format of Python's, its power of ten as short as charts have it: 4e-8."""
    return _POWER.sub(r"e\1\2", f"{value:{form}}")


def rate(per_second: float | None, noun: str) -> str:
    """So many of something each second, in three significant figures below a hundred."""
    if not _is_number(per_second):
        return NOT_MEASURED
    size = abs(per_second)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.0995 else 4
    return f"{per_second:,.{decimals}f} {noun}/s"


def factor_words(factor: float, interval: tuple[float, float]) -> str:
    """Returns a factor with its confidence interval: `2.10× (95% CI 1.90–2.30×)`."""
    low, high = interval
    return f"{factor:.2f}× (95% CI {low:.2f}–{high:.2f}×)"
