"""What the agent's samples say about the host, the GPUs and each rank's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceml.model.sample import GpuSample, ProcessSample, Sample


@dataclass(frozen=True, slots=True)
class Level:
    """A sensor over time; both `None` where it could never be read."""

    mean: float | None = None
    peak: float | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine while the run trained; the GPU levels are over all its GPUs."""

    samples: int = 0
    duration_s: float | None = None
    gpus: int = 0
    cpu_share: Level = Level()
    cpu_throttled_share: Level = Level()
    ram_bytes: Level = Level()
    ram_share: Level = Level()
    swap_bytes: Level = Level()
    disk_read_bytes_per_s: Level = Level()
    disk_write_bytes_per_s: Level = Level()
    network_received_bytes_per_s: Level = Level()
    network_sent_bytes_per_s: Level = Level()
    gpu_utilisation: Level = Level()
    gpu_memory_bytes: Level = Level()
    gpu_memory_share: Level = Level()
    gpu_headroom_bytes: Level = Level()
    gpu_temperature_c: Level = Level()
    gpu_power_w: Level = Level()


NOT_SAMPLED = HostFacts()


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One rank's process and the processes it started."""

    rank: int
    samples: int
    cpu_cores: Level = Level()
    rss_bytes: Level = Level()
    rss_share: Level = Level()
    """Of the host's memory."""
    threads: Level = Level()
    workers: Level = Level()
    workers_cpu_cores: Level = Level()
    workers_rss_bytes: Level = Level()


def during(samples: Sequence[Sample], first_s: float, last_s: float) -> tuple[Sample, ...]:
    """The samples taken while steps ran; all of them where none was."""
    return tuple(s for s in samples if first_s <= s.unix_s <= last_s) or tuple(samples)


def host_facts(samples: Sequence[Sample]) -> HostFacts:
    """Means and peaks of the host's and the GPUs' sensors."""
    if not samples:
        return NOT_SAMPLED
    hosts = [sample.host for sample in samples]
    gpus = [gpu for sample in samples for gpu in sample.gpus]
    return HostFacts(
        samples=len(samples),
        duration_s=samples[-1].unix_s - samples[0].unix_s,
        gpus=len({gpu.uuid for gpu in gpus}),
        cpu_share=_level(host.cpu_share for host in hosts),
        cpu_throttled_share=_level(host.cpu_throttled_share for host in hosts),
        ram_bytes=_level(host.ram_used_bytes for host in hosts),
        ram_share=_level(_share(host.ram_used_bytes, host.ram_total_bytes) for host in hosts),
        swap_bytes=_level(host.swap_used_bytes for host in hosts),
        disk_read_bytes_per_s=_level(host.disk_read_bytes_per_s for host in hosts),
        disk_write_bytes_per_s=_level(host.disk_write_bytes_per_s for host in hosts),
        network_received_bytes_per_s=_level(host.network_received_bytes_per_s for host in hosts),
        network_sent_bytes_per_s=_level(host.network_sent_bytes_per_s for host in hosts),
        gpu_utilisation=_level(gpu.utilisation for gpu in gpus),
        gpu_memory_bytes=_level(gpu.memory_used_bytes for gpu in gpus),
        gpu_memory_share=_level(_share(g.memory_used_bytes, g.memory_total_bytes) for g in gpus),
        gpu_headroom_bytes=_level(map(_headroom, gpus)),
        gpu_temperature_c=_level(gpu.temperature_c for gpu in gpus),
        gpu_power_w=_level(gpu.power_w for gpu in gpus),
    )


def process_facts(samples: Sequence[Sample]) -> tuple[ProcessFacts, ...]:
    """Means and peaks of each rank's process, in order of rank."""
    read: dict[int, list[tuple[ProcessSample, int | None]]] = {}
    for sample in samples:
        for process in sample.processes:
            read.setdefault(process.rank, []).append((process, sample.host.ram_total_bytes))
    return tuple(
        ProcessFacts(
            rank=rank,
            samples=len(seen),
            cpu_cores=_level(process.cpu_cores for process, _ in seen),
            rss_bytes=_level(process.rss_bytes for process, _ in seen),
            rss_share=_level(_share(process.rss_bytes, total) for process, total in seen),
            threads=_level(process.threads for process, _ in seen),
            workers=_level(process.workers for process, _ in seen),
            workers_cpu_cores=_level(process.workers_cpu_cores for process, _ in seen),
            workers_rss_bytes=_level(process.workers_rss_bytes for process, _ in seen),
        )
        for rank, seen in sorted(read.items())
    )


def _level(values: Iterable[float | None]) -> Level:
    read = [float(value) for value in values if value is not None]
    return Level(sum(read) / len(read), max(read)) if read else Level()


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _headroom(gpu: GpuSample) -> float | None:
    if gpu.memory_used_bytes is None or gpu.memory_total_bytes is None:
        return None
    return gpu.memory_total_bytes - gpu.memory_used_bytes
