"""What the agent's samples say about the host, the GPUs and each rank's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVar

import numpy as np

from traceml.facts.gpu_use import NOT_COUNTED, GpuUse, gpu_use, mean_use
from traceml.facts.step_stretches import NO_STEPS, Floats, StepStretches, Stretches
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample

Number = TypeVar("Number", int, float)

MIN_STEPS_SHARE = 0.9
"""Of the time between two samples: with so much of it in steps, a sample is about training."""
MIN_SAMPLES_WITHIN = 2
"""With fewer such samples, all of them are taken."""
MIN_STEPS_S = 0.5
"""Of analyzed steps between samples: with less, it is not known how many cores they kept busy."""
MOSTLY_STEPS_SHARE = 0.5
"""Of the time between two samples: with less of it in analyzed steps, they say too little."""
HARMLESS_REASONS = frozenset({"idle", "application clocks", "sync boost", "display clocks"})
"""Reasons that somebody chose, or that hold back only a GPU with nothing to do."""


@dataclass(frozen=True, slots=True)
class Level:
    """A sensor's mean and peak over time; both `None` where it could not be read."""

    mean: float | None = None
    peak: float | None = None


NOT_READ = Level()


@dataclass(frozen=True, slots=True)
class Throttling:
    """How often one GPU's clock was held down, and how far; empty where it never was, or the driver
    does not tell."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """By reason: the share of the samples in which it held the clock down."""
    clock_shares: Mapping[str, float] = field(default_factory=dict)
    """By reason: the mean clock in its samples, of the highest there is; without those reasons in
    whose samples the clock was not read."""


NOT_THROTTLED = Throttling()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU while the run trained."""

    index: int
    name: str
    uuid: str = ""
    use: GpuUse = NOT_COUNTED
    """Over the time in which steps ran; the levels below are over all of training."""
    memory_bytes: Level = Level()
    memory_share: Level = Level()
    temperature_c: Level = Level()
    power_w: Level = Level()
    power_share: Level = Level()
    """Of the enforced power limit, 0–1."""
    clock_share: Level = Level()
    """The SM clock, as a share of the highest possible, 0–1."""
    throttling: Throttling = NOT_THROTTLED
    other_busy_share: Level = Level()
    """The share of time in which kernels of other processes ran, 0–1."""

    @property
    def busy_share(self) -> float | None:
        """The share of the time in which steps ran that a kernel was running (utilisation), 0–1."""
        return self.use.busy_share


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine while the run trained; the GPU levels are over all of its GPUs."""

    samples: int = 0
    duration_s: float | None = None
    gpus: int = 0
    cores: float | None = None
    """The number of cores that the job may use."""
    cpu_share: Level = Level()
    cpu_other_share: Level = Level()
    """The share of all cores that other processes kept busy, with steal, 0–1."""
    cpu_steal_share: Level = Level()
    cpu_throttled_share: Level = Level()
    ram_bytes: Level = Level()
    ram_share: Level = Level()
    ram_total_bytes: int | None = None
    ram_free_bytes: int | None = None
    """At the last sample."""
    swap_bytes: Level = Level()
    swap_bytes_per_s: Level = Level()
    """Read from and written to swap, together."""
    oom_kills: int | None = None
    """Processes that the kernel killed for lack of memory during the run."""
    disk_read_bytes_per_s: Level = Level()
    disk_write_bytes_per_s: Level = Level()
    disk_busy_share: Level = Level()
    """Of the busiest disk, 0–1."""
    network_received_bytes_per_s: Level = Level()
    network_sent_bytes_per_s: Level = Level()
    gpu_use: GpuUse = NOT_COUNTED
    """Over the time in which steps ran: the mean of the GPUs for which it is known."""
    gpu_memory_bytes: Level = Level()
    gpu_memory_share: Level = Level()
    gpu_headroom_bytes: Level = Level()
    gpu_temperature_c: Level = Level()
    gpu_power_w: Level = Level()
    gpu_clock_share: Level = Level()
    by_gpu: tuple[GpuFacts, ...] = ()
    """Each GPU of the machine, whether the run uses it or not, by index."""


NOT_SAMPLED = HostFacts()


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One rank's process and the processes it started."""

    rank: int
    samples: int
    cpu_cores: Level = Level()
    steps_cpu_cores: float | None = None
    """The most cores that it can have kept busy in a mean analyzed step: all of its CPU time is
    charged to its steps; `None` where too few steps ran between samples."""
    rss_bytes: Level = Level()
    rss_share: Level = Level()
    """Resident memory as a share of the host's memory, 0–1."""
    threads: Level = Level()
    runqueue_share: Level = Level()
    major_faults_per_s: Level = Level()
    workers: Level = Level()
    workers_cpu_cores: Level = Level()
    is_worker_load_of_steps: bool = True
    """Whether that is known of the time in which steps were taken: too few samples lie within the
    steps of a run of seconds, and a worker that starts or ends says nothing about training."""
    workers_runqueue_share: Level = Level()
    workers_rss_bytes: Level = Level()


