"""Charts of the page as text: lines, stacks, bars and heat maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from math import log10
from operator import itemgetter

from rich.cells import cell_len
from rich.text import Text

from traceml.figures.page import Axis, Bars, Figure, Heatmap, Limit, Lines, RankGrid, Series, Span
from traceml.tui.palette import Ink
from traceml.tui.words import flow, plain

HEIGHTS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
GAP = "·"
"""Shown where nothing was measured."""
MIN_RANGE = 0.1
"""Of a scale's upper end: smaller changes are drawn as a nearly flat line."""
STACK_ROWS = 6
MAX_LINES = 8
MAX_HEAT_ROWS = 16
MAX_NAME_CELLS = 16
VALUE_CELLS = 8

Values = Sequence[float | None]


def chart(figure: Figure, width: int, ink: Ink, has_colours: bool) -> Text | None:
    """Returns a chart as lines of text; `None` where text cannot show it."""
    if isinstance(figure, Lines) and figure.at:
        if figure.stacked and has_colours:
            return _titled(figure.title, figure.y, _stack(figure, width, ink), ink)
        return _titled(figure.title, figure.y, _sparklines(figure, width, ink), ink)
    if isinstance(figure, Bars) and has_colours:
        return _titled(figure.title, figure.x, _bars(figure, width, ink), ink)
    if isinstance(figure, RankGrid):
        drawn = _heat(_slowest_nodes(figure), width, ink, has_colours)
        return _titled(figure.title, figure.value, drawn, ink)
    if isinstance(figure, Heatmap) and figure.at and figure.rows:
        return _titled(figure.title, figure.value, _heat(figure, width, ink, has_colours), ink)
    return None


def _titled(title: str, axis: Axis, lines: Iterator[Text], ink: Ink) -> Text:
    unit = f" ({axis.unit})" if axis.unit else ""
    text = Text("\n").join([plain(f"{title}{unit}", ink["muted"]), *lines])
    text.no_wrap, text.overflow = True, "crop"
    return text


# One row per line


def _sparklines(figure: Lines, width: int, ink: Ink) -> Iterator[Text]:
    names = _name_cells(series.name for series in figure.series[:MAX_LINES])
    room = max(width - names - VALUE_CELLS - 2, 1)
    drawn = [_heights(series.values, figure.is_log) for series in figure.series[:MAX_LINES]]
    low, high = _ends(drawn) if figure.is_log else _range(figure.series, figure.y)
    for series, heights in zip(figure.series, drawn, strict=False):
        line = _named(series.name, names, ink)
        line.append(sparkline(fitted(heights, room), low, high), style=ink[series.colour])
        line.append(f" {_number(_last(series.values)):>{VALUE_CELLS}}")
        yield line
    if len(figure.series) > MAX_LINES:
        yield plain(f"and {len(figure.series) - MAX_LINES} more", ink["muted"])
    if figure.limits:
        yield flow((_limit(limit, ink) for limit in figure.limits), width)


def _heights(values: Values, is_log: bool) -> Values:
    """Returns how high values are on the axis; on a logarithmic one those of 0 have no place."""
    if not is_log:
        return values
    return tuple(None if value is None or value <= 0 else log10(value) for value in values)


def _ends(lines: Iterable[Values]) -> tuple[float, float]:
    known = [value for line in lines for value in line if value is not None]
    return min(known, default=0.0), max(known, default=1.0)


def _limit(limit: Limit, ink: Ink) -> Text:
    return plain(f"{limit.label} {_number(limit.value)}", ink.tone(limit.tone))


def sparkline(values: Values, low: float, high: float) -> str:
    """Returns a character per value, as high as the value is between the limits."""
    return "".join(_letter(value, low, high, HEIGHTS[1:]) for value in values)


