"""Text and values for a page's cells: on one line, without control characters, and shortened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traceml.model.printable import one_line, printable
from traceml.model.quantities import NOT_MEASURED, excess
from traceml.summaries.record import Global, RankRow, RankValue
from traceml.summaries.tables import place_words

MAX_CHARS = 400
"""Of a sentence or a path."""
MAX_CELL_CHARS = 160
TAB = 4


def line(text: object, longest: int = MAX_CHARS) -> str:
    """Returns a text on one line, without control characters."""
    return one_line(text, longest)


def cell(value: object) -> str:
    """Returns a value as a table shows it; empty for `None`."""
    return "" if value is None else line(value, MAX_CELL_CHARS)


def output_line(text: str) -> str:
    """Returns a line of the training's output, with its indentation."""
    return printable(text.expandtabs(TAB))


def joined(parts: Iterable[str | None]) -> str:
    """Returns the non-empty facts, joined."""
    return " · ".join(part for part in parts if part)


def measured_value(by_metric: Mapping[str, RankValue], key: str | None) -> float | None:
    """Returns a metric of a section's median or worst; `None` where it was not measured."""
    return None if key is None or key not in by_metric else by_metric[key].value


def rank_cell(by_metric: Mapping[str, RankValue], key: str) -> str:
    """Returns the rank that has the median or the worst of a metric, as a table shows it."""
    found = by_metric.get(key)
    return NOT_MEASURED if found is None or found.idx is None else cell(found.idx)


def rank_words(name: str, row: RankRow | None) -> str:
    """Returns a rank with its place in the device mesh, where it has one: `rank 5 (dp 1, tp 1)`."""
    place = "" if row is None else place_words(row.identity)
    return f"rank {cell(name)}" + (f" ({cell(place)})" if place else "")


def skew_words(median: float | None, worst: float | None) -> str:
    """Returns how much larger the worst is than the median; "n/a" where the median is zero."""
    return NOT_MEASURED if worst is None or not median else excess(worst / median - 1)


def skew(found: Global, key: str) -> float | None:
    """Returns how much larger the worst value is than the median, as a share of the median."""
    median, worst = measured_value(found.median, key), measured_value(found.worst, key)
    return None if worst is None or not median else worst / median - 1
