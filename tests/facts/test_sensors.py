"""Samples become means and peaks, and a sensor that could not be read stays unknown."""

import numpy as np
import pytest

from factories import make_samples
from traceml.facts.sensors import Level, during, host_facts, oom_kills, process_facts
from traceml.facts.step_stretches import StepStretches, Stretches
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample


def test_a_sensor_that_was_never_read_has_no_level() -> None:
    host = host_facts(make_samples(1, 3))
    assert host.swap_bytes == Level(None, None)
    assert host.gpu_power_w == Level(None, None)
    assert host.cpu_share == Level(0.5, 0.5)


def test_a_missing_reading_is_not_averaged_in() -> None:
    samples = [
        Sample(0.0, HostSample(cpu_share=None)),
        Sample(1.0, HostSample(cpu_share=0.4)),
        Sample(2.0, HostSample(cpu_share=0.8)),
    ]
    level = host_facts(samples).cpu_share
    assert level.mean is not None
    assert (round(level.mean, 9), level.peak) == (0.6, 0.8)


def test_gpu_levels_are_over_all_gpus() -> None:
    gpus = tuple(
        GpuSample(i, f"GPU-{i}", "x", power_w=i / 2, memory_used_bytes=10, memory_total_bytes=40)
        for i in range(3)
    )
    host = host_facts([Sample(0.0, HostSample(), gpus=gpus)])
    assert host.gpus == 3
    assert host.gpu_power_w == Level(0.5, 1.0)
    assert host.gpu_headroom_bytes == Level(30, 30)


def test_each_rank_has_its_own_process() -> None:
    processes = tuple(ProcessSample(rank, rank, cpu_cores=1.0 + rank) for rank in (1, 0))
    found = process_facts([Sample(0.0, HostSample(), processes)])
    assert [(p.rank, p.cpu_cores.mean) for p in found] == [(0, 1.0), (1, 2.0)]


def test_samples_outside_training_describe_a_host_only_when_there_are_no_others() -> None:
    samples = [Sample(float(second), HostSample(cpu_share=second / 10)) for second in range(10)]
    training = during(samples, 2.5, 5.5)
    assert [sample.unix_s for sample in training] == [3, 4, 5]
    assert host_facts(samples, training).cpu_share.peak == 0.5
    assert host_facts(samples, during(samples, 100.0, 200.0)).cpu_share.peak == 0.9


def test_swapping_needs_both_directions() -> None:
    both = HostSample(swap_in_bytes_per_s=3.0, swap_out_bytes_per_s=4.0)
    assert host_facts([Sample(0.0, both)]).swap_bytes_per_s == Level(7.0, 7.0)
    half = HostSample(swap_in_bytes_per_s=3.0)
    assert host_facts([Sample(0.0, half)]).swap_bytes_per_s == Level()


def test_kills_for_want_of_memory_are_those_since_the_first_sample() -> None:
    counts = (None, 7, 7, 9, None)
    samples = [Sample(float(at), HostSample(oom_kills=found)) for at, found in enumerate(counts)]
    assert oom_kills(samples) == 2
    assert oom_kills(samples[:2]) == 0
    assert oom_kills(samples[:1]) is None


def test_memory_left_is_that_of_the_last_sample_that_tells() -> None:
    samples = [
        Sample(0.0, HostSample(ram_used_bytes=10, ram_total_bytes=40)),
        Sample(1.0, HostSample(ram_used_bytes=25, ram_total_bytes=40, cores=2.0)),
        Sample(2.0, HostSample(ram_total_bytes=40)),
    ]
    host = host_facts(samples)
    assert (host.ram_free_bytes, host.ram_total_bytes, host.cores) == (15, 40, 2.0)


def test_each_gpu_has_levels_of_its_own() -> None:
    def gpu(index: int, used: float) -> GpuSample:
        return GpuSample(
            index,
            f"GPU-{index}",
            "x",
            power_w=used * 600,
            power_limit_w=600.0,
            sm_clock_mhz=900.0,
            sm_clock_max_mhz=1800.0,
        )

    samples = [
        Sample(0.0, HostSample(), gpus=(gpu(1, 0.25), gpu(0, 1.0))),
        Sample(1.0, HostSample(), gpus=(gpu(1, 0.75), gpu(0, 1.0))),
    ]
    host = host_facts(samples)
    assert [gpu.index for gpu in host.by_gpu] == [0, 1]
    assert [gpu.power_w for gpu in host.by_gpu] == [Level(600, 600), Level(300, 450)]
    assert host.by_gpu[1].power_share == Level(0.5, 0.75)
    assert host.gpu_clock_share == Level(0.5, 0.5)


