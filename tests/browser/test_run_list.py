"""The list of runs as a workbench: filter, sort, columns, groups, selection, tags; many of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from browser.runs import CURVES, FAST, HOSTILE, MANY, SLOW
from browsing import Look, Window, expect
from factories import make_run
from processes import wait_until
from run_folders import write_run
from served import Served, serving
from traceml.model.run import Ending
from traceml.store.tags import read_tags

PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}
LONG = "long-" * 39 + "x"
COUNT = 300
STARTED_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def crowd_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hundreds of runs, a minute apart; `run-299` is the newest."""
    logs = tmp_path_factory.mktemp("crowd") / "logs"
    whole = write_run(logs / "run-000", make_run(steps=50), ending=Ending(STARTED_S + 60, 0))
    manifest = (whole / "run.json").read_text()
    started = re.search(r'"started_unix_s": ?([\d.e+]+)', manifest)
    assert started is not None
    for number in range(COUNT):
        name = LONG if number == 7 else f"run-{number:03}"
        folder = logs / name
        if number:
            shutil.copytree(whole, folder)
        own = manifest.replace(started[1], str(STARTED_S + 60 * number))
        (folder / "run.json").write_text(own)
    return logs


@pytest.fixture(scope="module")
def crowd(browser: Any, crowd_logs: Path) -> Iterator[Served]:
    with serving(crowd_logs) as served:
        yield served


def rows(seen: Window) -> Any:
    """The runs in the list, without its head."""
    return seen.main.locator("tbody tr[data-index]")


def scroller(seen: Window) -> Any:
    return seen.page.get_by_role("region", name="Runs, scrollable")


def test_only_what_is_in_sight_is_on_the_page_and_everything_can_be_reached(
    look: Look, crowd: Served
):
    seen = look(crowd.address)
    expect(seen.page.get_by_role("status").first).to_have_text(f"{COUNT} runs")
    expect(rows(seen).first).to_contain_text(f"run-{COUNT - 1}")
    assert rows(seen).count() < 80
    table = seen.page.get_by_role("table")
    assert table.get_attribute("aria-rowcount") == str(COUNT + 1)
    row_px = rows(seen).first.bounding_box()["height"]
    assert row_px <= 40
    height = scroller(seen).evaluate("element => element.scrollHeight")
    assert abs(height - row_px * (COUNT + 1)) < 2 * row_px, "the scrollbar has the right size"
    scroller(seen).evaluate("element => element.scrollTo(0, element.scrollHeight)")
    last = seen.main.get_by_role("link", name="run-000", exact=True)
    expect(last).to_be_in_viewport()
    expect(seen.page.get_by_role("columnheader", name="Started")).to_be_in_viewport()
    assert last.locator("xpath=ancestor::tr").get_attribute("aria-rowindex") == str(COUNT + 1)
    assert rows(seen).count() < 80


def test_a_column_is_sorted_by_on_the_server_and_said_to_screen_readers(look: Look, crowd: Served):
    seen = look(crowd.address)
    head = seen.page.get_by_role("columnheader", name="Run", exact=True)
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    expect(rows(seen).first).to_contain_text("long-")
    expect(head).to_have_attribute("aria-sort", "ascending")
    head.get_by_role("button").click()
    expect(rows(seen).first).to_contain_text("run-299")
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(seen.page).to_have_url(f"{crowd.address}?sort=-name")


def test_times_are_the_readers_own(look: Look, crowd: Served):
    seen = look(crowd.address, timezone_id="Asia/Kolkata")
    began = datetime.fromtimestamp(STARTED_S + 60 * (COUNT - 1), timezone.utc)
    local = began + timedelta(hours=5, minutes=30)
    expect(rows(seen).first).to_contain_text(local.strftime("%Y-%m-%d %H:%M"))


def test_a_range_and_all_that_match_are_selected(look: Look, crowd: Served):
    seen = look(f"{crowd.address}?q=run-1")
    boxes = rows(seen).get_by_role("checkbox")
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    bar = seen.page.get_by_role("region", name="Selected runs")
    expect(bar).to_contain_text("4 selected")
    expect(seen.page).to_have_url(re.compile("run=run-198&run=run-197&run=run-196&run=run-195"))
    assert rows(seen).get_by_role("checkbox", checked=True).count() == 4
    bar.get_by_role("button", name="Clear").click()
    seen.page.get_by_role("checkbox", name="Select all runs that match").click()
    expect(bar).to_contain_text("100 selected")
    export = bar.get_by_role("link", name="Export CSV").get_attribute("href")
    assert export is not None
    content = crowd.get(export).body.decode().splitlines()
    assert len(content) == 1 + 100
    seen.page.reload()
    expect(bar).to_contain_text("100 selected")


