"""Two runs side by side: deltas, verdict, why, and what differs about the runs."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import Comparison, to_json
from traceml.compare.terms import EarlierSpread, Terms
from traceml.compare.verdict_words import parts_words
from traceml.model.quantities import milliseconds
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary

DATA = Path(__file__).parents[1] / "data"
SEED = DATA / "seed" / "compare_slow.json", DATA / "seed" / "compare_fast.json"
PEER = DATA / "peer" / "slow_input_cpu.json", DATA / "peer" / "fast_input_cpu.json"
NAMES = ("a", "b")


def files_compared(paths: tuple[Path, Path]) -> Comparison:
    return compare(read_summary(paths[0]), read_summary(paths[1]), (paths[0].stem, paths[1].stem))


def steps(stdev_ms: float) -> dict[str, Any]:
    return {"count": 400, "stdev_ms": stdev_ms, "effective_count": 100.0}


def steady(step_ms: float, peak_bytes: float | None = None, **fields: Any) -> Summary:
    """A run whose own steps hardly spread."""
    return run({"step_time_ms": step_ms}, peak_bytes, steps=steps(step_ms / 100), **fields)


def test_the_seeds_example_has_the_seeds_numbers() -> None:
    comparison = files_compared(SEED)
    assert comparison.verdict.status == "IMPROVEMENT"
    primary = comparison.overview.primary_diagnosis
    assert (primary.lhs, primary.rhs, primary.changed) == ("INPUT-BOUND", "COMPUTE-BOUND", True)
    step_time = comparison.sections["step_time"].metrics
    assert f"{step_time['step_time_ms'].delta:.1f}" == "-520.8"
    assert f"{step_time['step_time_ms'].pct_change:.1f}" == "-92.5"
    assert f"{step_time['input_wait_ms'].delta:.1f}" == "-529.3"
    assert f"{step_time['compute_ms'].delta:+.1f}" == "+7.9"
    assert f"{comparison.sections['system'].metrics['gpu_util_percent'].delta:+.1f}" == "+42.9"
    assert comparison.sections["step_memory"].diagnosis.changed is False
    assert comparison.verdict.why == (
        "Step time fell by 520.8 ms (-92.5%): input -529.3 ms, compute +7.9 ms, rest +0.6 ms."
    )
    assert comparison.verdict.allowance_pct == 25, "means alone: nothing shows their spread"


def test_both_peer_files_are_an_improvement_by_input() -> None:
    comparison = files_compared(PEER)
    assert comparison.verdict.status == "IMPROVEMENT"
    assert comparison.verdict.allowance_pct == 25
    assert "input -37.1 ms" in comparison.verdict.why
    assert comparison.sections["step_memory"].metrics["peak_reserved_bytes"].delta is None
    assert comparison.warnings == ()


@pytest.mark.parametrize("path", [*SEED, *PEER], ids=lambda path: str(path.stem))
def test_a_run_compared_with_itself_shows_no_change(path: Path) -> None:
    comparison = files_compared((path, path))
    assert comparison.verdict.status == "NO CHANGE"
    assert comparison.overview.primary_diagnosis.changed is False
    for section in comparison.sections.values():
        assert all(metric.delta in (0, None) for metric in section.metrics.values())


@pytest.mark.parametrize("paths", [SEED, PEER], ids=["seed", "peer"])
def test_swapping_the_runs_mirrors_every_delta(paths: tuple[Path, Path]) -> None:
    there, back = files_compared(paths), files_compared((paths[1], paths[0]))
    assert (there.verdict.status, back.verdict.status) == ("IMPROVEMENT", "REGRESSION")
    for name, section in there.sections.items():
        assert section.metrics.keys() == back.sections[name].metrics.keys()
        for metric, change in section.metrics.items():
            mirrored = back.sections[name].metrics[metric]
            assert (change.lhs, change.rhs) == (mirrored.rhs, mirrored.lhs)
            assert change.delta == (None if mirrored.delta is None else -mirrored.delta)


@pytest.mark.parametrize(
    ("a", "b", "status"),
    [
        pytest.param(steady(100), steady(104), "REGRESSION", id="slower than noise explains"),
        pytest.param(steady(100), steady(96), "IMPROVEMENT", id="faster than noise explains"),
        pytest.param(steady(100), steady(103), "INCONCLUSIVE", id="on the line of the allowance"),
        pytest.param(steady(103), steady(100), "INCONCLUSIVE", id="on the line the other way"),
        pytest.param(steady(100), steady(100.5), "INCONCLUSIVE",
                     id="small, but the next run may not be"),
        pytest.param(steady(100), steady(100), "NO CHANGE", id="the same measurements"),
        pytest.param(run({"step_time_ms": 100}), run({"step_time_ms": 120}), "INCONCLUSIVE",
                     id="our own means without a distribution get the larger allowance"),
        pytest.param(steady(100), run({"step_time_ms": 120}, producer={}), "INCONCLUSIVE",
                     id="a foreign file gets the larger allowance"),
        pytest.param(run({"step_time_ms": 100}), run({"step_time_ms": 126}), "REGRESSION",
                     id="means alone, beyond it"),
        pytest.param(steady(100, 1e9), steady(80, 2e9), "MIXED", id="faster for more memory"),
        pytest.param(steady(80, 2e9), steady(100, 1e9), "MIXED", id="slower for less memory"),
        pytest.param(steady(100, 1e9), steady(80, 1.04e9), "IMPROVEMENT",
                     id="memory moved too little to matter"),
        pytest.param(steady(100, 1e6), steady(80, 3e6), "IMPROVEMENT",
                     id="a few megabytes do not matter"),
        pytest.param(steady(100, 1e9), steady(101, 2e9), "REGRESSION",
                     id="memory decides where step time does not"),
        pytest.param(steady(100, 2e9), steady(102, 1e9), "INCONCLUSIVE",
                     id="less memory does not make up for steps that may be slower"),
        pytest.param(run({"step_time_ms": 100}), run({"step_time_ms": None}), "INCONCLUSIVE",
                     id="step time not measured in B"),
        pytest.param(run(), run(peak_bytes=1.0), "INCONCLUSIVE", id="no step time at all"),
        pytest.param(run({"step_time_ms": 0}), run({"step_time_ms": 5}), "INCONCLUSIVE",
                     id="a step of no length has no ratio"),
    ],
)  # fmt: skip
def test_the_verdict(a: Summary, b: Summary, status: str) -> None:
    verdict = compare(a, b, NAMES).verdict
    assert verdict.status == status
    assert verdict.why.endswith(".") and "\n" not in verdict.why
    assert verdict.next


@pytest.mark.parametrize(("tolerance", "status"), [(0.03, "INCONCLUSIVE"), (0.04, "NO CHANGE")])
def test_no_change_from_one_run_each_has_room_for_the_next_run(
    tolerance: float, status: str
) -> None:
    """At ±3 % from run to run, nothing smaller than that can be shown to be none."""
    verdict = compare(steady(100), steady(100.2), NAMES, Terms(tolerance=tolerance)).verdict
    assert (verdict.status, verdict.allowance_pct) == (status, 3)


@pytest.mark.parametrize(
    ("metric", "average"),
    [
        pytest.param("wall_step_time", {"wall_step_ms": 100.0}, id="time between steps counts"),
        pytest.param("throughput", {"samples_per_s": 100.0}, id="so it does in a rate"),
        pytest.param("input", {"input_wait_ms": 100.0}, id="a phase is not the step"),
        pytest.param("step_time_p95", {"step_time_p95_ms": 100.0}, id="a percentile is no mean"),
    ],
)
def test_what_the_steps_do_not_show_is_judged_as_a_mean_alone(
    metric: str, average: dict[str, float | None]
) -> None:
    """Neither their spread nor the step times of earlier runs say how far it may be off."""
    a = run({"step_time_ms": 100.0, **average}, steps=steps(1))
    slower = {name: (value or 0) * 1.1 for name, value in average.items()}
    b = run({"step_time_ms": 100.0, **slower}, steps=steps(1))
    terms = Terms(metric=metric, history=EarlierSpread(0.001, 9))
    verdict = compare(a, b, NAMES, terms).verdict
    assert (verdict.status, verdict.ratio_interval) == ("INCONCLUSIVE", None)
    assert (verdict.allowance_pct, verdict.allowance_from) == (25, "default")


@pytest.mark.parametrize("worse", [0.975, 0.9705], ids=["within 3%", "between 2.91% and 3%"])
def test_what_is_allowed_of_a_rate_is_one_bound(worse: float) -> None:
    """What counts as no change may not be a regression in another run of the same size."""
    a = [run({"samples_per_s": 100.0 + n / 1000}) for n in range(3)]
    b = [run({"samples_per_s": 100.0 * worse + n / 1000}) for n in range(3)]
    terms = Terms(metric="throughput", max_regression=0.03)
    status = compare_groups(a, b, NAMES, terms).verdict.status
    assert status == ("NO CHANGE" if worse > 1 / 1.03 else "REGRESSION")


@pytest.mark.parametrize(
    ("compute_ms", "is_move"), [((40, 80), True), ((160, 198), False)], ids=["beyond", "within"]
)
def test_work_was_moved_where_both_phases_changed_beyond_the_allowance(
    compute_ms: tuple[float, float], is_move: bool
) -> None:
    a, b = (
        run({"step_time_ms": wait + compute, "input_wait_ms": wait, "compute_ms": compute})
        for wait, compute in zip((50.0, 10.0), compute_ms, strict=True)
    )
    moved = compare(a, b, NAMES).moved
    assert moved is not None and moved.moved is is_move


def test_what_more_runs_have_to_overcome_is_the_steps_spread_too() -> None:
    terms = Terms(history=EarlierSpread(0.01, 9))
    quiet = compare(steady(100), steady(102), NAMES, terms).verdict.further_runs
    wild = [run({"step_time_ms": ms}, steps=steps(20)) for ms in (100, 102)]
    further = compare(wild[0], wild[1], NAMES, terms).verdict.further_runs
    assert quiet is not None and further is not None and further > quiet


def test_no_number_of_runs_is_said_where_nothing_shows_how_they_spread() -> None:
    verdict = compare(steady(100), steady(102), NAMES).verdict
    assert (verdict.further_runs, verdict.further_runs_range) == (None, None)
    assert "three or more per side show how much runs differ" in verdict.next


def test_a_side_that_failed_before_it_was_measured_is_to_be_mended_first() -> None:
    failure = {"kind": "EXCEPTION", "summary": "The script failed: NameError: x."}
    failed = run({"step_time_ms": None}, failure=failure)
    good = run({"step_time_ms": 9})
    there, back = compare(good, failed, NAMES).verdict, compare(failed, good, NAMES).verdict
    assert there.next == "Fix B first, then compare again. The script failed: NameError: x."
    assert back.next.startswith("Fix A first")


def test_an_unmeasured_side_is_named() -> None:
    verdict = compare(run({"step_time_ms": 9}), run({"step_time_ms": None}), NAMES).verdict
    assert "not measured in B" in verdict.why


def test_memory_is_that_of_the_worst_rank() -> None:
    comparison = compare(run(peak_bytes=4e9), run(peak_bytes=5e9), NAMES)
    assert comparison.sections["step_memory"].metrics["peak_allocated_bytes"].lhs == 4e9


def test_missing_sections_are_left_out_and_missing_values_stay_missing() -> None:
    comparison = compare(run({"step_time_ms": 9, "h2d_ms": None}), run(), NAMES)
    assert list(comparison.sections) == ["step_time"]
    change = comparison.sections["step_time"].metrics["step_time_ms"]
    assert (change.lhs, change.rhs, change.delta, change.pct_change) == (9, None, None, None)
    assert comparison.overview.duration_s.delta is None
    assert comparison.overview.primary_diagnosis.changed is None
    assert comparison.waterfall_ms is None
    assert not comparison.has_common_metric


def test_what_differs_about_the_runs_is_said() -> None:
    a = run(schema_version=1.9, meta={"world_size": 1, "gpus_observed": 1})
    b = run(schema_version=1.4, meta={"world_size": 8, "gpus_observed": 8}, producer={})
    warnings = compare(a, b, NAMES).warnings
    assert [warning.split(" differs")[0] for warning in warnings[:3]] == [
        "World size",
        "Number of GPUs",
        "Schema version",
    ]
    assert "traceml-insight -> another tool" in warnings[3]


def test_a_diagnosis_is_compared_by_kind_and_shown_in_words() -> None:
    a = run(primary_diagnosis={"kind": "INPUT_BOUND", "status": "INPUT-BOUND"})
    b = run(primary_diagnosis={"kind": "INPUT_BOUND", "status": "input bound"})
    primary = compare(a, b, NAMES).overview.primary_diagnosis
    assert (primary.lhs, primary.rhs, primary.changed) == ("INPUT-BOUND", "input bound", False)


def test_an_old_summary_is_diagnosed_by_its_step_time() -> None:
    old = run(step_time={"diagnosis": {"kind": "INPUT_BOUND", "status": "INPUT-BOUND"}})
    assert compare(old, old, NAMES).overview.primary_diagnosis.lhs == "INPUT-BOUND"


def test_the_json_is_strict_and_has_the_contracts_keys() -> None:
    document = json.loads(to_json(files_compared(SEED)), parse_constant=pytest.fail)
    assert document["format"] == "A -> B | delta = B - A"
    assert (document["a"], document["b"]) == ("compare_slow", "compare_fast")
    assert document["verdict"]["status"] == "IMPROVEMENT"
    assert document["overview"]["primary_diagnosis"]["changed"] is True
    change = document["sections"]["step_time"]["metrics"]["input_wait_ms"]
    assert set(change) >= {"lhs", "rhs", "delta", "pct_change", "interval", "significant"}
    assert document["warnings"] == []


times_ms = st.none() | st.floats(0, 1e6, allow_nan=False)
phases = st.fixed_dictionaries(
    {
        "step_time_ms": st.floats(0.001, 1e6),
        **{
            f"{phase}_ms": times_ms
            for phase in (
                *("input_wait", "h2d", "forward", "backward", "optimizer"),
                *("compute", "communication", "residual"),
            )
        },
    }
)


@settings(max_examples=200, deadline=None)
@given(phases, phases)
def test_the_waterfall_sums_to_the_change_of_the_step_time(
    a: dict[str, float | None], b: dict[str, float | None]
) -> None:
    comparison = compare(run(a), run(b), NAMES)
    total = comparison.sections["step_time"].metrics["step_time_ms"].delta
    if comparison.waterfall_ms is not None:
        assert total is not None
        assert math.isclose(math.fsum(comparison.waterfall_ms.values()), total, abs_tol=1e-6)


MIRRORED = {"IMPROVEMENT": "REGRESSION", "REGRESSION": "IMPROVEMENT"}


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.01, 1e4),
    st.floats(-0.06, 0.06) | st.floats(-0.4, 0.4),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.booleans(),
)
def test_swapping_two_runs_mirrors_the_verdict(
    step_ms: float, change: float, spread: float, bare: bool
) -> None:
    a, b = (
        run({"step_time_ms": ms}, **({} if bare else {"steps": steps(spread * ms)}))
        for ms in (step_ms, step_ms * (1 + change))
    )
    there, back = compare(a, b, NAMES).verdict, compare(b, a, NAMES).verdict
    assert back.status == MIRRORED.get(there.status, there.status)
    assert back.further_runs == there.further_runs


@pytest.mark.parametrize(
    ("a", "b"), [(100.0, 97.05), (100.0, 102.95)], ids=["just beyond 3%", "just within"]
)
def test_the_allowance_is_the_same_both_ways(a: float, b: float) -> None:
    there, back = (compare(steady(x), steady(y), NAMES).verdict for x, y in ((a, b), (b, a)))
    assert back.status == MIRRORED.get(there.status, there.status)


@settings(max_examples=200, deadline=None)
@given(phases, phases)
def test_the_parts_sum_to_the_change_as_they_are_printed(
    a: dict[str, float | None], b: dict[str, float | None]
) -> None:
    comparison = compare(run(a), run(b), NAMES)
    total = comparison.sections["step_time"].metrics["step_time_ms"].delta
    said = parts_words(comparison.waterfall_ms, total or 0.0)
    if said:
        numbers = [Decimal(found.replace(",", "")) for found in re.findall(r"[+-][\d,.]+", said)]
        whole = Decimal(milliseconds(total).removesuffix(" ms").replace(",", ""))
        assert sum(numbers) == whole
        assert {number.as_tuple().exponent for number in numbers} == {whole.as_tuple().exponent}


@settings(max_examples=100, deadline=None)
@given(phases, phases, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_every_time_changes_no_verdict(
    a: dict[str, float | None], b: dict[str, float | None], factor: float
) -> None:
    scaled = [
        {name: None if ms is None else ms * factor for name, ms in side.items()} for side in (a, b)
    ]
    there = compare(run(a), run(b), NAMES).verdict.status
    assert compare(run(scaled[0]), run(scaled[1]), NAMES).verdict.status == there


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["step_time_ms", "compute_ms", "backward_ms", "x"]),
                       st.none() | st.floats(0, allow_infinity=False)),
       st.floats(0, allow_infinity=False))  # fmt: skip
def test_no_number_is_too_extreme_to_compare(
    average: dict[str, float | None], stdev_ms: float
) -> None:
    a = run(average, steps={"count": 9, "stdev_ms": stdev_ms, "effective_count": 1e-300})
    b = run({"step_time_ms": 5e-324, "compute_ms": 1e308, "backward_ms": 1e308}, steps=steps(1))
    for comparison in (compare(a, b, NAMES), compare(b, a, NAMES)):
        assert json.loads(to_json(comparison), parse_constant=pytest.fail)
