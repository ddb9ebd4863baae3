"""Curves of learning: what is drawn is said, nothing vanishes, and a zoom fetches finer values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from browser.runs import CURVES
from browsing import Look, Window, expect
from processes import wait_until
from served import Served

LOSS = "Loss, logged as train/loss"


@pytest.fixture
def seen(look: Look, server: Served) -> Window:
    return look(f"{server.address}runs/{CURVES}")


def figure(seen: Window, name: str) -> Any:
    found = seen.page.get_by_role("figure", name=name, exact=True)
    found.scroll_into_view_if_needed()
    return found


def numbers(seen: Window, name: str) -> dict[str, list[str]]:
    """The table under a figure, by column."""
    found = figure(seen, name)
    found.get_by_text("Data as table").click()
    rows = [row.split("\t") for row in found.get_by_role("table").inner_text().splitlines()]
    return {title: [row[place] for row in rows[1:]] for place, title in enumerate(rows[0])}


def test_a_thinned_curve_says_so_and_keeps_its_extremes(look: Look, server: Served, seen: Window):
    expect(figure(seen, "peak")).to_contain_text(
        "2,400 values, 3 a point: the line is their mean, the band from the lowest to the highest."
    )
    page = server.get(f"/api/runs/{CURVES}").json
    (peak,) = [
        drawn for part in page["parts"] for drawn in part["figures"] if drawn["title"] == "peak"
    ]
    (series,) = peak["series"]
    assert max(series["high"]) == 1000.0 <= peak["y"]["high"], "all of the band is in the picture"
    assert max(series["values"]) < 400
    shown = numbers(seen, "peak")
    assert {"peak, mean", "Lowest", "Highest"} < shown.keys()
    expect(figure(seen, "val/accuracy")).to_contain_text("All 10 values.")


def test_there_is_one_loss_and_it_is_the_one_that_was_logged(seen: Window):
    names = [name for name in seen.main.locator("figure h3").all_inner_texts() if "oss" in name]
    assert names == [LOSS]


def test_nan_and_infinite_values_are_marked(seen: Window):
    expect(figure(seen, "gone")).to_contain_text(
        "Marked on top: 100 × NaN, 1 × Inf, first at step 600."
    )
    expect(figure(seen, "huge")).to_contain_text("342 × beyond ±1e300")
    canvas = figure(seen, "gone").locator("canvas").first
    wait_until(lambda: _reds(canvas) > 100, "the marks are drawn")


def _reds(canvas: Any) -> int:
    """Pixels of the colour of marks."""
    found: int = canvas.evaluate(
        """canvas => {
      const { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      let count = 0;
      for (let at = 0; at < data.length; at += 4)
        if (data[at] === 0xc0 && data[at + 1] === 0x25 && data[at + 2] === 0x1b) count++;
      return count;
    }"""
    )
    return found


def test_numbers_of_every_size_can_be_read(seen: Window):
    assert re.fullmatch(r"[23]\.\d+e-8|2e-8", numbers(seen, "lr")["lr, mean"][0])
    assert max(map(len, numbers(seen, "huge")["huge, mean"])) < 25


def test_a_window_on_the_steps_moves_every_chart_and_fetches_each_value(
    look: Look, server: Served, seen: Window
):
    with seen.page.expect_response(lambda answer: "/detail?first=" in answer.url) as answered:
        seen.go(f"{server.address}runs/{CURVES}?steps=1100-1300")
    (fine,) = [one for one in answered.value.json()["figures"] if one["title"] == "peak"]
    assert fine["at"] == [float(step) for step in range(1050, 1350 + 1)]
    assert max(fine["series"][0]["values"]) == 1000.0
    for name in (LOSS, "peak", "Where the time of a step goes"):
        expect(figure(seen, name)).to_contain_text("Steps 1,100 – 1,300")
    assert figure(seen, "val/accuracy").get_by_role("button", name="Show all").count() == 0
    figure(seen, "peak").locator("canvas").first.hover()
    seen.page.keyboard.down("Control")
    seen.page.mouse.wheel(0, -200)
    seen.page.keyboard.up("Control")
    expect(figure(seen, LOSS)).not_to_contain_text("Steps 1,100 – 1,300")
    expect(seen.page).not_to_have_url(re.compile("steps=1100-1300"))
    figure(seen, LOSS).get_by_role("button", name="Show all").click()
    expect(seen.page).not_to_have_url(re.compile("steps="))


def test_many_charts_can_be_filtered_by_name(seen: Window):
    seen.page.get_by_role("searchbox", name="Filter the charts").fill("accuracy")
    curves = seen.part("Loss and metrics").get_by_role("figure")
    expect(curves).to_have_count(1)
    seen.page.reload()
    expect(curves).to_have_count(1)
    expect(figure(seen, "val/accuracy")).to_be_visible()
    seen.page.get_by_role("searchbox", name="Filter the charts").fill("nothing of the kind")
    expect(seen.part("Loss and metrics")).to_contain_text("No chart matches")


def test_smoothing_and_a_log_axis_are_chosen_for_all_curves_and_kept(seen: Window):
    seen.page.get_by_role("slider", name="Smoothing").fill("0.9")
    seen.page.get_by_role("checkbox", name="Log axis").check()
    expect(seen.page).to_have_url(re.compile(r"smooth=0.9&log=1"))
    figure(seen, LOSS).locator("canvas").first.hover()
    expect(figure(seen, LOSS)).to_contain_text("smoothed")
    seen.page.reload()
    expect(seen.page.get_by_role("checkbox", name="Log axis")).to_be_checked()
    expect(seen.page.get_by_role("slider", name="Smoothing")).to_have_value("0.9")