def during(samples: Sequence[Sample], first_s: float, last_s: float) -> tuple[Sample, ...]:
    """Returns the samples taken between the beginning of the first step and the end of the last."""
    return tuple(s for s in samples if first_s <= s.unix_s <= last_s)


def host_facts(samples: Sequence[Sample], training: Sequence[Sample] | None = None) -> HostFacts:
    """Returns means and peaks of the host's and the GPUs' sensors.

    `training` are the samples taken during training. Without any, the host is described by all
    samples; the GPUs are not, because their load outside training says nothing about it.
    """
    if not samples:
        return NOT_SAMPLED
    training = samples if training is None else training
    sampled = {gpu.uuid: gpu for sample in samples for gpu in sample.gpus}
    samples = training or samples
    hosts = [sample.host for sample in samples]
    gpus = [gpu for sample in training for gpu in sample.gpus]
    return HostFacts(
        samples=len(samples),
        duration_s=samples[-1].unix_s - samples[0].unix_s,
        gpus=len(sampled),
        cores=_last(host.cores for host in hosts),
        cpu_share=_level(host.cpu_share for host in hosts),
        cpu_other_share=_level(map(_busy_with_others, samples)),
        cpu_steal_share=_level(host.cpu_steal_share for host in hosts),
        cpu_throttled_share=_level(host.cpu_throttled_share for host in hosts),
        ram_bytes=_level(host.ram_used_bytes for host in hosts),
        ram_share=_level(_share(host.ram_used_bytes, host.ram_total_bytes) for host in hosts),
        ram_total_bytes=_last(host.ram_total_bytes for host in hosts),
        ram_free_bytes=_last(map(_ram_free, hosts)),
        swap_bytes=_level(host.swap_used_bytes for host in hosts),
        swap_bytes_per_s=_level(map(_swapped, hosts)),
        oom_kills=oom_kills(samples),
        disk_read_bytes_per_s=_level(host.disk_read_bytes_per_s for host in hosts),
        disk_write_bytes_per_s=_level(host.disk_write_bytes_per_s for host in hosts),
        disk_busy_share=_level(host.disk_busy_share for host in hosts),
        network_received_bytes_per_s=_level(host.network_received_bytes_per_s for host in hosts),
        network_sent_bytes_per_s=_level(host.network_sent_bytes_per_s for host in hosts),
        gpu_memory_bytes=_level(gpu.memory_used_bytes for gpu in gpus),
        gpu_memory_share=_level(_share(g.memory_used_bytes, g.memory_total_bytes) for g in gpus),
        gpu_headroom_bytes=_level(map(_headroom, gpus)),
        gpu_temperature_c=_level(gpu.temperature_c for gpu in gpus),
        gpu_power_w=_level(gpu.power_w for gpu in gpus),
        gpu_clock_share=_level(_share(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) for gpu in gpus),
        by_gpu=_by_gpu(sampled.values(), gpus),
    )