def test_waiting_for_a_core_is_a_level_of_its_rank() -> None:
    processes = (ProcessSample(0, 1, runqueue_share=0.5, major_faults_per_s=3.0),)
    (found,) = process_facts([Sample(0.0, HostSample(), processes)])
    assert found.runqueue_share == Level(0.5, 0.5)
    assert found.major_faults_per_s == Level(3.0, 3.0)


def test_what_others_keep_busy_is_without_the_ranks_and_their_workers() -> None:
    own = (
        ProcessSample(0, 1, cpu_cores=1.0, workers_cpu_cores=0.5),
        ProcessSample(1, 2, cpu_cores=1.0, workers_cpu_cores=0.5),
    )
    host = HostSample(cpu_share=0.9, machine_cores=4, cpu_steal_share=0.1)
    found = host_facts([Sample(0.0, host, own)])
    assert found.cpu_other_share == Level(pytest.approx(0.15), pytest.approx(0.15))
    assert found.cpu_steal_share == Level(0.1, 0.1)


@pytest.mark.parametrize(
    ("host", "processes"),
    [
        pytest.param(HostSample(cpu_share=0.9, machine_cores=4), (), id="no rank was sampled"),
        pytest.param(
            HostSample(cpu_share=0.9, machine_cores=4),
            (ProcessSample(0, 1, cpu_cores=1.0),),
            id="a part of the run is unknown",
        ),
        pytest.param(
            HostSample(cpu_share=0.9),
            (ProcessSample(0, 1, cpu_cores=1.0, workers_cpu_cores=0.0),),
            id="a file of an earlier version",
        ),
    ],
)
def test_what_others_keep_busy_is_not_guessed(
    host: HostSample, processes: tuple[ProcessSample, ...]
) -> None:
    assert host_facts([Sample(0.0, host, processes)]).cpu_other_share == Level()


def test_how_busy_workers_are_is_told_of_the_time_in_which_steps_ran() -> None:
    """At 3 and 4 s the rank evaluates, and its workers wait for room in their queue."""
    cores = {1: 1.9, 2: 2.0, 3: 0.2, 4: 0.1, 5: 1.8, 6: 2.0}
    samples = [
        Sample(
            float(second),
            HostSample(),
            (ProcessSample(0, 1, cpu_cores=1.0, workers=2, workers_cpu_cores=busy),),
        )
        for second, busy in cores.items()
    ]
    steps = Stretches(np.array([0.5, 4.0]), np.array([2.4, 6.5]))
    (found,) = process_facts(samples, lambda rank: StepStretches(steps, steps))
    assert found.workers_cpu_cores == Level(pytest.approx((2.0 + 1.8 + 2.0) / 3), 2.0)
    assert found.cpu_cores == Level(1.0, 1.0)
    (all_of_it,) = process_facts(samples)
    assert all_of_it.workers_cpu_cores.mean == pytest.approx(8.0 / 6)
    assert found.is_worker_load_of_steps and all_of_it.is_worker_load_of_steps
    short = Stretches(np.array([1.5]), np.array([2.4]))
    (found,) = process_facts(samples, lambda rank: StepStretches(short, short))
    assert not found.is_worker_load_of_steps


@pytest.mark.parametrize(
    ("begin_s", "end_s", "expected"),
    [
        pytest.param(0.0, 9.0, (0.2 + 0.3 + 0.7) / 3, id="all of the time"),
        pytest.param(1.0, 2.8, 0.5 / 1.8, id="the more, the fewer steps ran"),
        pytest.param(1.0, 2.0, 0.2, id="a single second"),
        pytest.param(1.0, 1.4, None, id="too little"),
        pytest.param(1.6, 2.4, None, id="less than half of any"),
        pytest.param(4.0, 9.0, None, id="after the last sample"),
    ],
)
def test_cores_are_told_of_the_analyzed_steps(
    begin_s: float, end_s: float, expected: float | None
) -> None:
    samples = [
        Sample(float(second), HostSample(), (ProcessSample(0, 1, cpu_cores=cores),))
        for second, cores in enumerate((None, 9.0, 0.2, 0.3, 0.7))
    ][1:]
    every = Stretches(np.array([0.0]), np.array([9.0]))
    analyzed = Stretches(np.array([begin_s]), np.array([end_s]))
    (found,) = process_facts(samples, lambda rank: StepStretches(every, analyzed))
    assert found.steps_cpu_cores == (None if expected is None else pytest.approx(expected))
