"""The list of runs: a row for each, also for a run of which little is known."""

from drawn_runs import standing_of
from factories import make_run
from failing import failed, report
from memory_runs import with_steps_memory
from traceml.figures.findings import rail
from traceml.figures.run_page import run_row
from traceml.summaries.build import build
from traceml.text.summary import summary_text


def test_a_finished_run_shows_its_verdict_and_its_pace() -> None:
    row = run_row("slow", build(make_run(input_ms=80), 0.0, "0"), standing_of())
    assert (row.name, row.state, row.severity, row.status) == (
        "slow",
        "finished",
        "crit",
        "INPUT-BOUND",
    )
    assert (row.steps, row.step_time, row.duration) == ("200", "116.0 ms", "1 min 2 s")
    assert row.ranks == "1 rank on 1 node, CPU only"


def test_a_run_that_has_just_begun_has_a_row() -> None:
    row = run_row("new", None, standing_of("live", None))
    assert (row.state_words, row.status, row.steps, row.step_time) == (
        "live",
        "STARTING",
        "n/a",
        "n/a",
    )


def test_a_run_that_failed_shows_how() -> None:
    row = run_row("bad", build(failed(report()), 0.0, "0"), standing_of("failed", 1))
    assert (row.status, row.severity, row.state_words) == (
        "EXCEPTION",
        "crit",
        "failed with status 1",
    )


def test_memory_that_is_full_soon_leads_a_slow_step_everywhere() -> None:
    """Both are critical: what will end the run comes before what slows it."""
    run = with_steps_memory(
        "allocated_bytes", lambda step, _: 1000 + 10 * step, gpu=True, input_ms=80
    )
    summary = build(run, 0.0, "0")
    assert summary.step_time is not None
    assert summary.step_time.issues[0].severity == "crit"
    lines = summary_text(summary).splitlines()
    assert lines[3] == "  Verdict  MEMORY CREEP (critical)"
    assert next(line for line in lines if "Also" in line).startswith("  Also     INPUT-BOUND")
    assert run_row("leaks", summary, standing_of()).status == "MEMORY CREEP"
    assert [card.status for card in rail(summary)][:2] == ["MEMORY CREEP", "INPUT-BOUND"]