def with_gpu_use(
    host: HostFacts,
    samples: Sequence[Sample],
    ran: Callable[[str], Stretches],
    step_s: float,
) -> HostFacts:
    """Returns the host with what the GPUs' counters say about the time in which steps ran.

    `ran` maps a GPU's UUID to the time in which steps ran on it; `step_s` is the mean step.
    """
    sampled: dict[str, list[tuple[float, GpuSample]]] = {gpu.uuid: [] for gpu in host.by_gpu}
    for sample in samples:
        for each in sample.gpus:
            sampled[each.uuid].append((sample.unix_s, each))
    uses = []
    for gpu in host.by_gpu:
        at_s = np.array([unix_s for unix_s, _ in sampled[gpu.uuid]])
        found = [each for _, each in sampled[gpu.uuid]]
        uses.append(gpu_use(found, at_s, ran(gpu.uuid), step_s))
    return replace(
        host,
        by_gpu=tuple(replace(gpu, use=use) for gpu, use in zip(host.by_gpu, uses, strict=True)),
        gpu_use=mean_use([use for use in uses if use.samples]),
    )


def _busy_with_others(sample: Sample) -> float | None:
    """Returns the share of all cores that processes other than the ranks and their workers used.

    `None` where the run's own use is not fully known, because it would count as others' load.
    """
    host = sample.host
    own = [cores for rank in sample.processes for cores in (rank.cpu_cores, rank.workers_cpu_cores)]
    if host.cpu_share is None or not host.machine_cores or not own or None in own:
        return None
    used = sum(cores for cores in own if cores is not None)
    return max(0.0, host.cpu_share - used / host.machine_cores)


def oom_kills(samples: Sequence[Sample]) -> int | None:
    """Returns how many processes the kernel killed for lack of memory between the first and last
    sample."""
    counted = [sample.host.oom_kills for sample in samples if sample.host.oom_kills is not None]
    return max(0, counted[-1] - counted[0]) if counted else None


def _by_gpu(known: Iterable[GpuSample], samples: Sequence[GpuSample]) -> tuple[GpuFacts, ...]:
    read: dict[str, list[GpuSample]] = {}
    for gpu in samples:
        read.setdefault(gpu.uuid, []).append(gpu)
    return tuple(
        GpuFacts(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            memory_bytes=_level(each.memory_used_bytes for each in seen),
            memory_share=_level(_share(g.memory_used_bytes, g.memory_total_bytes) for g in seen),
            temperature_c=_level(each.temperature_c for each in seen),
            power_w=_level(each.power_w for each in seen),
            power_share=_level(_share(each.power_w, each.power_limit_w) for each in seen),
            clock_share=_level(_share(each.sm_clock_mhz, each.sm_clock_max_mhz) for each in seen),
            throttling=throttling(seen),
            other_busy_share=_level(each.other_busy_share for each in seen),
        )
        for gpu in sorted(known, key=lambda gpu: gpu.index)
        for seen in [read.get(gpu.uuid, [])]
    )


def process_facts(
    samples: Sequence[Sample], steps_of: Callable[[int], StepStretches] = lambda _: NO_STEPS
) -> tuple[ProcessFacts, ...]:
    """Returns means and peaks of each rank's process, by rank.

    `steps_of` says when a rank took steps. During evaluation and checkpoints a loader's workers
    wait for room in their queue, which says nothing about how busy they are in training.
    """
    read: dict[int, list[tuple[ProcessSample, int]]] = {}
    for position, sample in enumerate(samples):
        for process in sample.processes:
            read.setdefault(process.rank, []).append((process, position))
    totals = [sample.host.ram_total_bytes for sample in samples]
    times_s = np.array([sample.unix_s for sample in samples])
    steps = {rank: steps_of(rank) for rank in read}
    in_steps = {
        rank: _within(times_s, seen, steps[rank].every)
        for rank, seen in read.items()
        if any(process.workers for process, _ in seen) and len(steps[rank].every.begin_s)
    }
    return tuple(
        ProcessFacts(
            rank=rank,
            samples=len(seen),
            steps_cpu_cores=_cores_in_steps(times_s, seen, steps[rank].analyzed),
            rss_share=_level(_share(process.rss_bytes, totals[place]) for process, place in seen),
            **_levels([process for process, _ in seen]),
            is_worker_load_of_steps=bool(in_steps.get(rank, True)),
            workers_cpu_cores=_level(
                process.workers_cpu_cores
                for process in in_steps.get(rank) or [process for process, _ in seen]
            ),
        )
        for rank, seen in sorted(read.items())
    )


