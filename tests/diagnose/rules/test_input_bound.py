"""Input bound fires on a wait that matters, and says what to do about it."""

from dataclasses import replace
from typing import Any

import pytest

from factories import flag_steps, make_run, make_samples, map_steps, schedule
from traceml.diagnose.rules import input_bound
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.model.phase import Phase
from traceml.model.record_layout import StepFlag
from traceml.model.sample import ProcessSample
from traceml.store.records import RunRecords


def run_with_share(share: float, step_ms: float = 100.0) -> RunRecords:
    body = step_ms * (1 - share)
    return make_run(
        input_ms=step_ms * share,
        forward_ms=body * 0.3,
        backward_ms=body * 0.5,
        optimizer_ms=body * 0.1,
        rest_ms=body * 0.1,
        noise=0,
    )


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(run_with_share(0.101), Severity.WARNING, id="just above the line"),
        pytest.param(run_with_share(0.199), Severity.WARNING, id="just below critical"),
        pytest.param(run_with_share(0.201), Severity.CRITICAL, id="just critical"),
        pytest.param(run_with_share(0.86), Severity.CRITICAL, id="nothing but waiting"),
        pytest.param(run_with_share(0.4, 7.0), Severity.WARNING, id="much of a short step"),
        pytest.param(run_with_share(0.6, 2.0), Severity.CRITICAL, id="most of a short step"),
        pytest.param(make_run(input_ms=50, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(
            make_run(input_ms=50, forward_ms=None), Severity.CRITICAL, id="with forward unknown"
        ),
        pytest.param(
            make_run(input_ms=50, first_step_ms=4000),
            Severity.CRITICAL,
            id="despite a long warm-up",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = input_bound.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.INPUT_BOUND, Phase.INPUT)
    assert finding.severity is severity
    assert finding.ranks == (0,)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with_share(0.099), id="just below the line"),
        pytest.param(run_with_share(0.1, 3.6), id="a fast loader and a fast step"),
        pytest.param(run_with_share(0.4, 2.0), id="a lost time nobody would notice"),
        pytest.param(make_run(input_ms=None), id="input not measured"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert input_bound.check(gather(run)) is None


def test_the_wait_is_the_time_lost() -> None:
    finding = input_bound.check(gather(run_with_share(0.5)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.05)
    assert finding.share == pytest.approx(0.5)
    assert "50%" in finding.claim
    assert "50.0 ms of 100.0 ms" in finding.claim


def advice(run: RunRecords) -> str:
    finding = input_bound.check(gather(run))
    assert finding is not None
    return finding.action


def with_workers(workers: int, cores: float, seconds: int = 3) -> RunRecords:
    run = make_run(input_ms=100, workers=workers)
    process = ProcessSample(0, 1, workers=workers, workers_cpu_cores=cores)
    samples = tuple(replace(s, processes=(process,)) for s in make_samples(1, seconds))
    return replace(run, samples=samples)


def test_one_sample_does_not_tell_what_workers_wait_for() -> None:
    """Of a run of a second: a worker was still starting when it was read."""
    assert "storage" in advice(with_workers(4, 0.4, seconds=3))
    assert "storage" not in advice(with_workers(4, 0.4, seconds=2))


def test_the_advice_follows_from_the_workers_seen() -> None:
    assert "num_workers=3 " in advice(make_run(input_ms=100, workers=0))
    assert "num_workers=8 " in advice(with_workers(2, 2.0))
    assert "storage" in advice(with_workers(4, 0.4))
    assert "more workers" in advice(make_run(input_ms=100, workers=None))
    assert "cheaper first" in advice(make_run(input_ms=10_000, workers=0))


def on_cores(run: RunRecords, cores: float) -> RunRecords:
    return change_hosts(run, cores=cores)


def test_workers_that_wait_for_storage_may_be_more_than_the_cores() -> None:
    told = advice(on_cores(with_workers(4, 0.2), 2))
    assert "4 workers are mostly idle (0.05 cores each), waiting for storage" in told
    assert "num_workers=16 would hide them unless the storage itself is at its limit" in told
    assert "num_workers=5 would help, and this machine has 2 cores" in advice(
        on_cores(with_workers(4, 1.6), 2)
    )
    assert "or train where there are more cores" in advice(on_cores(with_workers(4, 3.6), 2))


def test_workers_that_wait_for_a_core_are_not_said_to_wait_for_storage() -> None:
    queued = change_processes(with_workers(6, 0.36), workers_runqueue_share=0.94)
    assert "ready to run but waits for a CPU core 94% of the time" in advice(queued)
    assert "more workers will not help" in advice(queued)
    for computing in (
        change_processes(with_workers(4, 2.0), workers_runqueue_share=0.25),
        change_hosts(with_workers(6, 0.36), cpu_share=0.97),
    ):
        assert "workers cannot keep up" in advice(computing)
        assert "storage" not in advice(computing)


def change_processes(run: RunRecords, **fields: Any) -> RunRecords:
    samples = tuple(
        replace(s, processes=tuple(replace(process, **fields) for process in s.processes))
        for s in run.samples
    )
    return replace(run, samples=samples)


def change_hosts(run: RunRecords, **fields: Any) -> RunRecords:
    return replace(
        run, samples=tuple(replace(s, host=replace(s.host, **fields)) for s in run.samples)
    )


def test_a_fetch_that_waits_is_told_from_one_that_computes() -> None:
    run = on_cores(make_run(input_ms=100, workers=0, noise=0), 2)
    step_ms = float(run.ranks[0].steps["wall_ns"].mean()) * 1e-6

    def keeping_busy(cpu_ms: float, **fields: float) -> RunRecords:
        """The process computes for so long per step, 40 ms of it in the training thread."""
        fields = {"cpu_cores": cpu_ms / step_ms, **fields}
        return change_processes(schedule(run, [40.0], [1.0]), **fields)

    waiting = advice(keeping_busy(40.0))
    assert "which waits 59% of that time or more without computing" in waiting
    assert "num_workers=3 would hide them" in waiting
    for computing in (
        schedule(run, [130.0], [1.0]),
        schedule(run, [40.0], [60.0]),
        keeping_busy(100.0),  # other threads of the process
        keeping_busy(40.0, workers_cpu_cores=60.0 / step_ms),  # programs that it runs
        change_hosts(keeping_busy(40.0), cpu_share=0.95),
        run,
    ):
        assert "num_workers=2 would help, and this machine has 2 cores" in advice(computing)


def collating(share: float) -> RunRecords:
    def change(steps, rank):
        steps["collate_ns"] = (steps["input_ns"] * share).astype(int)

    return map_steps(make_run(input_ms=100, workers=0, noise=0), change)


def test_the_advice_tells_collating_from_making_samples() -> None:
    assert "Collating takes 80% of each fetch (80.0 ms)" in advice(collating(0.8))
    assert "num_workers=3 " in advice(collating(0.8))
    assert "70% of it in __getitem__" in advice(collating(0.3))


def finding_batches(empty_share: float, cores: float = 2.0) -> RunRecords:
    return flag_steps(
        with_workers(2, cores), StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY, empty_share
    )


def test_the_advice_tells_slow_workers_from_slow_transfers() -> None:
    assert "no batch was ready in 95% of the fetches" in advice(finding_batches(0.95))
    assert "num_workers=8 " in advice(finding_batches(0.95))
    assert "num_workers=8 " in advice(finding_batches(0.2))
    assert "the cost is transferring it" in advice(finding_batches(0.02, cores=0.6))
    assert "98% of the fetches" in advice(finding_batches(0.02, cores=0.6))


def test_workers_that_are_mostly_in_time_are_not_said_not_to_keep_up() -> None:
    """Nothing is known of how busy they were: the run was too short for two samples."""
    unknown = change_processes(finding_batches(0.075), workers_cpu_cores=None)
    assert "No batch was ready in 7.5% of the fetches: num_workers=8" in advice(unknown)
    assert "keep up" not in advice(unknown)
    mostly = change_processes(finding_batches(0.6), workers_cpu_cores=None)
    for late in (mostly, finding_batches(0.2)):
        assert "2 workers cannot keep up (no batch was ready in" in advice(late)


def test_batches_that_are_cheaper_to_make_than_to_hand_over_need_no_worker() -> None:
    told = advice(finding_batches(0.02, cores=0.2))
    assert "num_workers=0" in told
    assert "only 27.2 ms of CPU time" in told
    assert "num_workers=0" not in advice(finding_batches(0.02, cores=0.6))


def test_what_lies_ready_beside_busy_workers_is_not_the_batch_asked_for() -> None:
    assert "2 workers cannot keep up: num_workers=8" in advice(finding_batches(0.02))


def test_a_wait_for_batches_that_were_ready_is_never_critical() -> None:
    cases = ((0.02, 0.4, Severity.WARNING), (0.02, 2.0, Severity.CRITICAL))
    for empty_share, cores, severity in (*cases, (0.5, 2.0, Severity.CRITICAL)):
        finding = input_bound.check(gather(finding_batches(empty_share, cores)))
        assert finding is not None
        assert finding.severity is severity


def test_a_disk_at_its_limit_is_told_before_the_workers() -> None:
    run = with_workers(2, 2.0)
    samples = tuple(replace(s, host=replace(s.host, disk_busy_share=0.93)) for s in run.samples)
    assert "disk was busy 93%" in advice(replace(run, samples=samples))


def test_a_wait_at_the_start_of_each_epoch_is_told_from_a_steady_one() -> None:
    def every_twentieth(steps, rank):
        steps["input_ns"][::20] += 2_000_000_000
        steps["wall_ns"][::20] += 2_000_000_000

    assert "persistent_workers=True" in advice(map_steps(make_run(workers=2), every_twentieth))
    assert "persistent_workers" not in advice(with_workers(2, 2.0))


@pytest.mark.parametrize(
    ("gpu", "pinned", "said"),
    [
        pytest.param(True, False, True, id="off on a GPU"),
        pytest.param(True, True, False, id="on already"),
        pytest.param(True, None, False, id="nobody knows"),
        pytest.param(False, False, False, id="nothing to copy to"),
    ],
)
def test_pinned_memory_is_advised_where_it_is_off(
    gpu: bool, pinned: bool | None, said: bool
) -> None:
    run = make_run(input_ms=50, gpu=gpu)
    ranks = tuple(replace(rank, loader_pinned=pinned) for rank in run.ranks)
    assert ("pin_memory=True" in advice(replace(run, ranks=ranks))) is said


def test_only_the_ranks_that_wait_are_named() -> None:
    run = make_run(ranks=2, steps=50, input_ms=50)
    calm = run.ranks[1].steps.copy()
    calm["wall_ns"] -= calm["input_ns"]
    calm["input_ns"] = 0
    finding = input_bound.check(
        gather(replace(run, ranks=(run.ranks[0], replace(run.ranks[1], steps=calm))))
    )
    assert finding is not None
    assert finding.ranks == (0,)
