"""The one-file report, opened from disk, and the notebook's cell that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.runs import BAD, FAST, HOSTILE, MANY, SLOW
from browsing import Look, expect
from processes import PYTHON, run, run_traceml


@pytest.fixture(scope="module")
def place(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports: of a run, of a hostile one, of a comparison, of two."""
    folder = tmp_path_factory.mktemp("reports")
    wanted = {
        "run": [SLOW],
        "hostile": [HOSTILE],
        "comparison": [SLOW, FAST],
        "two": [SLOW, FAST, MANY],
    }
    for name, runs in wanted.items():
        words = ["report", *runs, "--logs-dir", logs, "-o", f"{name}.html"]
        done = run_traceml(words, folder)
        assert done.status == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", ["run", "hostile", "comparison"])
def test_a_report_asks_for_nothing_and_is_small(look: Look, place: Path, name: str):
    path = place / f"{name}.html"
    seen = look(path.as_uri(), color_scheme="dark")
    expect(seen.verdict).to_be_visible()
    assert seen.theme() == "dark"
    assert seen.asked == [path.as_uri()]
    assert path.stat().st_size < 2 << 20


def test_a_report_shows_what_the_page_shows(look: Look, place: Path):
    seen = look((place / "run.html").as_uri())
    expect(seen.page).to_have_title(f"{SLOW} · TraceML")
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    assert seen.steps == 60
    expect(seen.part("Output")).to_contain_text("step 60 loss")
    assert seen.page.get_by_role("link", name="Runs").count() == 0, "there is no list to go to"
    seen.page.keyboard.press("t")
    assert seen.theme() == "dark"


def test_a_hostile_report_is_text(look: Look, place: Path):
    seen = look((place / "hostile.html").as_uri())
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(seen.part("Output")).to_contain_text(BAD)
    assert not seen.was_hurt()


def test_a_report_fits_a_phone_and_paper(look: Look, place: Path):
    seen = look((place / "run.html").as_uri(), width=390, height=844)
    assert not seen.scrolls_sideways()
    assert seen.page.pdf().startswith(b"%PDF")


def test_a_report_of_several_comparisons_shows_each(look: Look, place: Path):
    seen = look((place / "two.html").as_uri())
    choices = seen.page.get_by_role("navigation", name="Comparisons")
    expect(choices.get_by_role("link")).to_have_count(3)
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(f"{SLOW} and 2 more")
    for place, name in enumerate((FAST, MANY), start=1):
        choices.get_by_role("link").nth(place).click()
        expect(seen.page.get_by_role("heading", level=1)).to_contain_text(name)
    expect(seen.verdict).to_be_visible()


def test_a_cell_of_a_notebook_shows_a_run(look: Look, logs: Path, tmp_path: Path):
    made = run(
        [PYTHON, "-c", f"import traceml; print(traceml.show({SLOW!r})._repr_html_())"], logs.parent
    )
    assert made.status == 0, made.stderr
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8><main><h1>A</h1>{made.stdout}</main>")
    seen = look(notebook.as_uri())
    frame = seen.page.frame_locator("iframe")
    expect(frame.get_by_role("region", name="Verdict")).to_contain_text("INPUT-BOUND")
    assert not [each for each in seen.asked if not each.startswith(("file:", "about:"))]
