"""Drives the terminal view without a terminal: shows it a page, presses keys, reads its screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from textual.pilot import Pilot
from textual.worker import WorkerFailed

from traceml.figures.page import RunPage
from traceml.tui.app import Attachment, Outcome, RunApp
from tui_pages import PAGE

SMALL, LARGE = (80, 24), (160, 50)
Keys = Pilot[Outcome]


@asynccontextmanager
async def shown(
    source: Callable[[], RunPage] = lambda: PAGE,
    size: tuple[int, int] = SMALL,
    attachment: Attachment | None = None,
) -> AsyncIterator[tuple[RunApp, Keys]]:
    """The view of a page, once that is drawn."""
    app = RunApp(source, attachment)
    async with app.run_test(size=size) as pilot:
        await _settle(app, pilot)
        yield app, pilot


async def look_again(app: RunApp, pilot: Keys) -> None:
    """Have a page drawn that is made from now on."""
    await _settle(app, pilot)  # one that is being made would do for the view, but may be old
    app.refresh_page()
    await _settle(app, pilot)


async def _settle(app: RunApp, pilot: Keys) -> None:
    with suppress(WorkerFailed):  # the view says why there is no page
        await app.workers.wait_for_complete()
    await pilot.pause()


def seen(app: RunApp) -> str:
    """What is on the screen."""
    strips = app.screen._compositor.render_strips()
    return "".join(f"{strip.text.rstrip()}\n" for strip in strips)


def wait(test: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end."""
    asyncio.run(test)
