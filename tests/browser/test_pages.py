"""Every page of what is over: what is on it, how it is read, and the ways from one to another."""

from __future__ import annotations

import re

import pytest

from browser.runs import CURVES, FAST, MANY, SLOW
from browsing import Look, Window, expect
from processes import wait_until
from served import Served

PAGES = ("", f"runs/{SLOW}", f"runs/{MANY}", f"compare?a={SLOW}&b={FAST}")
PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}


def test_a_run_that_is_over_says_why_it_was_slow_before_anything_else(look: Look, server: Served):
    seen = look(f"{server.address}runs/{SLOW}")
    expect(seen.page).to_have_title(f"{SLOW} · TraceML")
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    expect(seen.verdict).to_contain_text("Waiting for data takes")
    expect(seen.verdict).to_contain_text("Next")
    assert seen.steps == 60
    for title in ("Step time", "Step memory", "Loss", "Training process", "System"):
        expect(seen.part(title).first).to_be_visible()
    expect(seen.part("Output")).to_contain_text("step 60 loss")
    assert _bottom(seen, seen.verdict) < 800, "the verdict is above the fold"


def _bottom(seen: Window, piece) -> float:
    box = piece.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.parametrize("address", PAGES, ids=["list", "run", "ranks", "comparison"])
def test_no_card_is_empty_and_every_picture_is_drawn(look: Look, server: Served, address: str):
    seen = look(f"{server.address}{address}")
    cards = seen.main.locator(".card")
    assert cards.count() > 0
    for card in cards.all():
        assert len(card.inner_text().split()) > 3
    for canvas in seen.main.locator("canvas").all():
        canvas.scroll_into_view_if_needed()
        wait_until(lambda canvas=canvas: canvas.evaluate(_HAS_INK), "something is drawn")
    for figure in seen.main.get_by_role("figure").all():
        figure.scroll_into_view_if_needed()
        expect(figure.locator("canvas, .bars, .flame-frame").first).to_be_visible()


_HAS_INK = """canvas => {
  const { width, height } = canvas;
  if (!width || !height) return false;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return pixels.some((value, place) => place % 4 === 3 && value > 0);
}"""


@pytest.mark.parametrize("address", PAGES[1:], ids=["run", "ranks", "comparison"])
def test_every_figure_has_its_numbers_as_a_table(look: Look, server: Served, address: str):
    seen = look(f"{server.address}{address}")
    figures = seen.main.get_by_role("figure").all()
    assert figures
    for figure in figures:
        figure.get_by_text("Data as table").click()
        rows = figure.get_by_role("row")
        expect(rows.nth(1)).to_be_visible()
        assert re.search(r"\d", figure.get_by_role("table").inner_text())


def test_a_late_rank_is_named_and_every_rank_has_a_row(look: Look, server: Served):
    seen = look(f"{server.address}runs/{MANY}")
    expect(seen.verdict).to_contain_text("Rank 2 takes 16.0 ms longer")
    stripes = seen.main.locator(".figure-heatmap")
    stripes.get_by_text("Data as table").click()
    for rank in range(4):
        expect(stripes.get_by_role("columnheader", name=f"rank {rank}")).to_be_visible()


def test_a_stragglers_page_opens_on_the_slow_rank_and_shows_any_other(look: Look, server: Served):
    seen = look(f"{server.address}runs/{MANY}")
    part, lens = seen.part("Step time"), seen.page.get_by_role("combobox", name="Step of")
    expect(lens).to_have_value("rank-2")
    expect(part).to_contain_text("forward · rank 2")
    lens.select_option("rank-0")
    expect(part).to_contain_text("communication · rank 0")
    expect(seen.page.get_by_role("figure", name="Where a mean step goes: rank 0")).to_be_visible()
    expect(seen.page).to_have_url(f"{server.address}runs/{MANY}?lens=rank-0")
    seen.page.reload()
    expect(lens).to_have_value("rank-0")
    lens.select_option("Mean over 4 ranks")
    expect(part).to_contain_text("mean over 4 ranks")
    alone = look(f"{server.address}runs/{SLOW}")
    expect(alone.part("Step time").first).to_be_visible()
    assert alone.page.get_by_role("combobox").count() == 0
    assert "Median" not in alone.part("Step time").locator("table").first.inner_text()


