"""Foreign text for a page: on one line, without control characters, and shortened."""

from __future__ import annotations

from collections.abc import Iterable

from traceml.model.printable import one_line, printable

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
