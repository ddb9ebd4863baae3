"""Charts over many runs in a real browser: what is seen first, what is marked, and the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from browsing import Look, Window, expect
from listed_runs import list_run, metric
from processes import wait_until
from served import Served, serving

RUNS = 48
HURT = '<img src=x onerror="window.hurt=1">'
LONG = f"{HURT}{'n' * 200} ünï🚀"
PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}


def make_sweep(logs: Path) -> None:
    """A grid of four rates, three optimizers and four widths; each run has a curve of its loss."""
    for number in range(RUNS):
        lr = 10.0 ** -(1 + number % 4)
        optimizer = ("adam", "sgd", HURT)[number // 4 % 3]
        width = 2 ** (4 + number // 12)
        loss = abs(math.log10(lr) + 3) + 0.01 * width
        params: dict[str, Any] = {
            "lr": lr,
            "optimizer": optimizer,
            "width": width,
            LONG: number % 2,
        }
        if number % 8 == 0:
            del params["width"]
        folder = list_run(
            logs,
            f"sweep-{number:02}",
            params,
            {"loss": metric(loss), "accuracy": metric(None if number == 5 else 1 / (1 + loss))},
            step_ms=10.0 + width / 8,
            ago_s=60.0 * (number + 1),
            duration_s=60.0 + width,
        )
        lines = [
            {"number": n, "kind": "metrics", "step": n, "values": {"loss": loss + 1 / (1 + n)}}
            for n in range(20)
        ]
        (folder / "rank-0-1.messages").write_text("".join(f"{json.dumps(one)}\n" for one in lines))


@pytest.fixture(scope="module")
def sweep(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the runs of a sweep."""
    logs = tmp_path_factory.mktemp("sweep")
    make_sweep(logs)
    with serving(logs) as served:
        yield served


def explore(look: Look, sweep: Served, query: str = "", **options: Any) -> Window:
    seen = look(f"{sweep.address}explore{query}", **options)
    expect(seen.part("Parallel coordinates")).to_be_visible()
    return seen


def scroll_to_what_mattered(seen: Window) -> None:
    """It is asked for once it is in sight; charts above it push it down when they are drawn."""

    def is_told() -> bool:
        seen.page.locator("#what-mattered").scroll_into_view_if_needed()
        return seen.part("What mattered for loss").is_visible()

    wait_until(is_told, "what mattered is told")


def wait_until_drawn(seen: Window) -> None:
    """What followed from the pointer's last move is on the page."""
    seen.page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def drag_axis(seen: Window, number: int, begin: float, end: float) -> None:
    """From one place of an axis to another; 0 is its upper end."""
    box = seen.page.locator(".axis-strip").nth(number).bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    seen.page.mouse.move(x, box["y"] + begin * box["height"])
    seen.page.mouse.down()
    seen.page.mouse.move(x, box["y"] + (begin + end) / 2 * box["height"])
    seen.page.mouse.move(x, box["y"] + end * box["height"])
    seen.page.mouse.up()


def marked(seen: Window) -> tuple[int, str]:
    """How many runs are marked, and the filter that finds them."""
    bar = seen.page.get_by_role("region", name="Marked runs")
    count = bar.get_by_role("status").inner_text().split()[0]
    return int(count), bar.get_by_label("As a filter").inner_text()


def listed(sweep: Served, filter_text: str) -> int:
    """How many runs the server finds by a filter."""
    total: int = sweep.get(f"/api/search?limit=1&filter={quote(filter_text)}").json["total"]
    return total


def test_the_first_sight_has_every_chart(look: Look, sweep: Served):
    seen = explore(look, sweep)
    expect(seen.page).to_have_title("Explore · TraceML")
    expect(seen.main.get_by_text(f"{RUNS} runs", exact=True)).to_be_visible()
    scroll_to_what_mattered(seen)
    for title in ("Parallel coordinates", "Scatter", "By group", "What mattered for loss"):
        expect(seen.part(title)).to_be_visible()
    expect(seen.part("By group").get_by_role("figure")).to_have_count(2)
    for canvas in seen.main.locator("canvas:first-child").all():
        canvas.scroll_into_view_if_needed()
        wait_until(lambda canvas=canvas: canvas.evaluate(_HAS_INK), "something is drawn")
    expect(seen.main.get_by_text("width: 6 without a value, of 48 runs.").first).to_be_visible()
    expect(seen.part("Scatter")).to_contain_text("Pareto front")
    assert not seen.was_hurt()


_HAS_INK = """canvas => {
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return pixels.some((value, place) => place % 4 === 3 && value > 0);
}"""


