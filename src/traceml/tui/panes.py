"""The panes of the screen: each draws one part of the page in the width it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from traceml.figures.layer_record import LayerTree
from traceml.figures.layer_tree import top_layers
from traceml.figures.page import FindingCard, Part, RunPage
from traceml.tui.charts import chart
from traceml.tui.palette import Ink
from traceml.tui.tables import drawn_table
from traceml.tui.words import (
    finding_lines,
    head_line,
    plain,
    status_words,
    tile_lines,
    verdict_lines,
)


@dataclass(frozen=True)
class HeadPicture:
    """The first line of the screen."""

    page: RunPage
    ink: Ink

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield head_line(self.page.head, options.max_width, self.ink)


@dataclass(frozen=True)
class VerdictPicture:
    """The verdict."""

    page: RunPage
    ink: Ink

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from verdict_lines(self.page, options.max_width, self.ink)


@dataclass(frozen=True)
class PartPicture:
    """One part of the page: its table first, because a small screen has room for little else."""

    part: Part
    told: frozenset[str]
    """Sentences that were shown already."""
    ink: Ink
    has_colours: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = self.part.finding
        if found is not None and found.summary not in self.told:
            words = status_words(found.severity, found.status, self.ink)
            yield words.append("  ").append_text(plain(found.summary))
        trees = (each for each in self.part.figures if isinstance(each, LayerTree))
        for table in (*map(top_layers, trees), *self.part.tables):
            yield drawn_table(table, options.max_width, self.ink)
        for printed in self.part.printed:
            yield plain(printed)
        if self.part.tiles:
            yield tile_lines(self.part.tiles, options.max_width, self.ink)
        for figure in self.part.figures:
            drawn = chart(figure, options.max_width, self.ink, self.has_colours)
            if drawn is not None:
                yield drawn
        if self.part.note:
            yield plain(self.part.note, self.ink["muted"])


@dataclass(frozen=True)
class RailPicture:
    """Every finding, the most severe first."""

    rail: tuple[FindingCard, ...]
    told: str
    ink: Ink

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for place, found in enumerate(self.rail):
            if place:
                yield ""
            yield from finding_lines(found, self.told, options.max_width, self.ink)


Picture = HeadPicture | VerdictPicture | PartPicture | RailPicture


@dataclass(frozen=True)
class CachedPicture:
    """A picture that is drawn once per width."""

    picture: Picture
    _by_width: dict[int, list[list[Segment]]] = field(default_factory=dict)

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        """Returns the picture at a width."""
        width = options.max_width
        if width not in self._by_width:
            self._by_width[width] = console.render_lines(self.picture, options, pad=False)
        return self._by_width[width]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()


class Pane(Static):
    """One part of the page; drawn again only when it has changed."""

    def __init__(self, title: str | None = None, name: str | None = None, words: str = "") -> None:
        super().__init__(plain(words), id=name, markup=False)
        self._drawn: CachedPicture | None = None
        if title is not None:
            self.border_title = plain(title)
            self.add_class("titled")

    def show(self, picture: Picture) -> None:
        """Shows a picture; the layout is computed again only if its height changed."""
        if self._drawn is not None and self._drawn.picture == picture:
            return
        before, self._drawn = self._drawn, CachedPicture(picture)
        is_as_high = before is not None and self._height(before) == self._height(self._drawn)
        self.update(self._drawn, layout=not is_as_high)

    def say(self, words: str) -> None:
        """Shows a line until the next picture."""
        self._drawn = None
        self.update(plain(words))

    def _height(self, drawn: CachedPicture) -> int:
        console, width = self.app.console, max(self.content_size.width, 1)
        return len(drawn.lines(console, console.options.update(width=width, height=None)))


class OutputPane(ScrollView, can_focus=True):
    """The last lines that the training printed; follows them unless the user scrolls back."""

    def __init__(self) -> None:
        super().__init__(id="output")
        self.border_title = "Output"
        self._lines: tuple[str, ...] = ()
        self._follows = True

    def show(self, lines: tuple[str, ...]) -> None:
        """Replaces the lines."""
        if lines == self._lines:
            return
        self._lines = lines
        width = max((len(line) for line in lines), default=0)
        self.virtual_size = Size(width, len(lines))
        self.refresh()
        self._keep_to_the_end()

    def _keep_to_the_end(self) -> None:
        if self._follows:
            self.scroll_end(animate=False, x_axis=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Notes whether the user has scrolled back or to the end."""
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y

    def on_resize(self) -> None:
        """Keeps the end visible."""
        self._keep_to_the_end()

    def render_line(self, y: int) -> Strip:
        """Returns one visible line."""
        left, top = self.scroll_offset
        style = self.rich_style
        if top + y >= len(self._lines):
            return Strip.blank(self.size.width, style)
        line = plain(self._lines[top + y])
        strip = Strip([Segment(line.plain, style)])
        return strip.crop_extend(left, left + self.size.width, style)
