"""Turns a column of the run index into one that charts can draw: numbers, dates or categories."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.metric_history import MAX_DRAWN
from traceml.figures.exploration_record import Category, ExploredColumn, ExploredKind
from traceml.figures.units import PLAIN, Unit, memory_unit, moment_unit, rounded
from traceml.figures.words import line
from traceml.model.printable import shorten_middle
from traceml.model.quantities import count, significant
from traceml.model.run_values import RunValue, number_of
from traceml.store.query_language import quoted
from traceml.store.query_names import MOMENTS, written_key

Values = Sequence[RunValue | None]
Floats = npt.NDArray[np.float64]

DIGITS = 7
"""Significant digits of a value that is sent: a filter made from a chart finds the same runs."""
MAX_LABEL = 40
MAX_CATEGORIES = 40
"""Values of a category with a place of their own, the most frequent ones."""
MAX_MIXED_CATEGORIES = 12
"""A column with words among its numbers is one of categories up to so many different values."""
MIN_LOG_RATIO = 30.0
"""Between the 5th and the 95th percentile: from here on a column is drawn on a log axis."""


@dataclass(frozen=True, slots=True)
class _RunsLeftOut:
    """Runs of a column that have no place on its axis."""

    missing: int = 0
    not_finite: int = 0
    words: int = 0

    def said(self, of: int) -> str | None:
        """Returns how many there are of each kind; `None` for none."""
        parts = [
            f"{count(self.missing)} without a value" if self.missing else "",
            f"{count(self.not_finite)} with NaN or an infinite value" if self.not_finite else "",
            f"{count(self.words)} with words among the numbers" if self.words else "",
        ]
        known = ", ".join(part for part in parts if part)
        return f"{known}, of {count(of, 'run')}" if known else None


def label_of(key: str) -> str:
    """Returns a column's name as a person reads it, on one line: "lr", "loss (min)"."""
    section, _, name = key.partition(".")
    words = shorten_middle(line(name), MAX_LABEL)
    return words if section in ("facts", "params", "metrics") else f"{words} ({section})"


def explored_column(key: str, values: Values) -> ExploredColumn:
    """Returns a column as charts draw it."""
    numbers = numbers_of(values)
    if key.removeprefix("facts.") in MOMENTS and key.startswith("facts."):
        return _of_numbers(key, values, numbers, "moment")
    if _are_numbers(values):
        return _of_numbers(key, values, numbers, "number")
    return _of_categories(key, values)


def numbers_of(values: Values) -> Floats:
    """Returns the values as numbers, also a text that is one; NaN for all others."""
    if _are_plain(values):
        return np.array([math.nan if value is None else value for value in values], np.float64)
    return np.array([_number(value) for value in values], np.float64)


def _are_plain(values: Values) -> bool:
    """Returns whether there are numbers alone, as nearly always: they are converted at once."""
    return set(map(type, values)) <= {int, float, type(None)}


def _number(value: RunValue | None) -> float:
    if value is None or isinstance(value, bool | tuple):
        return math.nan
    known = number_of(value)
    return math.nan if known is None else known


def _is_word(value: RunValue | None) -> bool:
    """Returns whether a value is none that a number could be."""
    if value is None:
        return False
    return isinstance(value, bool | tuple) or number_of(value) is None


def _count_words(values: Values) -> int:
    return 0 if _are_plain(values) else sum(map(_is_word, values))


def _are_numbers(values: Values) -> bool:
    words = _count_words(values)
    known = sum(value is not None for value in values)
    if words == 0 or words == known:
        return words == 0
    distinct = len({_identity(value) for value in values if value is not None})
    return distinct > MAX_MIXED_CATEGORIES and words < known / 2


