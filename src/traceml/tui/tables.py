"""Tables of the page in a terminal's width: a row's unit is shown once, beside its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from traceml.figures.page import Row, Table
from traceml.model.printable import printable, shorten_middle
from traceml.model.quantities import NOT_MEASURED
from traceml.tui.palette import Ink

MAX_ROWS = 16
MIN_NAME_CELLS = 16
"""However narrow the pane: below it, names say nothing."""

_UNITS = (" ms", " MiB", " GiB", "%")
_NOT_MEASURED = ("", NOT_MEASURED)
_GAP = " "


def drawn_table(table: Table, width: int, ink: Ink) -> Text:
    """Returns the table; column heads may take several lines, rows take one."""
    rows = [tuple(map(printable, _with_one_unit(row))) for row in table.rows[:MAX_ROWS]]
    columns = tuple(map(printable, table.columns))
    are_numbers = [
        place > 0 and all(_is_number(row[place]) for row in rows) for place in range(len(columns))
    ]
    widths = _widths(columns, rows, width)
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    if over > 0 and widths[0] > MIN_NAME_CELLS:  # a long name gives way before a number does
        widths[0] = max(widths[0] - over, MIN_NAME_CELLS)
        rows = [(_shortened(name, widths[0]), *cells) for name, *cells in rows]
    lines = [
        Text(_line(line, widths, are_numbers), style=ink["muted"])
        for line in _heading(columns, widths)
    ]
    for cells, row in zip(rows, table.rows, strict=False):
        lines.append(Text(_line(cells, widths, are_numbers), style=ink.tone(row.tone)))
    drawn = Text("\n").join(lines)
    drawn.no_wrap, drawn.overflow = True, "ellipsis"
    return drawn


def _shortened(name: str, cells: int) -> str:
    """Returns a name in so many cells, its middle left out; wide characters take two."""
    kept = cells
    while cell_len(short := shorten_middle(name, kept)) > cells and kept > 1:
        kept -= 1
    return short


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Returns the width of each column: that of its text, or of its longest word where room is
    short."""
    needed = [
        max((cell_len(row[place]) for row in rows), default=0) for place in range(len(columns))
    ]
    whole = [max(cells, cell_len(name)) for cells, name in zip(needed, columns, strict=True)]
    if sum(whole) + len(_GAP) * (len(whole) - 1) <= width:
        return whole
    longest = [max(map(cell_len, name.split()), default=0) for name in columns]
    return [max(pair) for pair in zip(needed, longest, strict=True)]


def _heading(columns: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Returns the lines of the column heads, aligned at the bottom."""
    broken = [_broken(name, width) for name, width in zip(columns, widths, strict=True)]
    height = max(map(len, broken), default=0)
    padded = [[""] * (height - len(lines)) + lines for lines in broken]
    return zip(*padded, strict=True)


def _broken(name: str, width: int) -> list[str]:
    lines: list[str] = []
    for word in name.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _line(cells: Sequence[str], widths: Sequence[int], are_numbers: Sequence[bool]) -> str:
    placed = []
    for cell, width, is_number in zip(cells, widths, are_numbers, strict=True):
        gap = " " * (width - cell_len(cell))
        placed.append(gap + cell if is_number else cell + gap)
    return _GAP.join(placed).rstrip()


def _is_number(cell: str) -> bool:
    return cell in _NOT_MEASURED or cell.lstrip("+-−±").startswith(tuple("0123456789"))


def _with_one_unit(row: Row) -> tuple[str, ...]:
    """Returns the row with its unit in the name, where all its cells have the same unit."""
    name, *cells = row.cells
    numbers = [cell for cell in cells if cell not in _NOT_MEASURED]
    for unit in _UNITS:
        if numbers and all(cell.endswith(unit) for cell in numbers):
            said = "" if unit.strip() in name else f" {unit.strip()}"
            return (f"{name}{said}", *(cell.removesuffix(unit) for cell in cells))
    return row.cells
