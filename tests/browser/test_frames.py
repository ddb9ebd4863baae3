"""What a page does inside another one, and when its server says nothing any more."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from browser.runs import FAST, MANY, SLOW
from browsing import Look, expect
from processes import PYTHON, run
from served import serving


@pytest.fixture(scope="module")
def notebook(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two cells: a run, and three runs that are compared."""
    code = (
        f"import traceml; shown = {SLOW!r}, [{SLOW!r}, {FAST!r}, {MANY!r}]\n"
        "print(*[traceml.show(each)._repr_html_() for each in shown])"
    )
    made = run([PYTHON, "-c", code], logs.parent)
    assert made.status == 0, made.stderr
    path = tmp_path_factory.mktemp("notebook") / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><main><h1>A</h1>{made.stdout}</main>")
    return path


def test_links_inside_a_cell_stay_inside_it(look: Look, notebook: Path):
    seen = look(notebook.as_uri())
    cell = seen.page.frame_locator("iframe").first
    cell.get_by_role("region", name="Diagnostics").get_by_role("link").first.click()
    expect(cell.locator("#step-time")).to_be_focused()
    cell.get_by_role("link", name="Skip to the verdict").press("Enter")
    expect(cell.get_by_role("main")).to_be_focused()
    expect(cell.get_by_role("heading", level=1)).to_have_text(SLOW)


def test_a_cell_of_several_comparisons_shows_each(look: Look, notebook: Path):
    seen = look(notebook.as_uri())
    cell = seen.page.frame_locator("iframe").nth(1)
    expect(cell.get_by_role("heading", level=1)).to_have_text(f"{SLOW} and 2 more")
    cell.get_by_role("navigation", name="Comparisons").get_by_role("link").nth(1).click()
    expect(cell.get_by_role("heading", level=1)).to_contain_text(FAST)
    expect(cell.get_by_role("region", name="Verdict")).to_be_visible()


def test_a_server_that_hangs_is_noticed_without_an_error(
    look: Look, opening: ExitStack, logs: Path
):
    server = opening.enter_context(serving(logs))
    seen = look(f"{server.address}runs/{SLOW}")
    lost = seen.page.get_by_text("Connection lost")
    server.running.send(signal.SIGSTOP)
    try:
        expect(lost).to_be_visible()
    finally:
        server.running.send(signal.SIGCONT)
    expect(lost).to_have_count(0)
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
