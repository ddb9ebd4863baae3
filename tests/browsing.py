"""A real browser on our pages: what it shows, what it asked for, and what it complained about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

BROWSER = "TRACEML_BROWSER"
"""Names a browser; without it the first of these is taken."""
REQUIRED = "TRACEML_BROWSER_REQUIRED"
"""Set by CI: without a browser its tests fail, where they would be skipped."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 90_000
"""How long anything on a page may take to appear; nothing comes near it, not even on a machine that
is busy."""
FOREIGN = "elsewhere.test"
"""A name that leads to this machine, as a stranger's DNS could have it."""

_QUIET = (
    *("--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync"),
    f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""Nothing of the browser's own, and no way to any other machine."""


def find_browser() -> str | None:
    """A browser to drive, or none."""
    return os.environ.get(BROWSER) or next(filter(None, map(shutil.which, NAMES)), None)


def obstacle() -> str | None:
    """Why no browser can be driven here; `None` where one can."""
    if find_spec("playwright") is None:
        return "there is no playwright to drive a browser with; pip install playwright"
    if find_browser() is None:
        return f"there is no browser ({', '.join(NAMES)}); install chromium, or name one: {BROWSER}"
    return None


@contextmanager
def opened() -> Iterator[Browser]:
    """The browser, until the end; where its loop runs no other can."""
    from playwright.sync_api import sync_playwright

    root = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no sandbox to be in
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=[*root, *_QUIET])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Window:
    """A window of its own: nothing is shared with another, no cookie and no connection."""

    page: Page
    asked: list[str] = field(default_factory=list)
    """The address of every request, in order."""
    said: list[str] = field(default_factory=list)
    """Errors and warnings of the console, what its policy refused among them."""
    excuses: tuple[str, ...] = ()
    """Words of complaints that a test expects; they come when the browser likes."""
    is_alone: bool = True
    """Whether the page has to do with its own server and no other."""

    def go(self, address: str) -> Window:
        """Open an address and wait for what it shows."""
        self.page.goto(address)
        self.main.locator(":scope > :not(.waiting)").first.wait_for()
        return self

    @property
    def main(self) -> Locator:
        """The page without the strip on top."""
        return self.page.get_by_role("main")

    @property
    def verdict(self) -> Locator:
        """The answer."""
        return self.page.get_by_role("region", name="Verdict")

    @property
    def steps(self) -> int:
        """How many steps the page says there were."""
        words: str = self.fact("Steps").inner_text()
        return int("".join(letter for letter in words.split()[0] if letter.isdigit()) or 0)

    def fact(self, label: str) -> Locator:
        """What stands beside a word at the top of a run."""
        facts = self.page.locator(".head-facts div")
        return facts.filter(has=self.page.get_by_text(label, exact=True)).locator("dd")

    def part(self, title: str) -> Locator:
        """A card of the page."""
        return self.page.get_by_role("region", name=title, exact=True)

    def theme(self) -> str:
        """Light or dark, as it is drawn."""
        theme: str = self.page.evaluate("document.documentElement.dataset.theme")
        return theme

    def scrolls_sideways(self) -> bool:
        """Whether something is wider than the window."""
        wider: bool = self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return wider

    def was_hurt(self) -> bool:
        """Whether something that a run said became a part of the page."""
        added = self.page.locator("img, [onerror], [onmouseover], script:not([src], [type])")
        inside = 0 if self.asked[0].startswith("http") else 1  # the report's own script
        return self.page.evaluate("window.hurt") is not None or added.count() > inside

    def complaints(self) -> list[str]:
        """What the browser said that no test expects."""
        return [said for said in self.said if not any(word in said for word in self.excuses)]

    def asked_elsewhere(self) -> list[str]:
        """Requests that went to another place than the page came from, and must not."""
        if not self.is_alone:
            return []
        home = _place(self.asked[0]) if self.asked else None
        return [each for each in self.asked if _place(each) != home and not _is_inside(each)]


def expect(piece: Any) -> Any:
    """Playwright's own: waits for what is said of a piece of a page."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE_MS)
    return expected(piece)


Look = Callable[..., Window]
"""Opens an address in a window of its own."""


def window(browser: Browser, width: int = 1280, height: int = 800, **options: Any) -> Window:
    """Open a window; `options` are what its owner prefers, such as `color_scheme`."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE_MS)
    seen = Window(context.new_page())
    context.on("request", lambda request: seen.asked.append(request.url))
    context.on("console", lambda message: _hear(seen, message))
    context.on("weberror", lambda error: seen.said.append(str(error.error)))
    return seen


def _hear(seen: Window, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        seen.said.append(message.text)


def _place(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _is_inside(address: str) -> bool:
    """What the page brought along itself."""
    return urlsplit(address).scheme in ("data", "blob", "about")