def test_zooming_in_asks_for_finer_values_and_showing_all_goes_back(look: Look, server: Served):
    seen = look(f"{server.address}runs/{MANY}")
    figure = seen.page.get_by_role("figure", name="Where the time of a step goes: rank 2")
    canvas = figure.locator("canvas").first
    canvas.hover()
    with seen.page.expect_response(lambda answer: "/detail?first=" in answer.url) as answered:
        seen.page.keyboard.down("Control")
        for _ in range(4):
            seen.page.mouse.wheel(0, -200)
        seen.page.keyboard.up("Control")
    assert answered.value.status == 200
    figure.get_by_role("button", name="Show all").click()
    expect(figure.get_by_role("button", name="Show all")).to_have_count(0)


def test_a_comparison_says_what_changed_and_what_is_different(look: Look, server: Served):
    seen = look(f"{server.address}compare?a={SLOW}&b={FAST}")
    expect(seen.verdict).to_contain_text("IMPROVEMENT")
    expect(seen.verdict).to_contain_text("Step time fell by")
    expect(seen.part("What changed")).to_contain_text("Input wait")
    expect(seen.part("What is different about the runs")).to_contain_text("argument 2")


def test_one_goes_from_the_list_to_a_run_and_back(look: Look, server: Served):
    seen = look(server.address)
    expect(seen.page.get_by_role("row")).to_have_count(1 + 5)
    seen.page.get_by_role("link", name=SLOW, exact=True).click()
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    seen.page.go_back()
    expect(seen.page.get_by_role("row")).to_have_count(1 + 5)
    seen.page.go_forward()
    expect(seen.verdict).to_contain_text("INPUT-BOUND")
    seen.page.get_by_role("link", name=re.compile("^Runs")).click()
    expect(seen.page).to_have_url(server.address)


def test_a_very_long_name_leaves_its_value_in_sight(look: Look, server: Served):
    seen = look(f"{server.address}runs/{CURVES}")
    for part, words in (("Where it comes from", "a-parameter-with"), ("Loss and metrics", "xxxx")):
        row = seen.part(part).get_by_role("row").filter(has_text=words)
        row.scroll_into_view_if_needed()
        value, card = row.get_by_role("cell").last.bounding_box(), seen.part(part).bounding_box()
        assert value["x"] + value["width"] <= card["x"] + card["width"]


def test_a_run_that_is_not_there_is_said_with_a_way_to_those_that_are(look: Look, server: Served):
    seen = look(f"{server.address}runs/nobody", excuses=("status of 404",))
    expect(seen.main).to_contain_text("there is no run 'nobody'")
    seen.page.get_by_role("link", name="All runs").click()
    expect(seen.page).to_have_url(server.address)


def test_a_link_to_a_part_leads_there(look: Look, server: Served):
    seen = look(f"{server.address}runs/{SLOW}#system")
    expect(seen.part("System").first).to_be_in_viewport()
    seen.page.get_by_role("region", name="Diagnostics").get_by_role("link").first.click()
    expect(seen.part("Step time").first).to_be_in_viewport()


