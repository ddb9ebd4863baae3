"""The history of a command in a real browser: the chart, the changes, the table and the choices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from browsing import Look, Window, expect
from history_runs import TRAIN, write_traced
from repositories import git, make_repository
from served import Served, serving

COMMITS, SLOWER_FROM = 16, 8
HURT = '<img src=x onerror="window.hurt=1">'
PHONE = {"width": 390, "height": 844, "device_scale_factor": 2, "is_mobile": True}
TITLE = "step_time_ms along commits"


def commit_subject(folder: Path, subject: str) -> str:
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def history(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server inside a repository; a commit whose subject is hostile made training slower."""
    folder = tmp_path_factory.mktemp("history")
    commits = [make_repository(folder, train="0")]
    for number in range(1, COMMITS):
        subject = f"Slower {HURT}" if number == SLOWER_FROM else f"Commit {number}"
        commits.append(commit_subject(folder, subject))
    logs = folder / "logs"
    for number, code in enumerate(commits):
        write_traced(
            logs,
            f"night-{number:02}",
            code,
            command=(*TRAIN, "--seed", str(number)),
            started_s=100.0 * number,
            forward_ms=10.0 if number < SLOWER_FROM else 14.0,
            seed=number,
        )
    write_traced(logs, "evaluation", commits[0], command=("python", "evaluate.py"))
    with serving(logs) as served:
        yield served


def go(look: Look, history: Served, query: str = "", **options: Any) -> Window:
    seen = look(f"{history.address}history{query}", **options)
    expect(seen.verdict).to_be_visible()
    return seen


def asked(seen: Window) -> dict[str, list[str]]:
    return parse_qs(urlsplit(seen.page.url).query)


def first_cells(seen: Window) -> list[str]:
    names: list[str] = seen.part("Runs").locator("tbody th").all_inner_texts()
    return names


def test_the_chart_marks_the_change_and_names_the_commit_with_its_subject(
    look: Look, history: Served
):
    seen = go(look, history, "?q=steps+%3E+0")
    expect(seen.page).to_have_title("History · TraceML")
    expect(seen.main.get_by_text(f"{COMMITS + 1} runs", exact=True)).to_be_visible()
    chart = seen.part(TITLE)
    expect(chart.locator(".history-dot")).to_have_count(COMMITS)
    expect(chart.locator(".history-interval")).to_have_count(COMMITS)
    expect(chart.locator(".history-mark")).to_have_count(1)
    expect(chart.locator(".history-label")).to_contain_text("+")
    changes = seen.part("Changes")
    expect(changes.get_by_role("listitem").first).to_contain_text("WORSE")
    expect(changes.get_by_role("listitem").first).to_contain_text(f"Slower {HURT}")
    assert not seen.was_hurt()


def test_a_change_leads_to_the_comparison_of_the_runs_around_it(look: Look, history: Served):
    seen = go(look, history)
    newest = seen.part("Changes").get_by_role("listitem").first
    newest.get_by_role("link", name="Compare the runs before and after it").click()
    expect(seen.verdict).to_contain_text("REGRESSION")
    assert f"night-{SLOWER_FROM:02}" in asked(seen)["b"]


def test_a_dot_says_which_run_it_is_and_opens_it(look: Look, history: Served):
    seen = go(look, history)
    dot = seen.part(TITLE).locator(".history-dot").nth(SLOWER_FROM)
    dot.hover()
    tip = seen.part(TITLE).locator(".tip-frame")
    expect(tip).to_contain_text(f"night-{SLOWER_FROM:02}")
    expect(tip).to_contain_text("95 % interval")
    dot.click()
    expect(seen.page).to_have_title(f"night-{SLOWER_FROM:02} · TraceML")


def test_the_table_is_sorted_by_its_heads(look: Look, history: Served):
    seen = go(look, history)
    table = seen.part("Runs")
    head = table.get_by_role("columnheader", name="step_time_ms")
    assert first_cells(seen)[0] == f"night-{COMMITS - 1:02}"
    expect(head).to_have_attribute("aria-sort", "none")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    ascending = first_cells(seen)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert first_cells(seen) == ascending[::-1]
    assert {int(name[-2:]) >= SLOWER_FROM for name in ascending[SLOWER_FROM:]} == {True}


def test_command_metric_and_filter_are_chosen_and_back_undoes_it(look: Look, history: Served):
    seen = go(look, history, excuses=("400",))
    seen.main.get_by_label("Command").select_option(label="1 run: python evaluate.py")
    expect(seen.verdict).to_contain_text("TOO FEW COMMITS")
    assert first_cells(seen) == ["evaluation"]
    assert asked(seen) == {"run": ["evaluation"]}
    seen.page.go_back()
    expect(seen.verdict).to_contain_text("CHANGE")
    seen.main.get_by_role("button", name="Metric").click()
    seen.page.get_by_label("Search: Metric").fill("steps")
    seen.page.get_by_label("Search: Metric").press("Enter")
    expect(seen.part("steps along commits")).to_be_visible()
    seen.main.get_by_label("Filter the runs").fill('name = "nobody"')
    seen.main.get_by_label("Filter the runs").press("Enter")
    expect(seen.verdict).to_contain_text("NO DATA")
    seen.main.get_by_label("Filter the runs").fill("steps >")
    seen.main.get_by_label("Filter the runs").press("Enter")
    expect(seen.main.get_by_role("alert")).to_contain_text("expected a value")


def test_the_list_and_a_run_lead_to_it(look: Look, history: Served):
    seen = look(f"{history.address}?q=night")
    seen.main.get_by_role("link", name="History").click()
    expect(seen.part(TITLE)).to_be_visible()
    assert asked(seen) == {"q": ["night"]}
    seen.go(f"{history.address}runs/evaluation")
    seen.main.get_by_role("link", name="History").click()
    expect(seen.verdict).to_contain_text("TOO FEW COMMITS")
    assert first_cells(seen) == ["evaluation"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_is_wide_enough_in_both_themes(look: Look, history: Served, scheme: str):
    seen = go(look, history, color_scheme=scheme, **PHONE)
    assert seen.theme() == scheme
    expect(seen.part(TITLE).locator(".history-dot").last).to_be_visible()
    assert not seen.scrolls_sideways()
    right = seen.part(TITLE).locator(".history-dot").last.bounding_box()
    assert right is not None and right["x"] + right["width"] <= PHONE["width"]


def test_on_paper_the_chart_is_as_wide_as_the_page_and_the_choices_are_gone(
    look: Look, history: Served
):
    seen = go(look, history)
    seen.page.emulate_media(media="print")
    seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    expect(seen.main.get_by_label("Command")).to_be_hidden()
    box = seen.page.locator(".history-chart svg").bounding_box()
    frame = seen.page.locator("main").bounding_box()
    assert box is not None and frame is not None
    assert 0.8 * frame["width"] < box["width"] <= frame["width"]


def test_a_run_that_comes_appears_by_itself(look: Look, history: Served, tmp_path: Path):
    logs = tmp_path / "logs"
    write_traced(logs, "first", None)
    with serving(logs) as served:
        seen = go(look, served, excuses=("ERR_CONNECTION_REFUSED",))
        assert first_cells(seen) == ["first"]
        write_traced(logs, "second", None, started_s=10.0)
        expect(seen.part("Runs").get_by_role("link", name="second")).to_be_visible()
