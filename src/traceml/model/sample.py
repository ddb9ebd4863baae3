"""What the agent reads once a second: the host, each rank's process tree, each GPU.

`None` is a sensor that could not be read; it is never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traceml.model.phase import IN_BETWEEN


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
    """Share of the time in which the training thread was ready to run and had no core, 0–1."""
    major_faults_per_s: float | None = None
    """Pages of the rank's own process that had to be read back from a disk."""
    workers: int | None = None
    """Processes below the rank that are workers: of a DataLoader, or of the script's own making;
    no compilers, trackers or programs that it runs."""
    workers_cpu_cores: float | None = None
    """Of all processes below the rank."""
    workers_runqueue_share: float | None = None
    """The same as `runqueue_share`, of the worker that had to wait for a core most."""
    workers_rss_bytes: int | None = None
    train_thread_cpu_s: float | None = None
    """CPU time of the training thread since it began: a counter."""
    train_thread_wait_s: float | None = None
    """How long the training thread has waited for a core since it began: a counter."""
    address_space_bytes: int | None = None
    """Of the rank's own process, where RLIMIT_AS limits it …"""
    address_space_limit_bytes: int | None = None
    """… and to how much; `None` without that limit."""
    data_bytes: int | None = None
    """The memory of the rank's own process that RLIMIT_DATA limits …"""
    data_limit_bytes: int | None = None
    """… and to how much; `None` without that limit."""


class GpuInterval(NamedTuple):
    """What one GPU did between two moments: shares of that time, 0–1, by its own counters.

    On disk it is an array of numbers, because there are several a second: the order of the fields
    is the file's, and a new one goes to the end.
    """

    begin_unix_s: float
    end_unix_s: float
    busy_share: float | None = None
    """A kernel was resident, on however few of the multiprocessors (SMs)."""
    sm_share: float | None = None
    """The SMs had work, averaged over all of them."""
    occupancy: float | None = None
    """The warps that were active, of the most that the SMs can hold."""
    tensor_share: float | None = None
    """The tensor cores computed, in any format."""
    fp32_share: float | None = None
    """The FP32 units computed; likewise the FP16 and FP64 units below. Tensor cores are neither."""
    dram_share: float | None = None
    """The bandwidth of the GPU's memory, of the highest there is."""
    fp16_share: float | None = None
    fp64_share: float | None = None

    @property
    def length_s(self) -> float:
        """How long it took."""
        return self.end_unix_s - self.begin_unix_s


COUNTED = GpuInterval._fields[2:]
"""What is counted over an interval."""


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
    intervals: tuple[GpuInterval, ...] = ()
    """What its counters said since the sample before; empty where it has none, or nobody trains on
    it yet."""
    other_busy_share: float | None = None
    """Share of time in which kernels of processes ran that are neither the run's ranks nor started
    by them, 0–1; `None` where the driver names none of the run's own processes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything read at one instant on one node."""

    unix_s: float
    host: HostSample
    processes: tuple[ProcessSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of somebody's code."""

    function: str
    file: str
    """Relative to the folder that the script was started in, where it lies there."""
    line: int


@dataclass(frozen=True, slots=True)
class StackSample:
    """One look at the training thread, or several in a row that saw the same."""

    unix_s: float
    looks: int
    phase: str
    """A phase's key, by what is on the stack; `residual` where no phase is."""
    user: CodeLine | None = None
    """The user's innermost line inside the phase; in the rest, anywhere on the stack."""
    caller: CodeLine | None = None
    """The user's line that called the phase; none in the rest."""
    library: CodeLine | None = None
    """In the rest, the innermost line of an installed package that the user's line called."""
    stack: int | None = None
    """The whole stack, as its place in the burst's `stacks`; `None` where it was not kept."""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A call on a stack."""

    function: str
    file: str
    """Relative to the folder that the script was started in, or to the installed packages."""
    line: int
    is_users: bool = False
    """Whether it is the user's own code, and no package's and not Python's."""


OTHER_THREADS = "threads"
"""The phase of samples of further threads of a training process …"""
LOADER_WORKERS = "workers"
"""… and of the processes that its data loader has started."""
COMPILING = "compile"
"""The phase of samples in which torch compiles the model, which is no part of a step."""
EVALUATION, CHECKPOINT = IN_BETWEEN
OUTSIDE_STEPS = (EVALUATION, CHECKPOINT, COMPILING)
"""Phases of the training thread that lie in no step."""


@dataclass(frozen=True, slots=True)
class StackBurst:
    """Looks at one rank's training thread, taken one after another."""

    rank: int
    pid: int
    way: str
    """`py-spy`, or `signal` where that may not attach."""
    looks: int
    torn: int
    """Looks that failed, or caught the stack while it changed; the thread is never paused."""
    samples: tuple[StackSample, ...] = ()
    frames: tuple[StackFrame, ...] = ()
    """The calls that are on its stacks, each once."""
    stacks: tuple[tuple[int, ...], ...] = ()
    """Different stacks as places in `frames`, the outermost call first."""
    lasted_s: float | None = None
    cpu_s: float | None = None
    """What taking them cost on another core; `None` where that is not known."""
    is_of_worker: bool = False
    """Whether it looked at a process of the rank's data loader, and not at the rank itself."""
