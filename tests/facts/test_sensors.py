"""Samples become means and peaks, and a sensor that could not be read stays unknown."""

from factories import make_samples
from traceml.facts.sensors import Level, during, host_facts, process_facts
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample


def test_a_sensor_that_was_never_read_has_no_level() -> None:
    host = host_facts(make_samples(1, 3))
    assert host.swap_bytes == Level(None, None)
    assert host.gpu_utilisation == Level(None, None)
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
        GpuSample(
            i, f"GPU-{i}", "x", utilisation=i / 2, memory_used_bytes=10, memory_total_bytes=40
        )
        for i in range(3)
    )
    host = host_facts([Sample(0.0, HostSample(), gpus=gpus)])
    assert host.gpus == 3
    assert host.gpu_utilisation == Level(0.5, 1.0)
    assert host.gpu_headroom_bytes == Level(30, 30)


def test_each_rank_has_its_own_process() -> None:
    processes = tuple(ProcessSample(rank, rank, cpu_cores=1.0 + rank) for rank in (1, 0))
    found = process_facts([Sample(0.0, HostSample(), processes)])
    assert [(p.rank, p.cpu_cores.mean) for p in found] == [(0, 1.0), (1, 2.0)]


def test_samples_outside_training_count_only_when_there_are_no_others() -> None:
    samples = [Sample(float(second), HostSample()) for second in range(10)]
    assert len(during(samples, 2.5, 5.5)) == 3
    assert len(during(samples, 100.0, 200.0)) == 10
