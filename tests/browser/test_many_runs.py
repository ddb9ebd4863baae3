"""Several runs on one page, as a reader meets them, and the file that keeps the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from browser.runs import CURVES, FAST, HOSTILE, MANY, SLOW
from browsing import Look, expect
from served import Served
from traceml.figures.page import (
    Axis,
    GridCell,
    GridColumn,
    GridRow,
    Lines,
    ManyRunsPage,
    Part,
    Series,
    Verdict,
    WideGrid,
)
from traceml.web.report import write_report

NAMES = (SLOW, FAST, CURVES, HOSTILE, MANY)
QUERY = "&".join(f"run={quote(name, safe='')}" for name in NAMES)


def test_many_runs_are_compared_with_the_first(look: Look, server: Served):
    seen = look(f"{server.address}compare?{QUERY}")
    expect(seen.verdict).to_contain_text("IMPROVEMENT")
    expect(seen.page).to_have_title(f"{SLOW} and 4 more · TraceML")
    runs = seen.part("Runs, against A").get_by_role("row")
    expect(runs.filter(has_text=f"B: {FAST}").first).to_contain_text("IMPROVEMENT")
    assert not seen.was_hurt()
    assert not seen.scrolls_sideways()
    seen.main.get_by_role("link", name=f"B: {FAST}").first.click()
    expect(seen.page).to_have_url(f"{server.address}runs/{FAST}")


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """The address of a page with twenty runs and two hundred rows, three of which differ."""
    columns = tuple(GridColumn(chr(65 + place), f"run-{place}") for place in range(20))
    rows = tuple(
        GridRow(
            f"param-{place}" if place else "x" * 200,
            tuple(GridCell(str(place)) for _ in columns),
            differs=place < 3,
        )
        for place in range(200)
    )
    grid = WideGrid("parameter-grid", "Parameters", columns, rows)
    part = Part("parameters", "Parameters", grids=(grid,), is_wide=True)
    at = tuple(map(float, range(20)))
    curves = tuple(
        Lines(
            id=name,
            title=name,
            x=Axis("step"),
            y=Axis(name),
            at=at,
            series=(Series("A: run-0", "series-1", at, at=at), Series("B: run-1", "b", at, at=at)),
            is_curve=True,
            zooms=True,
        )
        for name in ("loss", "accuracy")
    )
    parts = (part, Part("curves", "Curves", figures=curves, is_wide=True))
    page = ManyRunsPage("a and 19 more", Verdict("info", "NO CHANGE", "Nothing."), parts)
    path = tmp_path / "wide.html"
    write_report([page], path)
    return path.as_uri()


def test_only_what_differs_is_shown_until_all_is_asked_for(look: Look, wide: str):
    part = look(wide).part("Parameters")
    assert part.locator("tbody tr").count() == 3
    part.get_by_role("checkbox", name="Only differences (3 of 200 rows)").uncheck()
    assert part.locator("tbody tr").count() == 200
    part.get_by_role("searchbox").fill("param-17")
    assert part.locator("tbody tr").count() == 11  # and 170 to 179


@pytest.mark.parametrize("width", [390, 1280])
def test_names_stay_in_sight_beside_many_runs(look: Look, wide: str, width: int):
    seen = look(wide, width=width, height=844)
    assert not seen.scrolls_sideways()
    seen.main.get_by_role("checkbox", name="Only differences").uncheck()
    scroll = seen.main.locator(".grid-scroll")
    scroll.evaluate("place => place.scrollTo(10000, 3000)")
    frame, name = scroll.bounding_box(), scroll.locator("tbody th").nth(150).bounding_box()
    head = scroll.locator("thead th").last.bounding_box()
    assert name["x"] == pytest.approx(frame["x"], abs=2)
    assert head["y"] == pytest.approx(frame["y"], abs=2)


def test_a_run_that_is_hidden_in_one_chart_is_hidden_in_all(look: Look, wide: str):
    curves = look(wide).part("Curves")
    buttons = curves.get_by_role("button", name="B: run-1")
    assert buttons.count() == 2
    buttons.last.click()
    for each in buttons.all():
        expect(each).to_have_attribute("aria-pressed", "false")


def test_nothing_is_cut_on_paper(look: Look, wide: str):
    seen = look(wide)
    assert seen.page.pdf(format="A4").startswith(b"%PDF")
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    grids = seen.main.locator(".grid").all()
    assert len(grids) == 4  # of five runs each
    assert max(grid.bounding_box()["width"] for grid in grids) <= 700


@pytest.fixture
def saved(look: Look, server: Served, tmp_path: Path) -> Iterator[Path]:
    seen = look(f"{server.address}compare?{QUERY}")
    with seen.page.expect_download() as downloading:
        seen.page.get_by_role("link", name="Download as one HTML file").click()
    path = tmp_path / downloading.value.suggested_filename
    downloading.value.save_as(path)
    yield path


def test_the_page_is_saved_as_a_file_that_asks_for_nothing(look: Look, saved: Path):
    assert saved.name.startswith("slow_and_4_more-")
    assert saved.stat().st_size < 4 << 20
    seen = look(saved.as_uri())
    expect(seen.verdict).to_contain_text("IMPROVEMENT")
    expect(seen.part("Curves")).to_be_visible()
    assert seen.main.get_by_role("link", name=f"B: {FAST}").count() == 0  # it leads nowhere
    assert seen.asked == [saved.as_uri()]
    seen.page.locator("#comparisons a").nth(1).click()
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("against")
