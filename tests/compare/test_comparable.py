"""What differs about the runs is said, and only what is comparable is compared."""

from __future__ import annotations

from compared_runs import run
from traceml.compare.pair import compare, compare_groups
from traceml.compare.terms import Terms
from traceml.summaries.record import Summary

NAMES = ("a", "b")
GPU = {
    "step_time_ms": 50.0,
    "step_time_cpu_ms": 40.0,
    "traced_step_time_cpu_ms": 39.0,
    "forward_ms": 30.0,
    "compute_ms": 45.0,
    "wall_step_ms": 51.0,
}
CPU = {**GPU, "step_time_ms": 80.0, "step_time_cpu_ms": 80.0}


def by_clock(clock: str, average: dict[str, float]) -> Summary:
    return run(dict(average), step_time={"global": {"window": {"diagnosis_clock": clock}}})


def test_runs_of_different_clocks_are_compared_by_the_one_they_share() -> None:
    comparison = compare(by_clock("gpu", GPU), by_clock("cpu", CPU), NAMES)
    metrics = comparison.sections["step_time"].metrics
    assert (metrics["step_time_ms"].lhs, metrics["step_time_ms"].rhs) == (40.0, 80.0)
    assert "forward_ms" not in metrics and comparison.waterfall_ms is None
    assert metrics["wall_step_ms"].delta == 0
    assert comparison.verdict.status == "REGRESSION"
    assert comparison.warnings[0].startswith("Clock of the step times differs: gpu -> cpu; phases")
    assert "by the host's clock" in comparison.warnings[0]


def test_without_a_shared_clock_whole_steps_are_compared() -> None:
    a, b = ({"step_time_ms": ms, "forward_ms": 1.0} for ms in (50.0, 80.0))
    comparison = compare(by_clock("gpu", a), by_clock("cpu", b), NAMES)
    assert list(comparison.sections["step_time"].metrics) == ["step_time_ms"]
    assert "over many steps the clocks agree" in comparison.warnings[0]


def test_one_clock_is_no_remark() -> None:
    comparison = compare(by_clock("gpu", GPU), by_clock("gpu", GPU), NAMES)
    assert comparison.warnings == ()
    assert "forward_ms" in comparison.sections["step_time"].metrics


def batches(samples: float, step_ms: float) -> Summary:
    steps_per_s = 1e3 / step_ms
    return run(
        {
            "step_time_ms": step_ms,
            "steps_per_s": steps_per_s,
            "samples_per_s": samples * steps_per_s,
        }
    )


def test_another_batch_size_is_judged_by_the_time_per_sample() -> None:
    comparison = compare(batches(32, 10.0), batches(64, 15.0), NAMES)
    assert (comparison.verdict.status, comparison.verdict.metric) == ("IMPROVEMENT", "sample_time")
    assert comparison.verdict.why == "Time per sample fell by 0.08 ms (-25.0%)."
    assert comparison.warnings == (
        "Samples per step differ: 32 -> 64; the time per sample is judged.",
    )


def test_a_smaller_last_batch_is_no_other_batch_size() -> None:
    comparison = compare(batches(32, 10.0), batches(31.8, 15.0), NAMES)
    assert (comparison.verdict.status, comparison.verdict.metric) == ("REGRESSION", "step_time")


def test_the_metric_asked_for_is_judged_whatever_the_batch() -> None:
    comparison = compare(batches(32, 10.0), batches(64, 15.0), NAMES, Terms(metric="step_time"))
    assert (comparison.verdict.status, comparison.verdict.metric) == ("REGRESSION", "step_time")
    assert comparison.warnings == ("Samples per step differ: 32 -> 64.",)


def test_a_run_that_failed_is_said() -> None:
    comparison = compare(run({"step_time_ms": 1}), run({"step_time_ms": 1}, exit_status=1), NAMES)
    assert comparison.warnings == ("Not every run of B ended well; see its own summary.",)


def test_a_run_that_hides_its_clock_hides_no_difference_of_the_others() -> None:
    unknown = run(dict(CPU))
    comparison = compare_groups(
        [by_clock("gpu", GPU), unknown], [by_clock("cpu", CPU), by_clock("cpu", CPU)], NAMES
    )
    assert "gpu -> cpu" in comparison.warnings[0]
    assert "forward_ms" not in comparison.sections["step_time"].metrics


def test_one_known_clock_is_no_difference() -> None:
    comparison = compare(by_clock("gpu", GPU), run(dict(GPU)), NAMES)
    assert "forward_ms" in comparison.sections["step_time"].metrics


def test_a_tool_that_saw_no_node_says_nothing_about_nodes() -> None:
    none = run({"step_time_ms": 1.0}, meta={"nodes_observed": 0})
    one = run({"step_time_ms": 1.0}, meta={"nodes_observed": 1})
    assert not any("nodes" in said for said in compare(one, none, ("a", "b")).warnings)
    two = run({"step_time_ms": 1.0}, meta={"nodes_observed": 2})
    assert "Number of nodes differs: 1 -> 2." in compare(one, two, ("a", "b")).warnings