def test_everything_can_be_done_with_the_keyboard(look: Look, server: Served):
    seen = look(f"{server.address}runs/{SLOW}")
    press = seen.page.keyboard.press
    press("Tab")
    expect(seen.page.get_by_role("link", name="Skip to the verdict")).to_be_focused()
    press("j")
    expect(seen.verdict).to_be_focused()
    press("j")
    expect(seen.page.get_by_role("region", name="Diagnostics")).to_be_focused()
    press("k")
    expect(seen.verdict).to_be_focused()
    press("?")
    expect(seen.page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    press("g")
    press("r")
    expect(seen.page).to_have_url(server.address)
    expect(seen.page.get_by_role("searchbox")).to_be_visible()
    press("/")
    expect(seen.page.get_by_role("searchbox")).to_be_focused()
    seen.page.keyboard.type(MANY)
    expect(seen.main.get_by_role("row")).to_have_count(1 + 1)
    for _ in range(40):  # by Tab alone, from the filter over the head to the run
        if seen.page.get_by_role("link", name=MANY, exact=True).evaluate(_HAS_FOCUS):
            break
        press("Tab")
    press("Enter")
    expect(seen.verdict).to_contain_text("STRAGGLER")


_HAS_FOCUS = "element => element === document.activeElement"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_light_or_dark_as_its_reader_prefers(look: Look, server: Served, scheme: str):
    seen = look(f"{server.address}runs/{SLOW}", color_scheme=scheme)
    assert seen.theme() == scheme
    assert (_brightness(seen) > 128) == (scheme == "light")
    other = {"light": "dark", "dark": "light"}[scheme]
    seen.page.keyboard.press("t")
    wait_until(lambda: seen.theme() == other, "the other one is drawn")
    assert (_brightness(seen) > 128) == (other == "light")
    seen.page.reload()
    expect(seen.verdict).to_be_visible()
    assert seen.theme() == other, "what was chosen is kept"


def _brightness(seen: Window) -> float:
    colour = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


@pytest.mark.parametrize("address", PAGES, ids=["list", "run", "ranks", "comparison"])
def test_nothing_is_wider_than_a_phone(look: Look, server: Served, address: str):
    seen = look(f"{server.address}{address}", **PHONE)
    assert not seen.scrolls_sideways()
    for details in seen.main.locator("details").all():
        details.locator("summary").click()
    assert not seen.scrolls_sideways()
    if address:
        assert _bottom(seen, seen.verdict.get_by_role("heading").first) < 844


def test_the_keys_go_on_from_where_the_reader_is(look: Look, server: Served):
    seen = look(f"{server.address}runs/{SLOW}#system")
    parts = seen.page.locator("[data-part]")
    names = parts.evaluate_all("parts => parts.map(part => part.id)")
    seen.page.keyboard.press("k")
    before = seen.page.evaluate("document.activeElement.id")
    assert before and before != names[-1], "not the last one of the page"
    seen.page.keyboard.press("j")
    expect(seen.page.locator("#system")).to_be_focused()
    seen.page.evaluate("document.activeElement.blur()")
    seen.page.locator("#step-memory").evaluate("part => part.scrollIntoView()")
    seen.page.keyboard.press("k")
    expect(seen.page.locator(f"#{names[names.index('step-memory') - 1]}")).to_be_focused()


def test_a_window_of_any_usual_width_holds_the_page(look: Look, server: Served):
    seen = look(f"{server.address}runs/{MANY}")
    for width in (320, 640, 768, 901, 1024, 1600, 2560):
        seen.page.set_viewport_size({"width": width, "height": 800})
        assert not seen.scrolls_sideways(), width


def test_paper_is_light_and_has_everything_but_what_one_clicks(look: Look, server: Served):
    seen = look(f"{server.address}runs/{MANY}", color_scheme="dark")
    figures = seen.main.locator(".figure-lines, .figure-heatmap").count()
    printed = seen.page.pdf()
    assert printed.startswith(b"%PDF")
    drawn = [canvas.evaluate(_HAS_INK) for canvas in seen.main.locator("canvas").all()]
    assert sum(drawn) >= figures, "what was never scrolled to is drawn too"
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")  # that of the PDF is over
    assert seen.page.evaluate(_CUT) == [], "nobody can scroll on paper"
    for name in ("Keys", "Change to light"):
        expect(seen.page.get_by_role("button", name=name)).to_be_hidden()
    expect(seen.main.get_by_text("Data as table").first).to_be_hidden()
    expect(seen.verdict).to_be_visible()


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_on_paper_a_page_break_lays_nothing_over_anything_else(
    look: Look, server: Served, paper: str
):
    """Where a break moves a piece of a grid, chromium lets what follows cover it."""
    seen = look(f"{server.address}runs/{MANY}")
    assert seen.page.pdf(format=paper).startswith(b"%PDF")
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    tables = seen.main.locator("table")
    assert tables.count() > 2
    for table in tables.all():
        assert table.evaluate(_LAID_OUT_BY) == ["block"]
    width = {"A4": 210, "Letter": 215.9}[paper] / 25.4 * 96 - 2 * 12 / 25.4 * 96
    assert seen.main.evaluate("main => main.scrollWidth") <= width


_LAID_OUT_BY = """table => {
  const found = new Set();
  for (let piece = table.parentElement; piece.id !== "app"; piece = piece.parentElement)
    found.add(getComputedStyle(piece).display);
  return [...found].sort();
}"""

_CUT = """[...document.querySelectorAll("main *")]
  .filter(piece => piece.checkVisibility() && piece.matches(".scroll, table, .output"))
  .filter(piece => piece.scrollWidth > piece.clientWidth + 1)
  .map(piece => piece.textContent.slice(0, 80))"""