def test_keys_go_from_run_to_run_and_select(look: Look, crowd: Served):
    seen = look(crowd.address)
    seen.main.get_by_role("link", name="run-299", exact=True).focus()
    for _ in range(3):
        seen.page.keyboard.press("ArrowDown")
    expect(seen.main.get_by_role("link", name="run-296", exact=True)).to_be_focused()
    seen.page.keyboard.press("x")
    expect(seen.page.get_by_role("checkbox", name="Select run-296")).to_be_checked()


def test_the_baseline_stays_on_top_whatever_the_filter_is(look: Look, crowd: Served):
    seen = look(crowd.address)
    rows(seen).nth(2).hover()
    seen.page.get_by_role("button", name="Pin run-297 as the baseline").click()
    pinned = seen.main.locator("thead .pinned")
    expect(pinned).to_contain_text("run-297")
    seen.page.get_by_role("searchbox").fill("run-12")
    expect(rows(seen)).to_have_count(10)
    expect(pinned).to_contain_text("run-297")
    expect(seen.page).to_have_url(f"{crowd.address}?q=run-12&base=run-297")
    rows(seen).get_by_role("checkbox").first.click()
    compare = seen.page.get_by_role("link", name="Compare", exact=True)
    expect(compare).to_have_attribute("href", "/compare?a=run-297&b=run-129")
    rows(seen).get_by_role("checkbox").nth(1).click()
    each = seen.page.get_by_role("link", name="Compare each")
    expect(each).to_have_attribute("href", "/compare?run=run-297&run=run-129&run=run-128")


def test_a_run_that_begins_moves_nothing_that_is_looked_at(
    look: Look, opening: Any, crowd_logs: Path, tmp_path: Path
):
    logs = tmp_path / "logs"
    kept = [f"run-{number}" for number in range(150, COUNT)]
    for name in kept:
        shutil.copytree(crowd_logs / name, logs / name)
    server = opening.enter_context(serving(logs))
    seen = look(server.address)
    expect(rows(seen).first).to_be_visible()
    scroller(seen).evaluate("element => element.scrollTo(0, 32 * 100)")
    row = seen.main.get_by_role("link", name="run-199", exact=True)
    expect(row).to_be_in_viewport()
    before = row.bounding_box()["y"]
    new = shutil.copytree(crowd_logs / "run-150", tmp_path / "new")
    manifest = (new / "run.json").read_text()
    started = re.search(r'"started_unix_s": ?([\d.e+]+)', manifest)
    assert started is not None
    (new / "run.json").write_text(manifest.replace(started[1], str(STARTED_S + 1e6)))
    new.rename(logs / "newest")
    expect(seen.page.get_by_role("status").first).to_have_text(f"{len(kept) + 1} runs")
    wait_until(lambda: abs(row.bounding_box()["y"] - before) < 1, "the row stays where it was")
    scroller(seen).evaluate("element => element.scrollTo(0, 0)")
    expect(rows(seen).first).to_contain_text("newest")


def test_the_list_is_filtered_by_the_query_language_and_errors_point_at_their_place(
    look: Look, server: Served
):
    seen = look(server.address, excuses=("status of 400",))
    box = seen.page.get_by_role("searchbox")
    box.fill("steps > 1000")
    expect(rows(seen)).to_have_count(1)
    expect(rows(seen).first).to_contain_text(CURVES)
    box.fill("steps > 1000 and stauts = 1")
    expect(seen.page.get_by_role("alert")).to_contain_text("did you mean status")
    said = seen.page.get_by_role("alert").text_content().splitlines()
    assert said[2].index("^") == said[1].index("stauts")
    expect(rows(seen).first).to_contain_text(CURVES)  # what was last understood
    box.fill("straggler")
    expect(rows(seen)).to_have_count(1)
    expect(rows(seen).first).to_contain_text(MANY)
    box.fill("")
    expect(rows(seen)).to_have_count(5)


