"""The screen that shows a run: its panes, and what a page puts into them."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from traceml.figures.page import Part, RunPage
from traceml.tui.keyboard import Keyboard
from traceml.tui.palette import Ink
from traceml.tui.panes import (
    HeadPicture,
    OutputPane,
    Pane,
    PartPicture,
    RailPicture,
    VerdictPicture,
)
from traceml.tui.typing_line import TypingLine

TWO_COLUMNS_FROM = 120
SHORT_BELOW, TALL_FROM = 20, 36

_NOT_KEPT = ("The output is not kept; `traceml run --save-output` or `--mode=cli` keeps it.",)
_FIRST_PARTS = ("failure", "step-time", "nodes")
_LEFT_PARTS = ("layers", "host-time", "step-memory", "metrics")
"""The parts on the left; the others stand to the right of them, or below."""


class RunScreen(Screen[None]):
    """One run, from its head to the last line of its output."""

    def __init__(self, keyboard: Keyboard | None) -> None:
        """`keyboard` is that of the command, where its launcher started this view."""
        super().__init__()
        self._keyboard = keyboard
        self._panes: dict[str, Pane] = {}
        self._page: RunPage | None = None
        self.head = Pane(name="head")
        self.verdict = Pane(name="verdict", words="Reading the run …")
        self.parts = VerticalScroll(id="parts")
        self.first, self.left, self.right = Vertical(), Vertical(), Vertical(classes="column")
        self.findings_below, self.findings_beside = Pane("Findings"), Pane("Findings")
        self.output = OutputPane()
        self.typing = None if keyboard is None else TypingLine(keyboard)

    def compose(self) -> ComposeResult:
        """Yields the panes, from top to bottom."""
        yield self.head
        yield self.verdict
        with self.parts:
            with Vertical(id="wider", classes="column"):
                yield self.first
                yield self.findings_below
                yield self.left
            with self.right:
                yield self.findings_beside
        yield self.output
        if self.typing is not None:
            yield self.typing
        yield Static(self._keys(), id="keys", markup=False)

    def _keys(self) -> str:
        ours = ("Tab panes", "o output", "d light/dark")
        if self._keyboard is None:
            return "  ".join(("? keys", "q leave", *ours))
        return "  ".join(("? keys", "Ctrl-C interrupt", "i type", "q plain output", *ours))

    def on_mount(self) -> None:
        """Gives the arrow keys to the main pane."""
        self.parts.focus()

    def show(self, page: RunPage) -> None:
        """Shows a page."""
        self._page = page
        ink = Ink(self.app.current_theme.dark)
        self.head.show(HeadPicture(page, ink))
        self.verdict.show(VerdictPicture(page, ink))
        self._show_findings(page, ink)
        self._show_parts(page, ink)
        self.output.show(_NOT_KEPT if page.output is None else page.output)
        if self.typing is not None:
            self.typing.hide_if_secret()

    def show_again(self) -> None:
        """Draws the same page again, after a change of colours or size."""
        if self._page is not None:
            self.show(self._page)

    def _show_findings(self, page: RunPage, ink: Ink) -> None:
        """Shows the findings beside the step time where there is room, else below it."""
        here, there = self.findings_below, self.findings_beside
        if self.has_class("wide"):
            here, there = there, here
        here.display, there.display = bool(page.rail), False
        here.show(RailPicture(page.rail, page.verdict.why, ink))

    def _show_parts(self, page: RunPage, ink: Ink) -> None:
        told = frozenset(found.summary for found in page.rail) | {page.verdict.why}
        for gone in self._panes.keys() - {part.id for part in page.parts}:
            self._panes.pop(gone).remove()
        for place, part in enumerate(page.parts):
            if part.id not in self._panes:
                self._add(part, page.parts[place + 1 :])
            picture = PartPicture(part, told, ink, has_colours=not self.app.no_color)
            self._panes[part.id].show(picture)

    def _add(self, part: Part, later: tuple[Part, ...]) -> None:
        """Adds a new part before those that follow it on the page."""
        side = self.left if part.id in _LEFT_PARTS else self.right
        side = self.first if part.id in _FIRST_PARTS else side
        known = (self._panes[one.id] for one in later if one.id in self._panes)
        pane = self._panes[part.id] = Pane(part.title)
        side.mount(pane, before=next((other for other in known if other.parent is side), None))

    def on_resize(self, event: events.Resize) -> None:
        """Adapts the layout to the size."""
        self.set_class(event.size.width >= TWO_COLUMNS_FROM, "wide")
        self.set_class(event.size.height >= TALL_FROM, "tall")
        self.set_class(event.size.height < SHORT_BELOW, "short")
        self.show_again()
        self.call_after_refresh(self._tell_size)

    def toggle_output(self) -> None:
        """Shows the output on the whole screen, or all panes again."""
        self.toggle_class("only-output")
        (self.output if self.has_class("only-output") else self.parts).focus()
        self.call_after_refresh(self._tell_size)

    def close_last(self) -> None:
        """Closes what was opened last."""
        if self.typing is not None and self.typing.display:
            self.typing.close()
            self.parts.focus()
        elif self.has_class("only-output"):
            self.toggle_output()

    def _tell_size(self) -> None:
        """Gives the command's terminal the size of the output pane."""
        if self._keyboard is not None and self.output.size:
            height, width = self.output.size.height, self.output.size.width
            self._keyboard.resize(height, width)