_COLOUR_AT_THE_TOP = """canvas => {
  const scale = canvas.width / canvas.clientWidth;
  const [left, top] = [60 * scale, 32 * scale]; // just below the upper end of the axis
  const { data } = canvas.getContext("2d").getImageData(left, top, canvas.width - left, 3 * scale);
  const pixels = Array.from({ length: data.length / 4 }, (_, at) => data.slice(4 * at, 4 * at + 3));
  return pixels.some((rgb) => Math.max(...rgb) - Math.min(...rgb) > 12);
}"""


def test_the_axis_of_curves_leaves_room_for_their_bands(look: Look, sweep: Served):
    address = "?group=lr&metric=loss&band=range"
    seen = explore(look, sweep, address, excuses=("willReadFrequently",))
    seen.part("By group").scroll_into_view_if_needed()
    seen.part("By group").get_by_role("figure").last.scroll_into_view_if_needed()
    canvas = seen.part("By group").locator("canvas").first
    wait_until(lambda: canvas.evaluate(_HAS_INK), "something is drawn")
    assert not canvas.evaluate(_COLOUR_AT_THE_TOP), "the band is cut off"


def test_a_long_name_in_a_legend_is_not_wider_than_a_phone(look: Look, sweep: Served):
    seen = explore(look, sweep, "?group=optimizer", **PHONE)
    item = seen.part("By group").locator(".legend-item").first
    item.evaluate("item => { item.lastChild.textContent = 'n'.repeat(200); }")
    assert not seen.scrolls_sideways()


def test_what_is_dragged_over_is_a_filter_that_finds_the_same_runs(look: Look, sweep: Served):
    seen = explore(look, sweep, "?axes=lr,optimizer,width,loss")
    drag_axis(seen, 0, 0.2, 0.8)  # the two rates in the middle
    count, words = marked(seen)
    assert words.startswith("params.lr >= ") and " and params.lr <= " in words
    assert count == listed(sweep, words) == RUNS / 2
    drag_axis(seen, 1, 0.0, 0.5)  # a category, whose name is markup
    count, words = marked(seen)
    assert 0 < count == listed(sweep, words) < RUNS / 2
    seen.page.get_by_role("button", name="Keep only these").click()
    expect(seen.main.get_by_text(f"{count} runs", exact=True)).to_be_visible()
    assert parse_qs(urlsplit(seen.page.url).query)["q"] == [words]
    seen.page.go_back()
    expect(seen.main.get_by_text(f"{RUNS} runs", exact=True)).to_be_visible()
    assert marked(seen) == (count, words)
    seen.page.get_by_role("button", name="Clear").click()
    expect(seen.page.get_by_role("region", name="Marked runs")).to_have_count(0)


def test_a_rectangle_in_the_scatter_marks_runs_on_both_axes(look: Look, sweep: Served):
    seen = explore(look, sweep, "?x=lr&y=loss&axes=lr,loss")
    frame = seen.page.locator("#scatter .painting-frame")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box is not None
    seen.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 20)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 200)
    seen.page.mouse.move(box["x"] + 0.99 * box["width"], box["y"] + 340)
    seen.page.mouse.up()
    count, words = marked(seen)
    assert "params.lr >= " in words
    assert count == listed(sweep, words) == RUNS / 2


def test_a_click_opens_the_run_and_back_finds_what_was_marked(look: Look, sweep: Served):
    seen = explore(look, sweep, "?axes=lr,width")
    drag_axis(seen, 0, 0.0, 0.5)
    before = marked(seen)
    frame = seen.page.locator("#parallel .painting-frame")
    box = frame.bounding_box()
    assert box is not None
    tip = seen.page.locator("#parallel .tip-title")
    for down in range(50, 360, 4):
        seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + down)
        wait_until_drawn(seen)
        if tip.count():
            break
    name = tip.inner_text()
    seen.page.mouse.down()
    seen.page.mouse.up()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(name)
    seen.page.go_back()
    expect(seen.part("Parallel coordinates")).to_be_visible()
    assert marked(seen) == before


def test_a_finger_is_told_which_run_it_is_before_it_opens(look: Look, sweep: Served):
    seen = explore(look, sweep, "?axes=lr,width", **PHONE, has_touch=True)
    frame = seen.page.locator("#parallel .painting-frame")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box is not None
    tip = seen.page.locator("#parallel .tip-title")
    for down in range(70, 330, 4):
        place = (box["x"] + box["width"] / 2, box["y"] + down)
        seen.page.touchscreen.tap(*place)
        wait_until_drawn(seen)
        if tip.count():
            break
    name = tip.inner_text()
    assert "/explore" in seen.page.url
    seen.page.touchscreen.tap(*place)
    expect(seen.page.get_by_role("heading", level=1)).to_have_text(name)