def test_names_of_columns_are_offered_while_one_types(look: Look, server: Served):
    seen = look(server.address, excuses=("status of 400",))
    box = seen.page.get_by_role("searchbox")
    box.press_sequentially("steps > 1 and throughp")
    option = seen.page.get_by_role("option", name=re.compile("^throughput"))
    expect(option).to_be_visible()
    seen.page.keyboard.press("ArrowDown")
    seen.page.keyboard.press("Enter")
    expect(box).to_have_value("steps > 1 and throughput ")
    expect(seen.page.get_by_role("listbox", name="Columns")).to_have_count(0)


def test_columns_are_chosen_among_parameters_metrics_and_facts(look: Look, server: Served):
    seen = look(server.address)
    seen.page.get_by_role("button", name="Columns…").click()
    picker = seen.page.get_by_role("dialog", name="Columns")
    picker.get_by_role("searchbox").fill("metrics.lr")
    picker.get_by_role("checkbox", name=re.compile("^metrics.lr the last")).check()
    picker.get_by_role("button", name="Hide Started").click()
    picker.get_by_role("button", name="Close").click()
    expect(seen.page.get_by_role("columnheader", name="Started")).to_have_count(0)
    row = rows(seen).filter(has_text=CURVES)
    expect(row).to_contain_text("4e-8")
    expect(seen.page).to_have_url(re.compile("columns=.*metrics.lr"))
    seen.page.reload()
    expect(row).to_contain_text("4e-8")
    cell = row.get_by_text("4e-8", exact=True)
    assert cell.evaluate("cell => getComputedStyle(cell).textAlign") == "right"


def test_runs_are_grouped_and_a_group_opens(look: Look, server: Served):
    seen = look(server.address)
    seen.page.get_by_label("Group by").select_option("State")
    expect(rows(seen)).to_have_count(1)
    expect(seen.page.get_by_role("columnheader").nth(3)).to_contain_text("mean ± 95% CI")
    expect(rows(seen).first).to_contain_text("5")
    expect(seen.page).to_have_url(f"{server.address}?group=status")
    seen.page.get_by_role("button", name="finished").click()
    expect(rows(seen)).to_have_count(5)
    expect(seen.page.get_by_role("searchbox")).to_have_value('status = "finished"')


def test_two_runs_that_are_ticked_are_compared(look: Look, server: Served):
    seen = look(server.address)
    for name in (SLOW, FAST):
        seen.page.get_by_role("checkbox", name=f"Select {name}").check()
    seen.page.get_by_role("link", name="Compare", exact=True).click()
    expect(seen.page).to_have_url(f"{server.address}compare?a={SLOW}&b={FAST}")
    expect(seen.verdict).to_contain_text("IMPROVEMENT")


def test_any_number_of_runs_can_be_ticked_and_they_are_compared_as_groups(
    look: Look, server: Served
):
    seen = look(server.address)
    for name in (SLOW, FAST, CURVES):
        seen.page.get_by_role("checkbox", name=f"Select {name}").check()
    seen.page.get_by_role("button", name=re.compile(f"^{CURVES} is on side B")).click()
    seen.page.get_by_role("link", name="Compare A with B").click()
    expect(seen.page).to_have_url(f"{server.address}compare?a={SLOW}&a={CURVES}&b={FAST}")
    expect(seen.verdict).to_be_visible()


def test_back_finds_the_list_as_it_was_left(look: Look, server: Served):
    seen = look(server.address)
    seen.page.get_by_role("button", name=re.compile("^Steps")).click()
    seen.page.get_by_role("searchbox").fill("bound")
    seen.page.get_by_role("checkbox", name=f"Select {SLOW}").check()
    kept = f"{server.address}?q=bound&sort=steps&run={SLOW}"
    expect(seen.page).to_have_url(kept)
    names = [row["name"] for row in server.get("/api/runs?q=bound&sort=steps").json["rows"]]
    links = rows(seen).get_by_role("link")
    expect(links).to_have_text(names)  # the address is another one before the server has answered
    seen.page.get_by_role("link", name=SLOW, exact=True).click()
    expect(seen.verdict).to_be_visible()
    seen.page.go_back()
    expect(seen.page.get_by_role("searchbox")).to_have_value("bound")
    expect(seen.page.get_by_role("checkbox", name=f"Select {SLOW}")).to_be_checked()
    expect(links).to_have_text(names)
    seen.page.get_by_role("link", name=SLOW, exact=True).click()
    seen.page.get_by_role("link", name=re.compile("^Runs")).click()
    expect(seen.page).to_have_url(kept)


