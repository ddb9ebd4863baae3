"""What the page of a history holds, from the record that the command prints."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs

from traceml.compare.history_record import (
    HistoryChange,
    HistoryLevel,
    HistoryRun,
    OpenPrediction,
    OtherSeries,
    PredictionScore,
    RunHistory,
)
from traceml.figures.history_page import MAX_COMPARED, history_page
from traceml.figures.history_page_record import HistoryPage
from traceml.summaries.record import KindScore

BEFORE, AFTER = 8, 6
HURT = "<img src=x onerror=hurt()>\x1b[31m\nnext"


def make_history(**more: Any) -> RunHistory:
    """Eight runs at 40 ms, then six at 50 ms."""
    runs = tuple(
        HistoryRun(
            run=f"run {number}",
            value=40.0 if number < BEFORE else 50.0,
            interval=None if number == 3 else (39.0, 51.0),
            started_unix_s=1e9 + number,
            commit=f"{number:x}" * 40,
            subject=f"commit {number}",
            dirty=number == 2,
        )
        for number in range(BEFORE + AFTER)
    )
    change = HistoryChange(
        first_run=f"run {BEFORE}",
        first_commit=f"{BEFORE:x}" * 40,
        first_subject="Normalise in the forward",
        last_run_before=f"run {BEFORE - 1}",
        last_commit_before=f"{BEFORE - 1:x}" * 40,
        commits_between=("e" * 40,),
        earliest_run=f"run {BEFORE - 1}",
        latest_run=f"run {BEFORE + 1}",
        before=40.0,
        after=50.0,
        difference=10.0,
        difference_interval=(9.0, 11.0),
        ratio=1.25,
        ratio_interval=(1.2, 1.3),
        p=0.001,
        effect="worse",
    )
    levels = (
        HistoryLevel(first_run="run 0", last_run="run 7", runs=BEFORE, mean=40.0),
        HistoryLevel(first_run="run 8", last_run="run 13", runs=AFTER, mean=50.0),
    )
    history = RunHistory(
        metric="step_time_ms",
        higher_is_better=False,
        order="commit",
        unit="run",
        units=len(runs),
        held_equal={"command": "python train.py", "host": "node", "nodes": None},
        runs=runs,
        levels=levels,
        changes=(change,),
    )
    return structs.replace(history, **more)


def make_page(**more: Any) -> HistoryPage:
    return history_page(make_history(**more), ["facts.step_time_ms"], ["params.lr"], 20)


def test_a_change_lies_between_its_levels_and_names_the_first_commit_after_it():
    page = make_page()
    (change,) = page.changes
    assert (change.place, change.earliest, change.latest) == (BEFORE, BEFORE - 1, BEFORE + 1)
    assert (change.tone, change.status, change.short_label) == ("crit", "WORSE", "+25%")
    assert change.title == "40.0 ms → 50.0 ms (+25%)"
    facts = {fact.label: fact for fact in change.facts}
    assert facts["First commit after it"].words == "8888888888 Normalise in the forward"
    assert facts["Or one of 1 commit in between"].words == "e" * 10
    assert facts["First run after it"].link == "/runs/run%208"
    assert [(level.first, level.last, level.value) for level in page.levels] == [
        (0, BEFORE - 1, 40.0),
        (BEFORE, BEFORE + AFTER - 1, 50.0),
    ]
    assert "since commit 8888888888 (Normalise in the forward)" in page.verdict.why


def test_the_comparison_of_a_change_is_of_the_runs_next_to_it():
    (change,) = make_page().changes
    sides = parse_qs(urlsplit(change.comparison).query)
    assert sides["a"] == [f"run {number}" for number in range(BEFORE - MAX_COMPARED, BEFORE)]
    assert sides["b"] == [f"run {number}" for number in range(BEFORE, BEFORE + MAX_COMPARED)]


def test_a_run_has_its_interval_where_its_steps_show_it():
    page = make_page()
    assert page.points[0].interval == "39.0 ms to 51.0 ms"
    assert (page.points[0].low, page.points[0].high) == (39.0, 51.0)
    assert (page.points[3].low, page.points[3].high, page.points[3].interval) == (None,) * 3
    assert [point.is_dirty for point in page.points].index(True) == 2
    low, high = page.y.low, page.y.high
    assert low is not None and high is not None and low <= 39.0 and high >= 51.0
    without = make_history()
    runs = tuple(structs.replace(run, interval=None) for run in without.runs)
    assert "interval of the mean" in page.caption
    assert "interval of the mean" not in make_page(runs=runs).caption


def test_values_are_in_the_unit_of_their_axis():
    runs = tuple(
        HistoryRun(run=f"run {number}", value=(3 + number) * 2.0**30) for number in range(2)
    )
    page = make_page(metric="peak_memory_bytes", runs=runs, levels=(), changes=())
    assert page.y.unit == "GiB"
    assert [(point.value, point.text) for point in page.points] == [
        (3.0, "3.00 GiB"),
        (4.0, "4.00 GiB"),
    ]


@pytest.mark.parametrize(
    ("runs", "status", "words"),
    [(0, "NO DATA", "No run that ended well, of 20 runs"), (1, "TOO FEW RUNS", "of 1 run")],
)
def test_no_run_and_one_run_say_what_is_missing(runs: int, status: str, words: str):
    page = make_page(runs=make_history().runs[:runs], units=runs, levels=(), changes=())
    assert (page.verdict.status, page.verdict.severity) == (status, "muted")
    assert words in page.verdict.why
    assert page.verdict.next is not None
    assert len(page.points) == runs


def test_many_runs_of_few_commits_say_how_many_commits_are_missing():
    page = make_page(unit="commit", units=5, levels=(), changes=())
    assert (page.verdict.status, page.verdict.severity) == ("TOO FEW COMMITS", "muted")
    assert page.verdict.next is not None and "7 more commits" in page.verdict.next


def test_several_changes_are_counted_in_the_plural():
    (change,) = make_history().changes
    assert make_page().verdict.status == "1 CHANGE"
    assert make_page(changes=(change, change)).verdict.status == "2 CHANGES"


def test_other_series_can_be_chosen_by_one_of_their_runs():
    other = OtherSeries(command="python eval.py", runs=3, newest_run="e", different={"host": "b"})
    offered = make_page(others=(other,)).series
    assert [each.run for each in offered] == ["", "e"]
    assert offered[0].label == "14 runs: python train.py"
    assert offered[1].label == "3 runs: python eval.py; host = b"


def test_earlier_predictions_stand_beside_what_happened_and_beside_new_ones():
    score = PredictionScore(
        kinds=("INPUT_BOUND",),
        before_run="run 1",
        after_run="run 2",
        step_ms=100.0,
        predicted_ms=60.0,
        actual_ms=64.0,
        saved_share=0.9,
    )
    kind = KindScore(
        kind="INPUT_BOUND",
        predictions=1,
        median_saved_share=0.9,
        min_saved_share=0.9,
        max_saved_share=0.9,
    )
    new = OpenPrediction(kind="INPUT_BOUND", summary="90 ms → 50 ms", score=kind)
    page = make_page(scores=(score,), predictions=(new,))
    tables = {table.id: table for table in page.tables}
    assert tables["scores"].rows[0].cells[1:5] == ("100.0 ms", "60.0 ms", "64.0 ms", "90%")
    assert "an earlier fix saved 90%" in tables["predictions"].rows[0].cells[2]
    assert {table.id for table in make_page().tables} == {"levels"}


def test_what_runs_are_called_stays_on_one_line_without_control_characters():
    (change,) = make_history().changes
    page = make_page(
        changes=(structs.replace(change, first_subject=HURT),),
        held_equal={"command": HURT},
        notes=(HURT,),
    )
    told = [
        *(fact.words for fact in page.changes[0].facts),
        *(fact.value for fact in page.held_equal),
        *(each.label for each in page.series),
        *page.notes,
        page.verdict.why,
    ]
    assert not any("\n" in words or "\x1b" in words for words in told)
