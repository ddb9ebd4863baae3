"""One definition per number: whatever a run measured, every surface shows the same means.

The parts of a step sum to the step, and none of them is negative: in the summary's file, the
printed tree, the live window, the browser's history and its drawing, and in a comparison.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drawn_runs import step_history
from factories import make_run
from partial_runs import PLANS, Plan, copies_in, partial_run
from traceml.compare.pair import compare
from traceml.diagnose.live_findings import LiveDiagnosis, update
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.history import StepHistory
from traceml.facts.recent_window import gather_recent
from traceml.figures.charts_over_steps import stacked_phases
from traceml.figures.comparison_figures import before_and_after
from traceml.figures.page import Bars
from traceml.figures.step_shares import phase_tree as drawn_tree
from traceml.model.phase import PHASE_METRICS, Phase
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.live_state import live_state
from traceml.summaries.record import Summary
from traceml.summaries.step_parts import step_parts
from traceml.text.phases import phase_tree, step_tree
from traceml.text.summary import summary_text

KEYS = {phase.value: key for phase, key in PHASE_METRICS.items()}
MS = {"µs": 1e-3, "ms": 1.0, "s": 1e3}


def average(summary: Summary) -> dict[str, Any]:
    assert summary.step_time is not None
    return dict(summary.step_time.global_.average)


def clock(summary: Summary) -> str | None:
    assert summary.step_time is not None
    return summary.step_time.global_.window.diagnosis_clock


def shown_parts(run: RunRecords) -> dict[str, float]:
    """The parts that the summary's readers are shown."""
    return step_parts(average(build(run, 0.0, "0")))


def live_average(run: RunRecords) -> dict[str, Any]:
    recent = gather_recent(run)
    return average(live_state(update(LiveDiagnosis(), recent), recent, run, 0.0, "0").summary)


def history_of(run: RunRecords, bucket_steps: int | None = None) -> StepHistory:
    found = step_history(run, bucket_steps or len(run.ranks[0].steps))
    assert found is not None
    return found


def counts_alike(facts: Facts) -> bool:
    """Whether every timed step counts the same: a bucket does not know of the others, and shows
    those that were timed in it."""
    return facts.step_table is not None and facts.step_table.weights is None


# The defects that were found


def test_copies_in_some_of_the_steps_are_a_part_of_the_mean_step() -> None:
    run = copies_in(0.6)
    summary = build(run, 0.0, "0")
    times = average(summary)
    assert times["step_time_ms"] == pytest.approx(43.0)
    assert times["h2d_ms"] == pytest.approx(6.0)
    assert times["residual_ms"] == pytest.approx(1.0)
    assert summary.primary_diagnosis.kind == "H2D_BOUND"
    assert "6.0 ms of 43.0 ms" in str(summary.primary_diagnosis.summary)
    assert "If fixed 43.0 ms → 37.0 ms" in summary_text(summary)
    found = history_of(run)
    assert found.phase_s[Phase.H2D] == pytest.approx(0.006)
    assert found.phase_s[Phase.RESIDUAL] == pytest.approx(0.001)


def test_the_printed_tree_has_no_more_than_the_step() -> None:
    lines = phase_tree(average(build(copies_in(0.6), 0.0, "0")))
    shares = {line[2:37].strip(" ├└─│"): int(found.group(1)) for line in lines
              if (found := re.search(r"(\d+)%", line))}  # fmt: skip
    outer = ("input wait", "copies to device", "compute", "rest")
    assert 98 <= sum(shares[name] for name in outer) <= 102
    assert shares["copies to device"] == 14


def test_there_is_one_residual() -> None:
    facts = gather(make_run(communication_ms=12.0, rest_ms=3.0, noise=0.0))
    assert facts.step_table is not None
    assert facts.mean_s(Phase.RESIDUAL) == pytest.approx(0.003)
    assert facts.step_table.phase(Phase.RESIDUAL).mean() == pytest.approx(0.003)


def test_the_files_residual_has_the_communication_that_the_shared_schema_counts_to_it() -> None:
    summary = build(make_run(communication_ms=12.0, rest_ms=3.0, noise=0.0), 0.0, "0")
    assert average(summary)["residual_ms"] == pytest.approx(15.0)
    assert summary.steps is not None
    assert np.mean(summary.steps.part_block_means_ms["residual"]) == pytest.approx(15.0)
    assert step_parts(average(summary))["residual"] == pytest.approx(3.0)


def test_a_phase_that_one_rank_never_measured_lies_in_its_residual() -> None:
    everything = {"input": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0,
                  "communication": None, "graph": None}  # fmt: skip
    shares = [{**everything, "h2d": 1.0}, {**everything, "h2d": None}]
    run = partial_run(Plan(steps=40, shares=shares, gpu_every=None, seed=1))
    facts = gather(run)
    first, second = (rank.times for rank in facts.ranks)
    assert second.h2d_s is None
    assert facts.mean.h2d_s == pytest.approx((first.h2d_s or 0.0) / 2)


# Any run at all


@settings(deadline=None, max_examples=60)
@given(plan=PLANS)
def test_the_parts_sum_to_the_step_and_none_is_negative(plan: Plan) -> None:
    run = partial_run(plan)
    summary = build(run, 0.0, "0")
    assert summary.step_time is not None
    rows = [row.metrics for row in summary.step_time.groups.rows.values()]
    for metrics in (average(summary), *rows):
        parts = step_parts(metrics)
        assert sum(parts.values()) == pytest.approx(metrics["step_time_ms"], rel=1e-5)
        assert min(parts.values()) >= 0
        residual_ms = metrics["residual_ms"]
        assert residual_ms is None or residual_ms >= -1e-6
    facts = gather(run)
    assert facts.series is not None and facts.mean.step_s is not None
    blocks = facts.series.part_block_means_s
    assert min(min(values) for values in blocks.values()) >= 0