def test_a_phone_sorts_the_list_too_and_shows_each_run_in_two_lines(look: Look, server: Served):
    seen = look(server.address, **PHONE)
    seen.page.get_by_role("combobox", name="Sort by").select_option("Steps")
    expect(rows(seen).first).to_contain_text(CURVES)
    expect(rows(seen).first).to_contain_text(re.compile(r"Steps 2[34]\d\d"))
    seen.page.get_by_role("button", name=re.compile("Downwards")).click()
    expect(rows(seen).first).not_to_contain_text(CURVES)
    expect(seen.page).to_have_url(re.compile("sort=steps"))
    rows(seen).get_by_role("checkbox").first.check()
    expect(seen.page.get_by_role("button", name="Pin as baseline")).to_be_visible()
    assert not seen.scrolls_sideways()


def test_what_is_clicked_is_large_enough_to_be_hit(look: Look, server: Served):
    seen = look(server.address)
    label = rows(seen).locator(".pick label").first.bounding_box()
    box = rows(seen).get_by_role("checkbox").first.bounding_box()
    assert min(box["width"], box["height"]) >= 18 and label["height"] >= 24


def test_tags_and_a_note_are_written_in_the_page_and_filtered_by(
    look: Look, opening: Any, logs: Path, tmp_path: Path
):
    shutil.copytree(logs / HOSTILE, tmp_path / "logs" / HOSTILE)
    shutil.copytree(logs / FAST, tmp_path / "logs" / FAST)
    server = opening.enter_context(serving(tmp_path / "logs"))
    seen = look(server.address)
    row = rows(seen).filter(has_text="größe")
    row.hover()
    row.get_by_role("button", name=re.compile("^Tags and note")).click()
    editor = seen.page.get_by_role("dialog", name=re.compile("^Tags and note"))
    editor.get_by_label("Add tags").fill("good, <b>hurt</b>")
    editor.get_by_label("Note").fill("<img src=x onerror=window.hurt=1>")
    editor.get_by_role("button", name="Save").click()
    expect(row.get_by_role("button", name="good")).to_be_visible()
    assert read_tags(tmp_path / "logs" / HOSTILE).tags == ("good", "<b>hurt</b>")
    row.get_by_role("button", name="<b>hurt</b>").click()
    expect(rows(seen)).to_have_count(1)
    expect(seen.page.get_by_role("searchbox")).to_have_value('tags contains "<b>hurt</b>"')
    row.hover()
    row.get_by_role("button", name=re.compile("^Tags and note")).click()
    editor.get_by_role("button", name="Remove the tag good").click()
    editor.get_by_role("button", name="Save").click()
    expect(row.get_by_role("button", name="good")).to_have_count(0)
    assert not seen.was_hurt()


def test_a_read_only_server_says_so_and_keeps_what_was_typed(look: Look, opening: Any, logs: Path):
    server = opening.enter_context(serving(logs, "--read-only"))
    seen = look(server.address)
    rows(seen).filter(has_text=FAST).hover()
    seen.page.get_by_role("button", name=f"Tags and note of {FAST}").click()
    seen.page.get_by_label("Add tags").fill("good")
    seen.page.get_by_role("button", name="Save").click()
    expect(seen.page.get_by_role("alert")).to_contain_text("--read-only")
    assert not read_tags(logs / FAST).tags


def test_paper_has_the_list_and_nothing_that_one_clicks(look: Look, server: Served):
    seen = look(server.address, color_scheme="dark")
    assert seen.page.pdf().startswith(b"%PDF")
    seen.page.emulate_media(media="print")
    expect(seen.page.get_by_role("searchbox")).not_to_be_visible()
    expect(seen.main.get_by_role("link", name=SLOW, exact=True)).to_be_visible()
    assert not rows(seen).get_by_role("checkbox").first.is_visible()


def test_a_long_title_of_a_column_breaks_on_paper(look: Look, server: Served):
    seen = look(server.address, width=1047, height=718)
    seen.page.emulate_media(media="print")
    title = seen.main.locator("thead .kind-number .title-words").first
    title.evaluate("title => { title.textContent = 'n'.repeat(200); }")
    assert title.evaluate("title => title.closest('th').scrollWidth") < 200