def fitted(values: Values, cells: int) -> list[float | None]:
    """Returns as many values as there are cells: means of neighbours, or repeated values."""
    count = len(values)
    if count <= cells:
        return [values[place * count // cells] for place in range(cells)] if count else []
    edges = [place * count // cells for place in range(cells + 1)]
    return [_mean(values[begin:end]) for begin, end in pairwise(edges)]


# Series on top of each other


def _stack(figure: Lines, width: int, ink: Ink) -> Iterator[Text]:
    """Draws columns of colour; a cell on the border of two series shows both."""
    fields = [fitted(series.values, width - VALUE_CELLS - 1) for series in figure.series]
    amounts = [[value or 0.0 for value in column] for column in zip(*fields, strict=True)]
    high = max((sum(column) for column in amounts), default=0.0)
    if high <= 0:
        return
    colours = [ink[series.colour] for series in figure.series]
    eighth = high / (8 * STACK_ROWS)
    columns = [[round(top / eighth) for top in accumulate(column)] for column in amounts]
    for row in reversed(range(STACK_ROWS)):
        label = _number(high) if row == STACK_ROWS - 1 else ("0" if row == 0 else "")
        line = plain(f"{label:>{VALUE_CELLS}} ", ink["muted"])
        yield line.append_text(_cells(_stacked_cell(tops, 8 * row, colours) for tops in columns))
    yield _axis(figure, VALUE_CELLS, width - VALUE_CELLS - 1, ink)
    for span in figure.spans:
        yield _span_line(span, figure, width - VALUE_CELLS - 1, ink)
    yield flow((_key(series, ink) for series in figure.series), width)


def _stacked_cell(tops: Sequence[int], floor: int, colours: Sequence[str]) -> tuple[str, str]:
    below = _series_at(tops, floor)
    if below is None:
        return " ", ""
    filled = min(tops[below] - floor, 8)
    above = _series_at(tops, floor + filled) if filled < 8 else None
    style = colours[below] if above is None else f"{colours[below]} on {colours[above]}"
    return HEIGHTS[filled], style


def _series_at(tops: Sequence[int], height: int) -> int | None:
    """Returns the series that a column has just above a height."""
    return next((place for place, top in enumerate(tops) if top > height), None)


def _span_line(span: Span, figure: Lines, room: int, ink: Ink) -> Text:
    first, last = figure.at[0], figure.at[-1]
    width = (last - first) or 1.0
    begin = round(room * max(span.begin - first, 0.0) / width)
    begin = min(begin, room - 1)
    until = room if span.until is None else round(room * (span.until - first) / width)
    cells = max(min(until, room) - begin, 1)
    line = Text(" " * (VALUE_CELLS + 1))
    label = f" {span.label} "
    if begin >= cell_len(label):
        line.append(" " * (begin - cell_len(label)))
        line.append_text(plain(label, ink.tone(span.tone)))
        line.append("━" * cells, style=ink.tone(span.tone))
        return line
    line.append(" " * begin)
    line.append_text(plain(f"━{label}".ljust(cells, "━"), ink.tone(span.tone)))
    line.truncate(VALUE_CELLS + 1 + room)
    return line


def _key(series: Series, ink: Ink) -> Text:
    return plain("■ ", ink[series.colour]).append_text(plain(series.name))


# Bars


def _bars(figure: Bars, width: int, ink: Ink) -> Iterator[Text]:
    names = _name_cells(figure.categories)
    room = max(width - names - VALUE_CELLS - 2, 1)
    totals = [
        sum(series.values[place] or 0.0 for series in figure.series)
        for place in range(len(figure.categories))
    ]
    high = max(totals, default=0.0)
    if high <= 0:
        return
    for place, name in enumerate(figure.categories):
        line = _named(name, names, ink)
        ends = [
            0,
            *(
                round(room * top / high)
                for top in accumulate(series.values[place] or 0.0 for series in figure.series)
            ),
        ]
        for series, begin, end in zip(figure.series, ends, ends[1:], strict=False):
            line.append("█" * (end - begin), style=ink[series.colour])
        line.append(" " * (room - ends[-1]))
        line.append(f" {_number(totals[place]):>{VALUE_CELLS}}")
        yield line
    yield flow((_key(series, ink) for series in figure.series), width)


# Heat


def _heat(figure: Heatmap, width: int, ink: Ink, has_colours: bool) -> Iterator[Text]:
    groups = list(_grouped(figure))
    names = _name_cells(name for name, _ in groups)
    room = max(width - names - 1, 1)
    known = [value for row in figure.values for value in row if value is not None]
    low = figure.value.low if figure.value.low is not None else min(known, default=0.0)
    high = figure.value.high if figure.value.high is not None else max(known, default=1.0)
    for name, values in groups:
        line = _named(name, names, ink)
        if has_colours:
            heat = (_hot_cell(value, low, high, ink) for value in fitted(values, room))
            line.append_text(_cells(heat))
        else:
            line.append("".join(_letter(v, low, high, SHADES) for v in fitted(values, room)))
        yield line
    yield _axis(figure, names, room, ink)


def _hot_cell(value: float | None, low: float, high: float, ink: Ink) -> tuple[str, str]:
    if value is None:
        return GAP, ink["muted"]
    return "█", _letter(value, low, high, ink.heat)


def _grouped(figure: Heatmap) -> Iterator[tuple[str, Values]]:
    """Returns a row per rank, or the maximum of several ranks where there are too many."""
    size = -(-len(figure.rows) // MAX_HEAT_ROWS)
    for begin in range(0, len(figure.rows), size):
        names = figure.rows[begin : begin + size]
        rows = figure.values[begin : begin + size]
        if size == 1:
            yield names[0], rows[0]
            continue
        highest = [
            max((value for value in column if value is not None), default=None)
            for column in zip(*rows, strict=True)
        ]
        yield f"{names[0]} … {names[-1].rpartition(' ')[2]}", highest


def _slowest_nodes(grid: RankGrid) -> Heatmap:
    """Returns a row for each node, of many for the slowest ones, with a column per rank on it."""
    by_node = zip(grid.nodes, grid.values, strict=True)
    slowest = sorted(by_node, key=lambda node: -(_mean(node[1]) or 0.0))[:MAX_HEAT_ROWS]
    places = max((len(values) for _, values in slowest), default=0)
    return Heatmap(
        id=grid.id,
        title=grid.title,
        x=Axis("local rank"),
        at=tuple(map(float, range(places))) or (0.0,),
        rows=tuple(name for name, _ in slowest),
        values=tuple((*values, *[None] * (places - len(values))) for _, values in slowest),
        value=grid.value,
    )


# Pieces


def _cells(cells: Iterable[tuple[str, str]]) -> Text:
    """Returns styled characters; neighbours with the same style are merged, which is faster to
    draw."""
    line = Text()
    for style, run in groupby(cells, key=itemgetter(1)):
        line.append("".join(letter for letter, _ in run), style)
    return line


def _axis(figure: Lines | Heatmap, indent: int, room: int, ink: Ink) -> Text:
    """Returns the labels at both ends of the horizontal axis."""
    first, last = f"{figure.x.label} {_number(figure.at[0])}", _number(figure.at[-1])
    gap = max(room - cell_len(first) - cell_len(last), 1)
    return plain(f"{'':<{indent}} {first}{' ' * gap}{last}", ink["muted"])


def _letter(value: float | None, low: float, high: float, letters: Sequence[str]) -> str:
    if value is None:
        return GAP
    share = (value - low) / (high - low) if high > low else 0.0
    return letters[min(max(int(share * len(letters)), 0), len(letters) - 1)]


def _range(series: Sequence[Series], axis: Axis) -> tuple[float, float]:
    """Returns one scale for all lines of a chart, so that they can be compared."""
    known = [value for one in series for value in one.values if value is not None]
    high = axis.high if axis.high is not None else max(known, default=1.0)
    low = min([high - MIN_RANGE * abs(high), *known])
    return axis.low if axis.low is not None else low, high


def _mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _last(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _number(value: float | None) -> str:
    """Returns a value in a few letters; gradients that explode have any number of digits."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:,.4g}"


def _name_cells(names: Iterable[str]) -> int:
    return min(max(map(cell_len, names), default=0), MAX_NAME_CELLS)


def _named(name: str, cells: int, ink: Ink) -> Text:
    line = plain(name, ink["muted"])
    line.truncate(cells, overflow="ellipsis", pad=True)
    line.append(" ")
    return line
