"""A run's page: the verdict whatever is known, parts in their order, nothing empty, nothing odd."""

from dataclasses import replace

import pytest
from msgspec import structs

from drawn_runs import STARTED, history_of, page_of, part, standing_of
from factories import make_run
from failing import failed, report
from traceml.facts.history import History
from traceml.figures.page import RunPage
from traceml.figures.run_page import run_page
from traceml.summaries.build import build
from traceml.summaries.record import PrimaryDiagnosis, Summary


def test_the_verdict_is_the_diagnosis_to_read_first() -> None:
    verdict = page_of(make_run(input_ms=80, workers=0)).verdict
    assert (verdict.severity, verdict.status) == ("crit", "INPUT-BOUND")
    assert verdict.why.startswith("Waiting for data takes 69% of a mean step")
    assert verdict.next is not None and "num_workers" in verdict.next
    assert verdict.gain == "116.0 ms → 36.0 ms per step (3.22×) without the input wait"


def test_parts_come_in_the_order_of_reading() -> None:
    page = page_of(make_run(ranks=2, gpu=True))
    assert [found.id for found in page.parts] == [
        "step-time",
        "goodput",
        "step-memory",
        "metrics",
        "process",
        "system",
        "gpu",
        "origin",
    ]


def test_no_part_is_empty() -> None:
    for found in page_of(make_run(ranks=2, gpu=True)).parts:
        assert found.figures or found.tables
        assert all(table.rows for table in found.tables)


def test_the_traceback_stands_where_the_failure_is_told() -> None:
    printed = "Traceback (most recent call last):\n\tbad\x1b[31m\nValueError: bad"
    page = page_of(failed(report(traceback=printed)), standing_of("failed", 1))
    shown = part(page, "failure").printed
    assert shown == ("Traceback (most recent call last):", "    bad", "ValueError: bad")


def test_the_verdict_on_a_run_that_failed_is_the_failure() -> None:
    page = page_of(failed(report(message="bad\x1b[31m\nshape")), standing_of("failed", 1))
    assert (page.verdict.severity, page.verdict.status) == ("crit", "EXCEPTION")
    assert "bad" in page.verdict.why and "\x1b" not in page.verdict.why
    ended = part(page, "failure")
    assert page.parts[0] is ended and ended.title == "What ended it"
    told = dict(row.cells for row in ended.tables[0].rows)
    assert told["Rank"] == "0"
    assert told["Step"] == "201"
    assert told["Phase"] == "forward"
    assert told["Module"] == "block.1"
    assert told["Where"] == "train.py:7 in forward"
    assert told["Message"] == "bad shape"
    assert len(told) == len({name.lower() for name in told})
    assert page.rail[0].since == "at step 201"


def test_a_run_that_was_interrupted_keeps_its_diagnosis() -> None:
    page = page_of(failed(status=130, input_ms=80), standing_of("failed", 130))
    assert page.verdict.status == "INPUT-BOUND"
    assert page.head.state_words == "interrupted with status 130"


@pytest.mark.parametrize(
    ("state", "exit_status", "status", "tone"),
    [
        ("live", None, "STARTING", "muted"),
        ("finished", 0, "NO DATA", "muted"),
        ("failed", 1, "FAILED", "crit"),
        ("lost", None, "LOST", "warn"),
    ],
)
def test_a_run_without_a_summary_says_what_is_known(
    state: str, exit_status: int | None, status: str, tone: str
) -> None:
    verdict = run_page(None, standing_of(state, exit_status), History()).verdict
    assert (verdict.status, verdict.severity) == (status, tone)
    assert verdict.why and verdict.next


def test_a_summary_that_cannot_be_read_is_not_called_missing() -> None:
    standing = standing_of(notes=("final_summary.json breaks off at line 2",))
    verdict = run_page(None, standing, History()).verdict
    assert (verdict.severity, verdict.why) == ("warn", "final_summary.json breaks off at line 2")
    assert verdict.next is not None and "traceml recover" in verdict.next


def test_a_lost_run_can_be_recovered() -> None:
    page = run_page(None, standing_of("lost", None), History())
    assert page.verdict.next is not None and "traceml recover made" in page.verdict.next


def test_a_run_that_has_just_begun_warms_up() -> None:
    run = make_run(steps=5)
    warming = PrimaryDiagnosis(kind="WARMUP", status="WARMUP", severity="info")
    summary = structs.replace(build(run, 0.0, "0"), primary_diagnosis=warming)
    page = run_page(summary, standing_of("live", None), history_of(run))
    assert page.verdict.status == "WARMING UP"
    assert page.verdict.why.startswith("5 steps so far")
    assert "step-time" in [found.id for found in page.parts]


def test_a_live_summary_without_a_primary_diagnosis_is_read_by_its_step_time() -> None:
    summary = build(make_run(input_ms=80), 0.0, "0")
    bare = Summary(step_time=summary.step_time, what_if=summary.what_if)
    assert run_page(bare, standing_of("live", None), History()).verdict.status == "INPUT-BOUND"


def test_the_output_and_the_notes_are_made_printable() -> None:
    standing = standing_of(output=("\tepoch 1", "a\x07b"), notes=("samples\nlost",))
    page = page_of(make_run(), standing)
    assert page.output == ("    epoch 1", "a?b")
    assert page.notes == ("samples lost",)


def test_output_that_was_not_kept_is_not_an_empty_pane() -> None:
    assert page_of(make_run(), standing_of(output=None)).output is None


def test_no_name_can_move_a_cursor() -> None:
    hostile = "\x1b[2J\u202e<script>alert(1)</script>\n" + "x" * 5000
    manifest = replace(STARTED, run_name=hostile, command=(hostile,), hostname=hostile)
    run = replace(make_run(), params={hostile: hostile})
    page: RunPage = page_of(run, standing_of(manifest=manifest))
    words = [page.head.name, page.head.command]
    words += [
        cell for table in part(page, "origin").tables for row in table.rows for cell in row.cells
    ]
    assert all(word.isprintable() and len(word) <= 400 for word in words)
