"""Host bound: a dry queue, and a host that is busy all the while."""

from dataclasses import replace

import pytest

from factories import (
    STARTED_UNIX_S,
    count_gpus,
    flag_steps,
    idle_gpu,
    make_run,
    make_samples,
    map_steps,
    spend,
)
from layer_runs import kernel_step, layer_records, with_layers
from traceml.diagnose.rules import host_bound
from traceml.diagnose.what_if import predict
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.record_layout import StepFlag
from traceml.model.settings import Settings
from traceml.store.records import RunRecords


def launching(
    dry: float = 1.0, busy: float | None = 0.8, run: RunRecords | None = None
) -> RunRecords:
    """A run whose queue is dry in this share of its steps."""
    made = make_run(gpu=True, noise=0) if run is None else run
    unread = replace(made, samples=make_samples(len(made.ranks), 3))
    counted = unread if busy is None else count_gpus(unread, busy_share=busy)
    return flag_steps(counted, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, dry)


def quick_host(run: RunRecords) -> RunRecords:
    """The host launches its work in half of the GPU's time."""

    def halve(steps, rank):
        steps["body_ns"] //= 2

    return map_steps(run, halve)


TINY = make_run(
    gpu=True, input_ms=0.1, forward_ms=0.5, backward_ms=0.8, optimizer_ms=0.3, rest_ms=0.1
)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(launching(), Severity.WARNING, id="always dry"),
        pytest.param(launching(dry=0.81), Severity.WARNING, id="just above the line"),
        pytest.param(launching(busy=0.3), Severity.CRITICAL, id="the GPU is mostly unused"),
        pytest.param(launching(busy=None), Severity.WARNING, id="utilisation unknown"),
        pytest.param(launching(busy=0.1, run=TINY), Severity.WARNING, id="a toy"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = host_bound.check(gather(run))
    assert finding is not None
    assert finding.kind is host_bound.KIND
    assert finding.severity is severity
    assert "torch.compile" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(launching(dry=0.79), id="dry now and then"),
        pytest.param(make_run(gpu=True), id="the queue was not watched"),
        pytest.param(quick_host(launching()), id="the host has time to spare"),
        pytest.param(
            launching(run=spend(make_run(gpu=True), "sync", 60)), id="the host waits for the GPU"
        ),
        pytest.param(
            launching(run=make_run(gpu=True, rest_ms=60)), id="the host does something else"
        ),
        pytest.param(make_run(), id="no GPU"),
        pytest.param(launching(busy=0.91), id="the GPU is busy all the same"),
        pytest.param(
            launching(busy=0.75, run=make_run(gpu=True, input_ms=8.0)),
            id="the GPU idles for want of input",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert host_bound.check(gather(run)) is None


@pytest.mark.parametrize("neighbour", [0.0, 0.9], ids=["idle", "busy"])
def test_a_gpu_that_may_be_somebody_elses_is_not_quoted(neighbour: float) -> None:
    run = launching(busy=0.3)
    beside = tuple(
        replace(s, gpus=(*s.gpus, *(replace(gpu, index=1, uuid="GPU-1") for gpu in s.gpus)))
        for s in run.samples
    )
    finding = host_bound.check(gather(replace(run, samples=beside)))
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert finding.evidence["gpu_utilisation"] is None
    assert finding.lost_s_per_step is None
    assert "in use" not in finding.claim


def compiled_gpt(every_s: float = 0.25, steps: int = 308) -> RunRecords:
    """Steps of 13 ms after 40 s of compilation: 36 s of it before the first step, 4 s inside.

    The GPU does nothing while it compiles, and is in use for 75 % of the time afterwards.
    """
    run = make_run(
        steps=steps,
        gpu=True,
        noise=0,
        input_ms=0.1,
        forward_ms=4.0,
        backward_ms=6.0,
        optimizer_ms=2.0,
        rest_ms=0.9,
        first_step_ms=4000.0,
    )
    unread = replace(run, samples=())
    idle = count_gpus(unread, from_s=-36.0, until_s=4.0, every_s=every_s, busy_share=0.0)
    counted = count_gpus(idle, from_s=4.0, every_s=every_s, busy_share=0.75)
    return flag_steps(counted, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


def test_compilation_does_not_count_as_an_idle_gpu() -> None:
    finding = host_bound.check(gather(compiled_gpt()))
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert "in use 75%" in finding.claim
    assert finding.evidence["gpu_samples"] == 15
    assert finding.lost_s_per_step == pytest.approx(0.25 * 0.013 - 0.0001, rel=1e-3)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(compiled_gpt(steps=60), id="less than a second of training"),
        pytest.param(compiled_gpt(every_s=2.0), id="two intervals in four seconds"),
    ],
)
def test_without_enough_samples_there_is_no_utilisation_and_no_prediction(run: RunRecords) -> None:
    facts = gather(run)
    finding = host_bound.check(facts)
    assert finding is not None
    assert finding.evidence["gpu_utilisation"] is None
    assert "in use" not in finding.claim
    assert finding.lost_s_per_step is None
    assert predict(facts, [finding]) == ()


def test_a_plain_reading_once_a_second_counts_over_the_second_before_it() -> None:
    """Runs that were recorded without counters, and GPUs that have none."""
    run = flag_steps(
        make_run(gpu=True, noise=0, sampled_s=8), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0
    )
    read = tuple(
        replace(s, gpus=tuple(replace(gpu, utilisation=0.4) for gpu in s.gpus))
        for s in run.samples
        if s.unix_s >= STARTED_UNIX_S + 1
    )
    finding = host_bound.check(gather(replace(run, samples=read)))
    assert finding is not None
    assert finding.evidence["gpu_utilisation"] == pytest.approx(0.4)
    assert finding.evidence["gpu_samples"] == 7


@pytest.mark.parametrize(
    ("busy", "step", "lost_ms"),
    [
        pytest.param(0.25, {}, 26.75, id="idle without the input wait"),
        pytest.param(0.25, {"h2d_ms": 3.0}, 26.0, id="nor the copies"),
        pytest.param(0.6, {"input_ms": 8.0}, 9.6, id="a long input wait"),
        pytest.param(0.01, {"rest_ms": 20.0}, 35.0, id="never more than compute holds"),
    ],
)
def test_it_claims_no_time_that_is_not_the_launches(
    busy: float, step: dict[str, float], lost_ms: float
) -> None:
    finding = host_bound.check(
        gather(launching(busy=busy, run=make_run(gpu=True, noise=0, **step)))
    )
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(lost_ms / 1e3, abs=1e-5)


def test_it_recommends_nothing_that_is_on_already() -> None:
    facts = gather(launching())
    on = Settings(compile_mode="reduce-overhead", optimizer_can_fuse=True, optimizer_is_fused=True)
    finding = host_bound.check(replace(facts, settings=on))
    assert finding is not None
    assert "larger batch" in finding.action
    assert "compile" not in finding.action and "fused" not in finding.action
    can_fuse = Settings(optimizer="AdamW", optimizer_can_fuse=True, optimizer_is_fused=False)
    finding = host_bound.check(replace(facts, settings=can_fuse))
    assert finding is not None
    assert "fused=True" in finding.action and "reduce-overhead" in finding.action


def with_counters(busy: float, sm: float | None, **launches: float) -> RunRecords:
    """A launch-bound run with an account of its idle time, and its counters."""
    made = idle_gpu(make_run(gpu=True, noise=0), **launches)
    run = count_gpus(replace(made, samples=()), busy_share=busy, sm_share=sm)
    return flag_steps(run, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


@pytest.mark.parametrize(
    ("busy", "sm", "reason"),
    [
        pytest.param(0.5, 0.45, None, id="kernels that fill the GPU"),
        pytest.param(0.5, 0.36, "gaps between small kernels", id="kernels that fill a part of it"),
        pytest.param(0.165, 0.05, "gaps between small kernels", id="many small kernels"),
        pytest.param(0.5, None, "does not report", id="a GPU without these counters"),
    ],
)
def test_a_step_time_is_predicted_only_where_it_is_known(
    busy: float, sm: float | None, reason: str | None
) -> None:
    facts = gather(with_counters(busy, sm, launching=1.0))
    finding = host_bound.check(facts)
    assert finding is not None and finding.lost_s_per_step
    found = predict(facts, [finding])
    if reason is None:
        (what_if,) = found
        assert finding.evidence["not_predicted"] is None
        step_s = what_if.step_s
        assert sm is not None and what_if.predicted_s <= 1.15 * sm * step_s + 0.002
    else:
        assert found == ()
        assert reason in str(finding.evidence["not_predicted"])
        assert "How short a step could be is not known" in finding.claim
    assert ("its multiprocessors" in finding.claim) is (sm is not None)


def test_it_claims_no_more_than_the_account_of_the_idle_time_leaves() -> None:
    """Idle for 75 %, 27.75 ms: 1 ms of it for input and 1 ms in the script's own code."""
    finding = host_bound.check(gather(with_counters(0.25, 0.2, launching=1.0)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.02575, abs=1e-5)
    limited = host_bound.check(gather(with_counters(0.25, 0.2, launching=0.5)))
    assert limited is not None
    assert limited.lost_s_per_step == pytest.approx(0.0175, abs=1e-5)


def with_kernels(
    run: RunRecords, busy_ms: float, steps: int = 2, copies_ms: float = 0
) -> RunRecords:
    """The run with steps in which the GPU recorded what it did."""
    step = replace(kernel_step(busy_ms, [], [busy_ms]), copies_ns=round(copies_ms * 1e6))
    return with_layers(run, layer_records(forward_ms={"": 1.0}, kernels=(step,) * steps))


def test_recorded_kernels_correct_what_the_counters_say() -> None:
    """A step of 37 ms, of which kernels run for 12: the counters take the gaps for work."""
    run = with_counters(0.98, 0.2, launching=1.0)
    assert host_bound.check(gather(run)) is None
    facts = gather(with_kernels(run, 12.0))
    finding = host_bound.check(facts)
    assert finding is not None and finding.severity is Severity.CRITICAL
    # 1 ms is input wait, and 1 ms the script's own code
    assert finding.lost_s_per_step == pytest.approx(0.037 - 0.012 - 0.002, abs=1e-5)
    assert finding.evidence["gpu_busy_ms"] == pytest.approx(12.0)
    assert finding.evidence["recorded_steps"] == 2 and finding.evidence["not_predicted"] is None
    assert "its kernels run for 12.0 ms of that, as the GPU recorded in 2 steps" in finding.claim
    (what_if,) = predict(facts, [finding])
    assert what_if.predicted_s == pytest.approx(0.014, abs=1e-5)
    assert not what_if.is_upper_bound and "or less" not in what_if.summary


def test_recorded_kernels_that_fill_the_step_leave_nothing_to_win() -> None:
    run = with_counters(0.5, 0.45, launching=1.0)
    assert host_bound.check(gather(run)) is not None
    assert host_bound.check(gather(with_kernels(run, 33.0))) is None


def test_a_single_recorded_step_says_nothing() -> None:
    run = with_counters(0.98, 0.2, launching=1.0)
    assert host_bound.check(gather(with_kernels(run, 12.0, steps=1))) is None


def test_a_copy_that_the_gpu_recorded_counts_as_work_once() -> None:
    made = idle_gpu(make_run(gpu=True, noise=0, h2d_ms=3.0), launching=1.0)
    run = flag_steps(replace(made, samples=()), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)
    finding = host_bound.check(gather(with_kernels(run, 15.0, copies_ms=3.0)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.040 - 0.015 - 0.002, abs=1e-5)


def test_records_without_an_account_of_idle_time_use_the_recorded_kernels_too() -> None:
    finding = host_bound.check(gather(with_kernels(launching(busy=None), 12.0)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.037 - 0.012 - 0.001, abs=1e-5)
