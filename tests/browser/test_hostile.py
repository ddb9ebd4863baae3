"""What is not ours: names and words that try to become a part of the page, and foreign pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest

from browser.runs import BAD, FAST, HOSTILE, SLOW
from browsing import FOREIGN, Look, expect
from served import Served, serving


def test_a_hostile_name_is_a_name_on_every_page(look: Look, server: Served):
    seen = look(server.address)
    seen.page.get_by_role("link", name=HOSTILE, exact=True).click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(seen.page).to_have_title(f"{HOSTILE} · TraceML")
    assert not seen.was_hurt()
    seen.page.go_back()
    for name in (HOSTILE, FAST):
        seen.page.get_by_role("checkbox", name=f"Select {name}").check()
    seen.page.get_by_role("link", name="Compare", exact=True).click()
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    expect(seen.verdict).to_be_visible()
    assert not seen.was_hurt()


def test_a_deep_link_to_a_hostile_name_opens_it(look: Look, server: Served):
    seen = look(f"{server.address}runs/{quote(HOSTILE, safe='')}")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(HOSTILE)


def test_what_a_script_logs_and_prints_is_text(look: Look, server: Served):
    seen = look(f"{server.address}runs/{quote(HOSTILE, safe='')}")
    output = seen.part("Output")
    expect(output).to_contain_text(BAD)
    assert "\x1b" not in output.inner_text()
    expect(seen.main.get_by_role("row").filter(has_text=BAD).first).to_be_visible()
    for figure in seen.main.get_by_role("figure").all():  # labels in pictures and what hovers
        figure.scroll_into_view_if_needed()
        figure.hover()
        figure.get_by_text("Data as table").click()
    assert not seen.was_hurt()


@dataclass(frozen=True)
class Stranger:
    """Another server on this machine, with pages of its own."""

    folder: Path
    port: int

    def page(self, host: str, content: str = "") -> str:
        """The address of a page that holds something."""
        (self.folder / "index.html").write_text(
            f"<!doctype html><main><h1>Elsewhere</h1>{content}</main>"
        )
        return f"http://{host}:{self.port}/"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    (tmp_path / "favicon.ico").write_bytes(b"")
    handler = partial(_Silent, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield Stranger(tmp_path, server.server_port)
    server.shutdown()
    server.server_close()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        """Say nothing."""


def test_a_foreign_page_can_neither_read_nor_frame_nor_load_ours(
    look: Look, server: Served, stranger: Stranger
):
    seen = look(stranger.page(FOREIGN), excuses=_REFUSALS, is_alone=False)
    for attempt in _ATTEMPTS:
        outcome = seen.page.evaluate(attempt, server.address)
        assert outcome == "refused", attempt


_REFUSALS = ("CORS policy", "net::ERR", "status of 403", "frame-ancestors")
"""The browser says of each attempt why it was refused."""
_ATTEMPTS = (
    "ours => fetch(ours + 'api/runs').then(() => 'read', () => 'refused')",
    """ours => fetch(ours + 'api/runs', { mode: 'no-cors' })
         .then(() => 'read', () => 'refused')""",
    """ours => new Promise(tell => {
         const script = document.createElement('script');
         script.src = ours + 'static/viewer.js';
         script.onload = () => tell('loaded');
         script.onerror = () => tell('refused');
         document.body.append(script);
       })""",
    """ours => new Promise(tell => {
         const source = new EventSource(ours + 'api/events?page=/');
         source.onmessage = source.onopen = () => tell('read');
         source.onerror = () => { source.close(); tell('refused'); };
       })""",
    """ours => new Promise(tell => {
         document.addEventListener('securitypolicyviolation', () => tell('refused'));
         const frame = document.createElement('iframe');
         frame.src = ours;
         frame.onload = () => {
           try { tell(frame.contentWindow.location.href === ours ? 'framed' : 'refused'); }
           catch { tell('refused'); }
         };
         document.body.append(frame);
       })""",
)


def test_a_notebook_on_this_machine_may_frame_a_page(
    look: Look, server: Served, stranger: Stranger
):
    frame = f'<iframe src="{server.address}runs/{SLOW}"></iframe>'
    seen = look(stranger.page("127.0.0.1", frame), is_alone=False)
    inside = seen.page.frame_locator("iframe")
    expect(inside.get_by_role("region", name="Verdict")).to_contain_text("INPUT-BOUND")


def test_a_name_that_leads_here_by_somebody_elses_dns_is_refused(look: Look, server: Served):
    seen = look(server.address, excuses=("status of 403",), is_alone=False)
    seen.page.goto(f"http://{FOREIGN}:{server.port}/api/runs")
    expect(seen.page.locator("body")).to_contain_text(f"this server is not called '{FOREIGN}")


def test_from_other_machines_the_link_with_its_token_opens_everything_and_none_else(
    look: Look, opening: ExitStack, logs: Path
):
    server = opening.enter_context(serving(logs, "--host", "0.0.0.0"))
    link, token = f"http://127.0.0.1:{server.port}/", server.address.partition("?")[2]
    assert token.startswith("token=")
    seen = look(f"{link}?{token}")
    seen.page.get_by_role("link", name=SLOW, exact=True).click()
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    seen.go(f"{link}compare?a={SLOW}&b={FAST}")
    stranger = look(f"{link}?{token}", excuses=("status of 401",))
    stranger.page.context.clear_cookies()  # it may, as long as it has its cookie
    stranger.page.goto(link)
    expect(stranger.page.locator("body")).to_contain_text("a token is needed")