def test_the_keyboard_marks_runs_and_chooses_columns(look: Look, sweep: Served):
    seen = explore(look, sweep, "?axes=lr,optimizer")
    seen.page.get_by_text("Ranges as numbers").press("Enter")
    seen.page.get_by_label("lr, from").fill("0.005")
    seen.page.get_by_label("lr, from").press("Tab")
    assert marked(seen) == (RUNS // 2, "params.lr >= 0.005")
    seen.page.get_by_role("checkbox", name="sgd").press("Space")
    assert marked(seen)[0] == 8
    picker = seen.part("Scatter").get_by_role("button", name="Up")
    picker.press("Enter")
    seen.page.get_by_role("searchbox", name="Search: Up").fill("metrics.loss")
    seen.page.keyboard.press("Enter")
    expect(picker).to_contain_text("loss")
    expect(picker).to_have_attribute("aria-expanded", "false")
    assert parse_qs(urlsplit(seen.page.url).query)["y"] == ["metrics.loss"]
    seen.page.get_by_role("button", name="Move lr to the right").press("Enter")
    expect(seen.page.locator(".axis-name").first).to_contain_text("optimizer")
    assert parse_qs(urlsplit(seen.page.url).query)["axes"] == ["params.optimizer,params.lr"]
    assert marked(seen)[0] == 8, "what is marked stays"
    table = seen.part("Scatter").get_by_text("Data as table")
    table.press("Enter")
    link = seen.part("Scatter").get_by_role("link").first
    assert "/runs/sweep-" in (link.get_attribute("href") or "")


def test_the_buttons_that_choose_columns_stand_side_by_side(look: Look, sweep: Served):
    seen = explore(look, sweep)
    scatter = seen.part("Scatter")
    across, up = (scatter.get_by_role("button", name=name) for name in ("Across", "Up"))
    boxes = [across.bounding_box(), up.bounding_box()]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"]
    field = seen.page.get_by_role("searchbox", name="Filter the runs")
    assert field.evaluate("field => field.clientWidth") > 500, "a filter can be read"
    assert field.evaluate("field => getComputedStyle(field).borderRadius") == "8px"


@pytest.mark.parametrize("options", [PHONE, {"color_scheme": "dark", "width": 1024}])
def test_names_that_are_markup_or_long_stay_names(look: Look, sweep: Served, options: Any):
    named = quote(
        f'params."{LONG}"'.replace('=x onerror="window.hurt=1"', '=x onerror=\\"window.hurt=1\\"')
    )
    seen = explore(
        look, sweep, f"?axes={named},optimizer,loss&color=optimizer&x={named}", **options
    )
    assert not seen.scrolls_sideways()
    seen.part("Scatter").get_by_role("button", name="Colour").click()
    expect(seen.page.get_by_role("dialog", name="Choose: Colour")).to_be_visible()
    assert not seen.scrolls_sideways()
    seen.part("Parallel coordinates").get_by_text("Data as table").click()
    expect(seen.part("Parallel coordinates").get_by_role("link").first).to_be_visible()
    assert not seen.was_hurt()


def test_a_wrong_filter_says_where_it_went_wrong_and_leads_on(look: Look, sweep: Served):
    excuse = ("400 (Bad Request)",)
    seen = look(f"{sweep.address}explore?q=lr+%3E", excuses=excuse)
    expect(seen.page.get_by_role("alert")).to_contain_text("expected a value")
    field = seen.page.get_by_role("searchbox", name="Filter the runs")
    field.fill("lr > 0.05")
    field.press("Enter")
    expect(seen.main.get_by_text("12 runs", exact=True)).to_be_visible()
    seen.page.get_by_role("link", name="List").click()
    assert parse_qs(urlsplit(seen.page.url).query)["q"] == ["lr > 0.05"]


def test_paper_holds_the_charts(look: Look, sweep: Served):
    seen = explore(look, sweep, "?down=optimizer&across=lr", color_scheme="dark")
    scroll_to_what_mattered(seen)
    expect(seen.main.get_by_role("table").first).to_be_visible()
    assert seen.page.pdf(format="A4").startswith(b"%PDF")
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.main.evaluate("main => main.scrollWidth") <= 210 / 25.4 * 96
    expect(seen.part("Scatter").get_by_role("button", name="Colour")).to_be_hidden()
