"""The live terminal view: the page of a run, drawn once a second, and its keys."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import Worker, WorkerState

from traceml.api.watch import RunWatch
from traceml.figures.page import RunPage
from traceml.model.errors import RunNotFound, TraceMLError
from traceml.store.descriptors import wait_until_readable
from traceml.tui.help import Help
from traceml.tui.keyboard import Keyboard
from traceml.tui.palette import DARK, LIGHT, theme
from traceml.tui.screen import RunScreen

EVERY_S = 1.0
SOON_S = 0.15
"""How soon the output is read again after something was typed."""


class Outcome(Enum):
    """Why the view ended."""

    LEFT = "left"
    """The user pressed a key; the run goes on."""
    ENDED = "ended"
    """The run has ended, or the launcher asked the view to end."""


@dataclass(frozen=True)
class Attachment:
    """The launcher of this view: when it closes the link, the view ends."""

    link: int
    keyboard: Keyboard


class RunApp(App[Outcome]):
    """One run on the whole screen."""

    TITLE = "TraceML"
    CSS_PATH = "screen.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "leave"),
        Binding("ctrl+q", "leave", show=False, priority=True),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+backslash", "quit_command", show=False, priority=True),
        Binding("question_mark", "help", "keys"),
        Binding("d", "change_theme", "light or dark"),
        Binding("o", "only_output", "output alone"),
        Binding("i", "type", "type"),
        Binding("escape", "close", show=False),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, source: Callable[[], RunPage], attachment: Attachment | None = None) -> None:
        """`source` returns a page; it is called once a second, in a thread."""
        super().__init__(ansi_color="NO_COLOR" in os.environ)  # the terminal's own two, and no grey
        self._source = source
        self._attachment = attachment
        self._view = RunScreen(attachment.keyboard if attachment else None)
        self.failure: BaseException | None = None
        """Why there is nothing more to show."""
        self.animation_level = "none"
        for is_dark in (True, False):
            self.register_theme(theme(is_dark))
        self.theme = DARK

    def get_default_screen(self) -> RunScreen:
        """Returns the screen that shows the run."""
        return self._view

    def on_mount(self) -> None:
        """Requests a page at once, and then once a second."""
        self.set_interval(EVERY_S, self.refresh_page)
        self.refresh_page()
        if self._attachment is not None:
            asyncio.get_running_loop().add_reader(self._attachment.link, self._on_launcher_message)

    def _on_launcher_message(self) -> None:
        """Ends the view: the launcher asks for it, or is gone."""
        assert self._attachment is not None
        try:
            has_more = os.read(self._attachment.link, 1)
        except OSError:
            has_more = b""
        if not has_more:
            asyncio.get_running_loop().remove_reader(self._attachment.link)
            self.exit(Outcome.ENDED)

    # The page

    def refresh_page(self) -> None:
        """Requests a page, unless the last request is still running."""
        if all(worker.is_finished for worker in self.workers if worker.group == "page"):
            self._ask()

    @work(thread=True, group="page", exit_on_error=False)
    def _ask(self) -> RunPage:
        return self._source()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Shows the page that was made, or why there is none."""
        if event.worker.group == "page" and event.state is WorkerState.SUCCESS:
            assert isinstance(event.worker.result, RunPage)
            self._show(event.worker.result)
        elif event.worker.group == "page" and event.state is WorkerState.ERROR:
            self._say_why_not(event.worker.error)

    def _show(self, page: RunPage) -> None:
        self._view.show(page)
        if page.head.state != "live" and self._attachment is None:
            self.exit(Outcome.ENDED)

    def _say_why_not(self, error: BaseException | None) -> None:
        """Shows an error that may be temporary; any other ends the view."""
        if isinstance(error, (TraceMLError, OSError)) and not isinstance(error, RunNotFound):
            self._view.verdict.say(str(error))
            return
        self.failure = error
        self.exit()

    # Keys

    def action_leave(self) -> None:
        """Ends the view; the run goes on."""
        self.exit(Outcome.LEFT)

    def action_interrupt(self) -> None:
        """Ctrl-C: sends it to the command; ends a view that has none."""
        if self._attachment is None:
            self.exit(Outcome.LEFT)
        else:
            self._attachment.keyboard.interrupt()

    def action_quit_command(self) -> None:
        r"""Ctrl-\: sends it to the command; ends a view that has none."""
        if self._attachment is not None:
            self._attachment.keyboard.quit()

    def action_suspend_process(self) -> None:
        """Ctrl-Z: suspends a view of its own; a launcher's view ignores it."""
        if self._attachment is None:
            super().action_suspend_process()

    def action_help(self) -> None:
        """Shows what the keys do."""
        self.push_screen(Help(is_attached=self._attachment is not None))

    def action_change_theme(self) -> None:
        """Switches between light and dark."""
        self.theme = LIGHT if self.theme == DARK else DARK
        self._view.show_again()

    def action_only_output(self) -> None:
        """Shows the output on the whole screen, or all panes again."""
        self._view.toggle_output()

    def action_type(self) -> None:
        """Opens the line whose text goes to the command."""
        if self._view.typing is not None:
            self._view.typing.open()

    def action_close(self) -> None:
        """Closes what was opened last."""
        self._view.close_last()

    def on_typing_line_typed(self) -> None:
        """Requests a page soon, to show the answer."""
        self.set_timer(SOON_S, self.refresh_page)


_HERE = b"1"
"""Sent to the launcher once: the view now uses the terminal."""


def watch(folder: Path) -> Outcome:
    """Shows a run that another process started; raises RunNotFound where it was deleted."""
    return _run(RunApp(_RunPages(folder).page))


def watch_attached(folder: Path, link: int, keys: int) -> Outcome:
    """Shows a run for the launcher that started it and gave us its terminal."""
    if wait_until_readable([link], 0):
        return Outcome.ENDED  # before there was anything to see
    os.write(link, _HERE)
    return _run(RunApp(_RunPages(folder).page, Attachment(link, Keyboard(keys))))


def _run(app: RunApp) -> Outcome:
    outcome = app.run()
    if app.failure is not None:
        raise app.failure
    return outcome or Outcome.LEFT


class _RunPages:
    """A run's page; made in a thread, because the first one takes long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch: RunWatch | None = None
        self._page: RunPage | None = None
        self._due_s = 0.0

    def page(self) -> RunPage:
        """Returns the page; the one before until the next is due, which of many ranks takes
        longer."""
        if self._watch is None:
            self._watch = RunWatch(self._folder)
        if self._page is None or time.monotonic() >= self._due_s:
            self._page = self._watch.page()
            # A tick that comes a little early is not skipped.
            self._due_s = time.monotonic() + self._watch.pause_s() - EVERY_S / 2
        return self._page
