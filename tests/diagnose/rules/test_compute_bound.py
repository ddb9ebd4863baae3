"""Compute bound is a remark about a healthy step, and names its largest phase."""

from dataclasses import replace
from typing import Any

import pytest

from factories import make_run, map_steps, with_settings
from traceml.diagnose.rules import compute_bound
from traceml.facts.gather import gather
from traceml.facts.layer_means import LayerFacts
from traceml.facts.layers import LayerProfile
from traceml.model.finding import Severity
from traceml.model.phase import Phase
from traceml.model.record_layout import NOT_MEASURED
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "largest"),
    [
        pytest.param(make_run(), Phase.BACKWARD, id="a plain step"),
        pytest.param(make_run(forward_ms=30), Phase.FORWARD, id="forward is the largest"),
        pytest.param(make_run(optimizer_ms=60), Phase.OPTIMIZER, id="the optimizer is"),
        pytest.param(make_run(optimizer_ms=None), Phase.BACKWARD, id="measured parts suffice"),
        pytest.param(make_run(rest_ms=7.5), Phase.BACKWARD, id="just above the line"),
        pytest.param(make_run(gpu=True), Phase.BACKWARD, id="on the GPU's clock"),
    ],
)
def test_must_fire(run: RunRecords, largest: Phase) -> None:
    finding = compute_bound.check(gather(run))
    assert finding is not None
    assert finding.phase is largest
    assert finding.severity is Severity.INFO
    assert largest.value in finding.claim


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(rest_ms=8), id="just below the line"),
        pytest.param(make_run(input_ms=50), id="input dominates"),
        pytest.param(make_run(backward_ms=None, rest_ms=21), id="the large part is not measured"),
        pytest.param(
            make_run(forward_ms=None, backward_ms=None, optimizer_ms=None), id="nothing measured"
        ),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert compute_bound.check(gather(run)) is None


def test_the_advice_follows_from_device_and_phase() -> None:
    def advice(run: RunRecords) -> str:
        finding = compute_bound.check(gather(run))
        assert finding is not None
        return finding.action

    assert "a larger batch fits" in advice(make_run(gpu=True))
    assert "8.6%" in advice(make_run(gpu=True))
    assert "CPU" in advice(make_run())
    assert "fused" in advice(make_run(optimizer_ms=60))


def using(run: RunRecords, cores: float, runqueue: float = 0.0) -> RunRecords:
    """The run whose training process kept so many cores busy."""
    samples = tuple(
        replace(
            sample,
            processes=tuple(
                replace(process, cpu_cores=cores, runqueue_share=runqueue)
                for process in sample.processes
            ),
        )
        for sample in run.samples
    )
    return replace(run, samples=samples)


def stolen(run: RunRecords, steal: float) -> RunRecords:
    """The run on a machine of which the hypervisor gave so much to others."""
    samples = tuple(
        replace(sample, host=replace(sample.host, cpu_steal_share=steal)) for sample in run.samples
    )
    return replace(run, samples=samples)


def test_a_forward_pass_that_sleeps_is_not_called_arithmetic() -> None:
    finding = compute_bound.check(gather(using(make_run(forward_ms=200), 0.02)))
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert "waits there rather than computes" in finding.claim and "0.02 cores" in finding.claim
    assert "inside forward" in finding.action
    assert "CPU" not in finding.action and "GPU" not in finding.action


def test_a_phase_that_sleeps_for_a_part_of_its_time_is_not_called_arithmetic() -> None:
    finding = compute_bound.check(gather(using(make_run(forward_ms=200), 0.5)))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "At least 49% of the step is waiting: the process kept 0.50 cores busy" in finding.claim
    assert finding.evidence["waiting_share"] == pytest.approx(0.49, abs=0.01)
    assert finding.action.startswith("Part of that is waiting: look first for sleeps, locks")
    assert "inside forward; for the arithmetic itself, try a GPU" in finding.action
    assert "is the limit" not in finding.action


def test_two_samples_within_the_steps_say_that_it_waits_and_do_not_warn() -> None:
    run = using(make_run(forward_ms=200), 0.02)
    finding = compute_bound.check(gather(replace(run, samples=run.samples[:2])))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "waits there rather than computes: the process kept 0.02 cores busy" in finding.claim
    assert finding.action.startswith("Nothing computes there")


