"""The values of runs that queries are about: how one is compared with what a filter asks for.

A value is a number, a text, a truth value, or a list of texts (tags); `None` is missing. This is
the one definition of each comparison: columns of numbers compute the same all at once
(`store/index_columns.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

RunValue = str | bool | int | float | tuple[str, ...]
"""What a run has under a key."""
Wanted = str | bool | float
"""What a filter asks for."""

ORDERINGS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
)
"""Of two values, or of a whole column and a value."""
TESTS = ("present", "=", *ORDERINGS, "in", "contains", "matches")
"""What can be asked of a value; `!=` and `not in` are made of these."""

_MAX_NUMBER_CHARS = 40


def holds(value: RunValue | None, test: str, wanted: Sequence[Wanted]) -> bool:
    """Returns whether a value passes a test; a missing value passes none."""
    if value is None:
        return False
    if test == "present":
        return True
    if isinstance(value, tuple):  # one of several texts suffices; the tags contain whole words
        inner = "=" if test == "contains" else test
        return any(holds(each, inner, wanted) for each in value)
    if test == "in":
        return any(_is_equal(value, each) for each in wanted)
    if test == "=":
        return _is_equal(value, wanted[0])
    if test in ORDERINGS:
        return _is_ordered(value, test, wanted[0])
    if not isinstance(value, str):
        return False
    pattern = str(wanted[0]).casefold()
    if test == "contains":
        return pattern in value.casefold()
    return fnmatchcase(value.casefold(), pattern)


def _is_equal(value: str | bool | float, wanted: Wanted) -> bool:
    """Returns whether two values are equal; a number equals a text that reads as that number."""
    if isinstance(wanted, bool) or isinstance(value, bool):
        return _word(value) == _word(wanted)
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted
    left, right = number_of(value), number_of(wanted)
    if left is None or right is None:
        return False
    return left == right or (math.isnan(left) and math.isnan(right))


def _word(value: str | bool | float) -> str:
    return value.casefold() if isinstance(value, str) else str(value).casefold()


def _is_ordered(value: str | bool | float, test: str, wanted: Wanted) -> bool:
    """Returns whether two numbers or two texts are in this order; NaN and truth values are in
    none."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return False
    if isinstance(value, str) and isinstance(wanted, str):
        return bool(ORDERINGS[test](value, wanted))
    left, right = number_of(value), number_of(wanted)
    return left is not None and right is not None and bool(ORDERINGS[test](left, right))


def number_of(value: str | float) -> float | None:
    """Returns a value as a number, also a text that is one ("1e-3"); `None` for other texts."""
    if not isinstance(value, str):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if len(value) > _MAX_NUMBER_CHARS or not value[:1] or value[0] not in "+-.0123456789infINF":
        return None
    try:
        return None if "_" in value else float(value)
    except ValueError:
        return None
