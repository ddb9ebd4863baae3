"""What people wrote, made fit for a page: one line, no control characters, not endless."""

from __future__ import annotations

from collections.abc import Iterable

from traceml.model.printable import one_line, printable

MAX_CHARS = 400
"""Letters of a sentence or a path that are shown."""
MAX_CELL_CHARS = 160
TAB = 4


def line(text: object, longest: int = MAX_CHARS) -> str:
    """A text on one line; a name must not move a cursor or break a table."""
    return one_line(text, longest)


def cell(value: object) -> str:
    """A value as a table shows it; nothing is nothing."""
    return "" if value is None else line(value, MAX_CELL_CHARS)


def output_line(text: str) -> str:
    """A line that the training printed, with its indentation."""
    return printable(text.expandtabs(TAB))


def joined(parts: Iterable[str | None]) -> str:
    """What there is of several short facts."""
    return " · ".join(part for part in parts if part)
