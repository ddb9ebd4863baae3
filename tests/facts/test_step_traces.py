"""Recorded steps: how they stand among all steps, and that they are in no mean."""

from dataclasses import replace

import pytest

from factories import make_run, stall
from traceml.facts.gather import gather
from traceml.store.step_trace_records import KeptTrace, StepTraceRecords, read_step_traces

SLOW_S = 0.5


def recorded(run, *steps, kept=(), rank=0, notes=()):
    """The run with recorded steps of a rank, each of 60 ms."""
    traces = StepTraceRecords(
        pid=run.ranks[rank].rank.pid,
        rank=rank,
        asked=2,
        recorded=tuple((step, 60_000_000) for step in steps),
        cost_ns=300_000_000,
        kept=tuple(
            KeptTrace(step, 60_000_000, f"kineto-{rank}-{step}.json.gz", role, 1000)
            for step, role in kept
        ),
        notes=notes,
    )
    return replace(run, step_traces=(*run.step_traces, traces))


def test_a_run_without_traces_has_none():
    assert gather(make_run()).step_traces is None


def test_recorded_steps_and_their_neighbours_are_in_no_mean():
    plain = make_run(steps=100, noise=0.0)
    slow = stall(plain, "rest", SLOW_S, 49, 50, 51)
    assert gather(slow).mean.step_s > 1.2 * gather(plain).mean.step_s
    facts = gather(recorded(slow, 50))
    assert facts.mean.step_s == pytest.approx(gather(plain).mean.step_s)
    assert facts.series.count == gather(plain).series.count - 3
    assert facts.window.steps_taken == facts.ranks[0].steps_taken == 100
    assert facts.ranks[0].steps_aborted == 0


def test_a_step_that_one_rank_recorded_is_in_no_mean_of_any():
    plain = make_run(ranks=2, steps=100, noise=0.0)
    slow = stall(plain, "rest", SLOW_S, 49, 50, 51)  # of both: the other one waits
    facts = gather(recorded(slow, 50, rank=1))
    assert facts.mean.step_s == pytest.approx(gather(plain).mean.step_s)


def test_the_numbers_of_a_restarted_rank_go_on():
    plain = make_run(steps=100, noise=0.0)
    slow = stall(plain, "rest", SLOW_S, 49, 50, 51)
    restarted = replace(slow, ranks=(replace(slow.ranks[0], former_steps=30),))
    facts = gather(recorded(restarted, 20))  # the fiftieth of the run
    assert facts.mean.step_s == pytest.approx(gather(plain).mean.step_s)


def test_where_all_steps_were_disturbed_all_count():
    facts = gather(recorded(make_run(steps=3), 2))
    assert facts.mean.step_s is not None


def test_the_slowest_step_that_was_not_recorded_is_told():
    run = stall(make_run(steps=200, noise=0.0), "rest", SLOW_S, 120)
    facts = gather(recorded(run, 60, 90, kept=((60, "typical"), (90, "worst")))).step_traces
    assert (facts.asked, facts.recorded, facts.cost_s) == (2, 2, 0.3)
    assert facts.slowest_step == 120 and facts.slowest_s > SLOW_S
    assert facts.median_s == pytest.approx(0.037, rel=0.01)
    assert facts.recorded_median_s == 0.06
    assert [(each.step, each.is_worst) for each in facts.traces] == [(60, False), (90, True)]


def test_a_trace_whose_file_is_gone_is_not_listed(tmp_path):
    lines = (
        '{"rank":3,"asked":2,"step":12,"took_ns":5,"cost_ns":7,"kept":'
        '[{"step":12,"took_ns":5,"file":"there.json.gz","is":"typical"}]}\n'
        '{"rank":3,"asked":2,"step":19,"took_ns":9,"cost_ns":8,"kept":'
        '[{"step":12,"took_ns":5,"file":"there.json.gz","is":"typical"},'
        '{"step":19,"took_ns":9,"file":"gone.json.gz","is":"worst"},'
        '{"step":20,"took_ns":9,"file":"../outside.json.gz","is":"worst"}]}\n'
        '{"rank":3,"asked":2,"why":"no room"}\nnot JSON\n{"step":9223372036854775807}\n'
        '{"rank":3,"asked":2,"step":-5}\n{"step":"twelve"}\n'
    )
    (tmp_path / "kineto-77.jsonl").write_text(lines)
    (tmp_path / "there.json.gz").write_bytes(b"1234")
    (found,) = read_step_traces(tmp_path)
    assert (found.pid, found.rank, found.asked, found.cost_ns) == (77, 3, 2, 15)
    assert found.recorded == ((12, 5), (19, 9)) and found.notes == ("no room",)
    assert [each.file for each in found.kept] == ["there.json.gz", "gone.json.gz"]
    run = replace(make_run(), step_traces=(found,))
    assert [each.file for each in gather(run).step_traces.traces] == ["there.json.gz"]