@settings(deadline=None, max_examples=60)
@given(plan=PLANS)
def test_the_rest_is_what_was_planned(plan: Plan) -> None:
    """No more than three milliseconds and the phases that a rank never measured."""
    run = partial_run(plan)
    facts = gather(run)
    scale = 1.3 if facts.clock == "gpu" else 1.0
    for rank in facts.ranks:
        assert rank.times.residual_s == pytest.approx(0.003 * scale, rel=1e-4)
    assert facts.step_table is not None
    rest_s = facts.step_table.phase(Phase.RESIDUAL)
    assert rest_s[np.isfinite(rest_s)] == pytest.approx(0.003 * scale, rel=1e-4)


@settings(deadline=None, max_examples=60)
@given(plan=PLANS)
def test_the_printed_and_the_drawn_tree_are_the_summary(plan: Plan) -> None:
    summary = build(partial_run(plan), 0.0, "0")
    assert summary.step_time is not None
    step = step_tree(average(summary))
    drawn = drawn_tree(summary.step_time, average(summary), "")
    assert drawn is not None
    if step.parts:
        assert sum(part.ms for part in step.parts) == pytest.approx(step.ms, rel=1e-5)
    for branch in step.parts:
        if branch.phase in KEYS:
            assert branch.ms == pytest.approx(average(summary)[KEYS[branch.phase]], rel=1e-5)
        if branch.phase == "compute" and branch.parts:
            assert sum(part.ms for part in branch.parts) == pytest.approx(branch.ms, rel=1e-2)


@settings(deadline=None, max_examples=40)
@given(plan=PLANS)
def test_the_live_window_shows_what_the_summary_does(plan: Plan) -> None:
    run = partial_run(plan)
    expected, found = average(build(run, 0.0, "0")), live_average(run)
    for key in ("step_time_ms", "compute_ms", "residual_ms", "wait_ms", *KEYS.values()):
        assert found[key] == expected[key], key


@settings(deadline=None, max_examples=60)
@given(plan=PLANS)
def test_the_browsers_history_shows_what_the_summary_does(plan: Plan) -> None:
    run = partial_run(plan)
    facts, history = gather(run), history_of(run)
    assume(counts_alike(facts))
    for row, rank in enumerate(facts.ranks):
        for phase in Phase:
            expected = rank.times.phase(phase)
            found = history.phase_s.get(phase)
            found_s = float("nan") if found is None else found[row, 0]
            assert found_s == pytest.approx(float("nan") if expected is None else expected,
                                            nan_ok=True), phase  # fmt: skip
    drawn = stacked_phases(history, None)
    assert drawn is not None
    ms = {series.colour: series.values[0] * MS[drawn.y.unit] for series in drawn.series}
    shown = shown_parts(run)
    for name, part_ms in shown.items():
        if name in {phase.value for phase in Phase} or part_ms:
            assert ms.get(name, 0.0) == pytest.approx(part_ms, rel=0.01, abs=0.01), name


@settings(deadline=None, max_examples=40)
@given(plan=PLANS, bucket_steps=st.integers(1, 16))
def test_buckets_of_any_length_add_up_to_the_summary(plan: Plan, bucket_steps: int) -> None:
    run = partial_run(plan)
    facts, history = gather(run), history_of(run, bucket_steps)
    assert facts.step_table is not None
    assume(counts_alike(facts))
    timed = np.isfinite(facts.step_table.body())
    edges = history.first_steps - 1
    for row, rank in enumerate(facts.ranks):
        steps = np.add.reduceat(timed[row].astype(float), edges)
        stacked = sum(np.nan_to_num(table[row]) for table in history.phase_s.values())
        if history.graph_s is not None:
            stacked = stacked + np.nan_to_num(history.graph_s[row])
        assert rank.times.step_s == pytest.approx(float((stacked * steps).sum() / steps.sum()))
        for phase, table in history.phase_s.items():
            mean_s = rank.times.phase(phase)
            if mean_s is not None:
                total_s = float((np.nan_to_num(table[row]) * steps).sum())
                assert total_s / steps.sum() == pytest.approx(mean_s), phase


@settings(deadline=None, max_examples=40)
@given(first=PLANS, second=PLANS)
def test_a_comparison_shows_what_both_summaries_do(first: Plan, second: Plan) -> None:
    a, b = (build(partial_run(plan), 0.0, "0") for plan in (first, second))
    compared = compare(a, b, ("a", "b"))
    metrics = compared.sections["step_time"].metrics
    step = metrics["step_time_ms"]
    assert step.lhs is not None and step.rhs is not None
    for key in KEYS.values():
        if key in metrics and clock(a) == clock(b):
            assert (metrics[key].lhs, metrics[key].rhs) == (average(a)[key], average(b)[key])
    if compared.waterfall_ms is not None:
        assert sum(compared.waterfall_ms.values()) == pytest.approx(step.delta, abs=1e-6)
    bars = before_and_after(compared)
    assert isinstance(bars, Bars)
    for side, value in enumerate((step.lhs, step.rhs)):
        stacked = sum(each.values[side] or 0.0 for each in bars.series) * MS[bars.x.unit]
        assert stacked == pytest.approx(value, rel=0.01)