def _within(
    times_s: Floats, seen: Sequence[tuple[ProcessSample, int]], steps: Stretches
) -> list[ProcessSample]:
    """The samples of a rank's process before which, since the last one, it only took steps.

    `seen` are its samples with their places among all, whose times are `times_s`.
    """
    later = [(process, place) for process, place in seen if place]
    passed_s, steps_s = _passed_before(times_s, [place for _, place in later], steps)
    is_within = steps_s >= MIN_STEPS_SHARE * passed_s
    found = [process for (process, _), within in zip(later, is_within, strict=True) if within]
    return found if len(found) >= MIN_SAMPLES_WITHIN else []


def _cores_in_steps(
    times_s: Floats, seen: Sequence[tuple[ProcessSample, int]], steps: Stretches
) -> float | None:
    """Returns the most cores that a process can have kept busy while these steps ran; its samples
    come with their places among all, whose times are `times_s`."""
    read = [(cores, place) for process, place in seen if (cores := process.cpu_cores) is not None]
    later = [(cores, place) for cores, place in read if place]
    passed_s, steps_s = _passed_before(times_s, [place for _, place in later], steps)
    is_mostly_steps = steps_s >= MOSTLY_STEPS_SHARE * passed_s
    in_all_s = float(steps_s[is_mostly_steps].sum())
    if in_all_s < MIN_STEPS_S:
        return None
    cpu_s = np.array([cores for cores, _ in later]) * passed_s
    return float(cpu_s[is_mostly_steps].sum()) / in_all_s


def _passed_before(
    times_s: Floats, places: Sequence[int], steps: Stretches
) -> tuple[Floats, Floats]:
    """Returns how long before each of these samples the last one was taken, and how much of that
    time lies in steps."""
    numbers = np.array(places, dtype=np.int64)
    begin_s, end_s = times_s[numbers - 1], times_s[numbers]
    return end_s - begin_s, steps.overlap_s(begin_s, end_s)


_PROCESS_SENSORS = (
    *("cpu_cores", "rss_bytes", "threads", "runqueue_share", "major_faults_per_s"),
    *("workers", "workers_runqueue_share", "workers_rss_bytes"),
)
_read_process = attrgetter(*_PROCESS_SENSORS)


def _levels(processes: Sequence[ProcessSample]) -> dict[str, Level]:
    """Returns the means and peaks of a process, by sensor."""
    by_sensor = zip(*map(_read_process, processes), strict=True)
    return dict(zip(_PROCESS_SENSORS, map(_level, by_sensor), strict=True))


def _level(values: Iterable[float | None]) -> Level:
    read = [value for value in values if value is not None]
    return Level(sum(read, 0.0) / len(read), float(max(read))) if read else NOT_READ


def _last(values: Iterable[Number | None]) -> Number | None:
    return next((value for value in reversed(list(values)) if value is not None), None)


def _ram_free(host: HostSample) -> int | None:
    if host.ram_used_bytes is None or host.ram_total_bytes is None:
        return None
    return max(0, host.ram_total_bytes - host.ram_used_bytes)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _swapped(host: HostSample) -> float | None:
    if host.swap_in_bytes_per_s is None or host.swap_out_bytes_per_s is None:
        return None
    return host.swap_in_bytes_per_s + host.swap_out_bytes_per_s


def _headroom(gpu: GpuSample) -> float | None:
    if gpu.memory_used_bytes is None or gpu.memory_total_bytes is None:
        return None
    return gpu.memory_total_bytes - gpu.memory_used_bytes


def throttling(samples: Sequence[GpuSample]) -> Throttling:
    """Returns how often one GPU's clock was held down, by reason."""
    told = [gpu for gpu in samples if gpu.throttle_reasons is not None]
    held: dict[str, list[GpuSample]] = {}
    for gpu in told:
        for reason in gpu.throttle_reasons or ():
            if reason not in HARMLESS_REASONS:
                held.setdefault(reason, []).append(gpu)
    clocks = {
        reason: _level(_share(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) for gpu in gpus).mean
        for reason, gpus in held.items()
    }
    return Throttling(
        shares={reason: len(gpus) / len(told) for reason, gpus in held.items()},
        clock_shares={reason: clock for reason, clock in clocks.items() if clock is not None},
    )