def test_cores_that_are_idle_after_the_steps_say_nothing_of_them() -> None:
    run = using(make_run(), 0.02)
    later = tuple(replace(sample, unix_s=sample.unix_s + 600) for sample in run.samples)
    finding = compute_bound.check(gather(replace(run, samples=later)))
    assert finding is not None
    assert "waits" not in finding.claim and finding.evidence["busy_cores"] is None


def test_the_layer_that_waits_longest_is_named() -> None:
    facts = gather(using(make_run(forward_ms=200), 0.02))
    layers = tuple(
        LayerFacts(name, "Linear", 1, {"forward": forward_s}, None, None, {})
        for name, forward_s in (("first", 0.01), ("asleep", 0.18))
    )
    finding = compute_bound.check(replace(facts, layers=LayerProfile("cpu", 4, layers=layers)))
    assert finding is not None
    assert "inside forward (its longest layer is asleep, 180.0 ms)" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(using(make_run(), 0.7), id="nearly all of it computes"),
        pytest.param(using(make_run(), 0.02, runqueue=0.5), id="it had no core to run on"),
        pytest.param(using(make_run(), 0.6, runqueue=0.09), id="a part of it had none"),
        pytest.param(stolen(using(make_run(), 0.5), 0.2), id="other machines had its core"),
        pytest.param(using(make_run(gpu=True), 0.02), id="a GPU computes"),
        pytest.param(using(make_run(ranks=2), 0.02), id="it may wait for another rank"),
        pytest.param(replace(make_run(), samples=()), id="not sampled"),
    ],
)
def test_no_waiting_is_claimed_where_something_else_explains_it(run: RunRecords) -> None:
    finding = compute_bound.check(gather(run))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "waits" not in finding.claim


def test_idle_cores_are_named_where_torch_may_not_use_them() -> None:
    facts = gather(with_settings(make_run(), cpu_threads=1))
    many = replace(facts, host=replace(facts.host, cores=16.0))
    finding = compute_bound.check(many)
    assert finding is not None and "torch.set_num_threads(16) instead of 1" in finding.action


def test_no_more_threads_are_advised_where_the_one_there_is_waits_for_a_core() -> None:
    facts = gather(with_settings(using(make_run(), 0.4, runqueue=0.6), cpu_threads=1))
    finding = compute_bound.check(replace(facts, host=replace(facts.host, cores=16.0)))
    assert finding is not None and "set_num_threads" not in finding.action


def test_arithmetic_is_not_called_the_limit_of_what_waits_for_a_core() -> None:
    finding = compute_bound.check(gather(using(make_run(), 0.4, runqueue=0.6)))
    assert finding is not None and finding.action.startswith(
        "Part of that is waiting for a CPU core: see first that the process gets the cores"
    )
    assert "is the limit" not in finding.action


def test_a_short_step_on_a_cpu_is_not_said_to_need_a_gpu() -> None:
    def advice(run: RunRecords) -> str:
        finding = compute_bound.check(gather(run))
        assert finding is not None
        return finding.action

    short = make_run(forward_ms=0.8, backward_ms=1.2, optimizer_ms=0.5, rest_ms=0.1, input_ms=0.0)
    assert "In 2.5 ms, launching many small operations" in advice(short)
    assert "try a larger batch or torch.compile" in advice(short)
    assert "A GPU would hardly be faster at this size" in advice(short)
    longer = make_run(forward_ms=0.8, backward_ms=1.8, optimizer_ms=0.5, rest_ms=0.1, input_ms=0.0)
    for run in (longer, make_run()):
        assert "The CPU's arithmetic is the limit: try a GPU" in advice(run)


def test_with_everything_on_the_advice_is_to_look_closer() -> None:
    run = with_settings(make_run(gpu=True), autocast_dtype="bfloat16", compile_mode="max-autotune")
    finding = compute_bound.check(gather(run))
    assert finding is not None and "torch.profiler" in finding.action


def test_replays_of_cuda_graphs_are_compute_as_a_whole() -> None:
    def capture(steps: Any, rank: int) -> None:
        phases = ("forward_ns", "backward_ns", "optimizer_ns")
        steps["graph_ns"] = sum(steps[name] for name in phases)
        for name in phases:
            steps[name] = NOT_MEASURED

    finding = compute_bound.check(gather(map_steps(make_run(), capture)))
    assert finding is not None
    assert finding.phase is None
    assert "the replay of CUDA graphs" in finding.claim
    assert finding.evidence["largest_phase"] == "cuda_graph"