def _of_numbers(key: str, values: Values, numbers: Floats, kind: ExploredKind) -> ExploredColumn:
    with np.errstate(invalid="ignore"):
        drawn = np.where(np.abs(numbers) <= MAX_DRAWN, numbers, math.nan)
    words = _count_words(values)
    missing = sum(value is None for value in values)
    lost = int(np.isnan(drawn).sum()) - words - missing
    is_number = kind == "number"
    unit = unit_of(key, drawn) if is_number else PLAIN
    # A moment has ten digits before the point: it is not shortened.
    exact = tuple(None if math.isnan(each) else each for each in drawn.tolist())
    return ExploredColumn(
        name=written_key(key),
        label=label_of(key),
        kind=kind,
        values=rounded(drawn / unit.size, DIGITS) if is_number else exact,
        unit=unit.symbol,
        is_log=is_number and _is_log(key, drawn),
        left_out=_RunsLeftOut(missing, lost, words).said(len(values)),
    )


def unit_of(key: str, numbers: Floats) -> Unit:
    """Returns the unit in which a column is shown, which the end of its name says."""
    if key.endswith("_bytes"):
        return memory_unit(numbers)
    if key.startswith("facts.") and key.endswith("_s") and not key.endswith("_per_s"):
        return moment_unit(numbers)
    return Unit("ms", 1.0) if key.startswith("facts.") and key.endswith("_ms") else PLAIN


def _is_log(key: str, numbers: Floats) -> bool:
    known = numbers[~np.isnan(numbers)]
    if key.startswith("facts.") or len(known) == 0 or known.min() <= 0:
        return False
    low, high = np.quantile(known, (0.05, 0.95))
    return bool(high / MIN_LOG_RATIO >= low)


def _identity(value: RunValue) -> tuple[bool, object]:
    """Returns what equal values have in common: 1 equals 1.0 but not true."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (isinstance(value, bool), "nan" if is_nan else value)


def _of_categories(key: str, values: Values) -> ExploredColumn:
    examples = {_identity(value): value for value in values if value is not None}
    counts = Counter(_identity(value) for value in values if value is not None)
    frequent = [each for each, _ in counts.most_common(MAX_CATEGORIES)]
    is_whole = len(frequent) == len(counts)
    kept = frequent if is_whole else frequent[:-1]
    shown = sorted((examples[each] for each in kept), key=_order)
    places = {_identity(value): place for place, value in enumerate(shown)}
    categories = [Category(category_label(value), condition_of(key, value)) for value in shown]
    if not is_whole:
        others = len(counts) - len(kept)
        conditions = " or ".join(each.condition for each in categories)
        present = f"{written_key(key)} is not missing"
        categories.append(
            Category(f"{count(others)} other values", f"{present} and not ({conditions})")
        )
    missing = sum(value is None for value in values)
    return ExploredColumn(
        name=written_key(key),
        label=label_of(key),
        kind="category",
        values=tuple(
            None if value is None else float(places.get(_identity(value), len(shown)))
            for value in values
        ),
        categories=tuple(categories),
        left_out=_RunsLeftOut(missing).said(len(values)),
    )


def _order(value: RunValue) -> tuple[int, float, str]:
    """Returns what categories are sorted by: truth values, then numbers, then words."""
    if isinstance(value, bool):
        return (0, float(value), "")
    if isinstance(value, int | float):
        return (2, 0.0, "") if math.isnan(value) else (1, _number(value), "")
    return (3, 0.0, str(value).casefold())


def category_label(value: RunValue | None) -> str:
    """Returns a value as an axis or a group names it."""
    if value is None:
        return "no value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return significant(value)
    words = line(", ".join(value) if isinstance(value, tuple) else value)
    return shorten_middle(words, MAX_LABEL) or "(empty)"


def condition_of(key: str, value: RunValue) -> str:
    """Returns the condition that runs with this value fulfil, in the language of filters."""
    name = written_key(key)
    if isinstance(value, tuple):
        each = " and ".join(f"{name} contains {quoted(word)}" for word in value)
        return each or f"{name} is not missing"
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}"
    if isinstance(value, int | float):
        return f"{name} = {value!r}"
    return f"{name} = {quoted(value)}"
