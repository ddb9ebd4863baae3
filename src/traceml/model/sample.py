"""What the agent reads once a second: the host, each rank's process tree, each GPU.

`None` is a sensor that could not be read; it is never zero.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSample:
    """The machine as a whole; rates are over the time since the previous sample."""

    cpu_share: float | None = None
    """Busy share of all cores, 0–1."""
    cpu_steal_share: float | None = None
    """Of all cores' time, what the hypervisor gave to other machines, 0–1; part of the busy."""
    machine_cores: int | None = None
    """Cores that `cpu_share` is a share of: the machine's, whatever this job may use of them."""
    ram_used_bytes: int | None = None
    ram_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    disk_busy_share: float | None = None
    """Share of the time in which the busiest disk had work to do, 0–1."""
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    cpu_throttled_share: float | None = None
    """Share of the time that the cgroup's CPU quota held this job back, 0–1."""
    cores: float | None = None
    """Cores that this job may use: the machine's, or what the cgroup's CPU quota is worth."""
    oom_kills: int | None = None
    """Processes that the kernel has killed for want of memory, counted since long before."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One rank's process and the processes below it (DataLoader workers told apart)."""

    rank: int
    pid: int
    cpu_cores: float | None = None
    """Cores kept busy by the rank's own process: 1.5 is one and a half cores."""
    rss_bytes: int | None = None
    threads: int | None = None
    runqueue_share: float | None = None
    """Share of the time in which the main thread could have run and had no core, 0–1."""
    major_faults_per_s: float | None = None
    """Pages of the rank's own process that had to be read back from a disk."""
    workers: int | None = None
    """Processes below the rank: DataLoader workers and whatever else it started."""
    workers_cpu_cores: float | None = None
    workers_runqueue_share: float | None = None
    """The same as `runqueue_share`, of the worker that had to wait for a core most."""
    workers_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU as NVML sees it."""

    index: int
    uuid: str
    name: str
    utilisation: float | None = None
    """Share of time in which a kernel was resident, 0–1: resident, not busy."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything read at one instant on one node."""

    unix_s: float
    host: HostSample
    processes: tuple[ProcessSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
