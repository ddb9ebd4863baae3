"""Watches a run in this terminal, until it ends or is left."""

from __future__ import annotations

import os
import select
from pathlib import Path

from traceml.api.watch import RunWatch
from traceml.figures.page import RunPage
from traceml.tui.app import Attachment, Outcome, RunApp
from traceml.tui.keyboard import Keyboard

_HERE = b"1"
"""Said to the launcher once: from now on the terminal is ours."""


def watch(folder: Path) -> Outcome:
    """Show a run that somebody else started; raises RunNotFound where it was deleted meanwhile."""
    return _run(RunApp(_Pages(folder).page))


def watch_attached(folder: Path, link: int, keys: int) -> Outcome:
    """Show a run for the launcher that started it, and gave us its terminal."""
    if select.select([link], [], [], 0)[0]:
        return Outcome.ENDED  # before there was anything to see
    os.write(link, _HERE)
    return _run(RunApp(_Pages(folder).page, Attachment(link, Keyboard(keys))))


def _run(app: RunApp) -> Outcome:
    outcome = app.run()
    if app.failure is not None:
        raise app.failure
    return outcome or Outcome.LEFT


class _Pages:
    """A run's page; the first look takes longest, and must not hold up the screen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watch: RunWatch | None = None

    def page(self) -> RunPage:
        if self._watch is None:
            self._watch = RunWatch(self._folder)
        return self._watch.page()
