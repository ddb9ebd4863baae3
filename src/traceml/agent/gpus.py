"""Samples every NVIDIA GPU of the node through NVML; nothing where there is none."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from traceml.agent.error_log import ErrorLog
from traceml.agent.gpu_counters import GpuCounters
from traceml.model.rank import Rank
from traceml.model.sample import GpuInterval, GpuSample

REASONS = (
    (0x001, "idle"),
    (0x002, "application clocks"),
    (0x004, "power cap"),
    (0x008, "hw slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal"),  # the driver lowers the clocks
    (0x040, "thermal"),  # the hardware does, and sets "hw slowdown" beside it
    (0x080, "power brake"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability"),
)
"""NVML's bits, whose meaning stayed the same while their names changed."""
REASON_READERS = (
    "nvmlDeviceGetCurrentClocksEventReasons",  # drivers from 535 on
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # the same before, gone in CUDA 14
)
NO_BYTES = 2**64 - 1  # NVML's "not available" in a field of bytes
MAX_INTERVALS = 128
"""Kept per GPU until the next sample, which is taken once a second."""


Counted = frozenset[str] | None
"""The UUIDs of GPUs, or their beginnings; `None` means every GPU."""


@dataclass(slots=True)
class _GpuHandle:
    """One opened GPU and its constant properties."""

    index: int
    handle: Any
    uuid: str
    name: str
    counters: GpuCounters
    sm_clock_max_mhz: float | None = None
    is_lost: bool = False
    processes_told_us: int = 0
    """When the driver last told how busy each process keeps the GPU, on the driver's clock."""
    intervals: deque[GpuInterval] = field(default_factory=lambda: deque(maxlen=MAX_INTERVALS))


class GpuSampler:
    """Opens NVML at the first sample; `CUDA_VISIBLE_DEVICES` hides nothing here.

    What NVML says it cannot read is not measured. What fails in any other way (a binding that lacks
    a function, an answer that cannot be read) is not measured either, and goes into `errors`.
    """

    def __init__(
        self, clock: Callable[[], float] = time.time, errors: ErrorLog | None = None
    ) -> None:
        self._clock = clock
        self.errors = ErrorLog() if errors is None else errors
        self._nvml: Any = None
        self._gpus: tuple[_GpuHandle, ...] | None = None
        self._reason_reader = 0
        self.counted: Counted = frozenset()
        """Which GPUs' counters are read: none before somebody trains on one."""

    def sample(self, own_pids: Collection[int] = ()) -> tuple[GpuSample, ...]:
        """Returns one sample per GPU; a GPU that was lost stays in the list without values.

        `own_pids` are the run's processes.
        """
        if self._gpus is None:
            self._gpus = ()  # a driver that cannot be opened is not tried again
            self._gpus = self._open()
        self.read_counters()
        return tuple(self._sample(gpu, own_pids) for gpu in self._gpus)

    def read_counters(self) -> None:
        """Reads the counters of the GPUs that are trained on, for the next sample."""
        for gpu in self._gpus or ():
            if not gpu.is_lost and _is_among(gpu.uuid, self.counted):
                gpu.intervals.extend(gpu.counters.read())

    def driver_version(self) -> str | None:
        """Returns the driver's version; `None` without a GPU."""
        if not self._gpus:
            return None
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Closes the driver; samples are empty from then on."""
        nvml, self._nvml = self._nvml, None
        gpus, self._gpus = self._gpus, ()
        for gpu in gpus or ():
            with self.errors:
                gpu.counters.close()
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return  # the driver has already let go of us

    def _open(self) -> tuple[_GpuHandle, ...]:
        # Late, so that machines without NVIDIA pay nothing for it at start.
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return ()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:  # no library, no driver
            return ()
        self._nvml = nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            return ()
        return tuple(gpu for index in range(count) if (gpu := self._open_gpu(index)) is not None)

    def _open_gpu(self, index: int) -> _GpuHandle | None:
        """Opens a GPU; `None` where it has no readable UUID, because nothing could be matched to
        it."""
        nvml = self._nvml
        gpu = None
        with self.errors:
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                name = _text(nvml.nvmlDeviceGetName(handle))
            except nvml.NVMLError:
                return None
            counters = GpuCounters(nvml, handle, self._clock, self.errors)
            gpu = _GpuHandle(index=index, handle=handle, uuid=uuid, name=name, counters=counters)
        if gpu is None:
            return None
        gpu.sm_clock_max_mhz = self._read(
            gpu, lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        )
        return gpu

    def _sample(self, gpu: _GpuHandle, own_pids: Collection[int]) -> GpuSample:
        nvml, handle = self._nvml, gpu.handle
        read = self._read
        memory = read(gpu, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        sample = GpuSample(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            utilisation=read(gpu, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            memory_used_bytes=None if memory is None else _bytes(memory.used),
            memory_total_bytes=None if memory is None else _bytes(memory.total),
            temperature_c=read(
                gpu,
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            ),
            power_w=read(gpu, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            power_limit_w=read(gpu, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            sm_clock_mhz=read(
                gpu, lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            ),
            sm_clock_max_mhz=gpu.sm_clock_max_mhz,
            throttle_reasons=read(gpu, lambda: self._throttle_reasons(handle)),
            intervals=tuple(gpu.intervals),
            other_busy_share=read(gpu, lambda: self._other_busy_share(gpu, own_pids)),
        )
        gpu.intervals.clear()
        return GpuSample(gpu.index, gpu.uuid, gpu.name) if gpu.is_lost else sample

    def _read(self, gpu: _GpuHandle, sensor: Callable[[], Any]) -> Any:
        """Returns one sensor's value; `None` where it is missing, and for all sensors of a lost
        GPU."""
        if gpu.is_lost:
            return None
        value = None
        with self.errors:
            try:
                value = sensor()
            except self._nvml.NVMLError as error:
                gpu.is_lost = error.value == self._nvml.NVML_ERROR_GPU_IS_LOST
        return value

    def _other_busy_share(self, gpu: _GpuHandle, own_pids: Collection[int]) -> float | None:
        """Returns how busy other processes keep a GPU; `None` where none of the run's own is among
        those that the driver names: it may name all by the numbers of another namespace.

        A process that has a GPU open and computes nothing keeps nobody from it.
        """
        nvml = self._nvml
        if not own_pids:
            return None
        pids = {each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)}
        others = pids.difference(own_pids)
        if len(others) == len(pids):
            return None
        return self._busy_share_of(others, gpu) if others else 0.0

    def _busy_share_of(self, pids: Collection[int], gpu: _GpuHandle) -> float:
        nvml = self._nvml
        try:
            told = nvml.nvmlDeviceGetProcessUtilization(gpu.handle, gpu.processes_told_us)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
            told = ()  # nobody has computed since
        gpu.processes_told_us = max(
            (each.timeStamp for each in told), default=gpu.processes_told_us
        )
        by_pid: dict[int, list[float]] = {}
        for each in told:
            if each.pid in pids:
                by_pid.setdefault(each.pid, []).append(each.smUtil / 100)
        return min(1.0, sum(sum(shares) / len(shares) for shares in by_pid.values()))

    def _throttle_reasons(self, handle: Any) -> tuple[str, ...] | None:
        """Asks by the newest name that both the binding and the driver know."""
        while self._reason_reader < len(REASON_READERS):
            reader = getattr(self._nvml, REASON_READERS[self._reason_reader], None)
            if reader is not None:
                try:
                    return throttle_words(int(reader(handle)))
                except self._nvml.NVMLError as error:
                    if error.value != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                        raise
            self._reason_reader += 1
        return None


def throttle_words(bits: int) -> tuple[str, ...]:
    """Returns the reasons as short words, each once; empty where nothing holds the clock down."""
    words = [word for bit, word in REASONS if bits & bit]
    if bits & ~sum(bit for bit, _ in REASONS):
        words.append("other")
    return tuple(dict.fromkeys(words))


def _is_among(uuid: str, counted: Counted) -> bool:
    return counted is None or any(uuid.startswith(name) for name in counted)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes in older bindings


def _bytes(value: int) -> int | None:
    return None if value == NO_BYTES else int(value)


def gpu_share(rank: Rank, gpus: Sequence[GpuSample], visible: str | None) -> float | None:
    """Returns the utilisation of the GPU that a rank trains on; `None` where it cannot be
    identified.

    By the rank's GPU UUID where it is known; otherwise torch's device number is looked up in
    `visible`, the variable CUDA_VISIBLE_DEVICES: numbers, or the beginnings of UUIDs.
    """
    if rank.device_uuid:
        return next((gpu.utilisation for gpu in gpus if rank.trains_on(gpu.uuid)), None)
    kind, _, number = rank.device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        return None
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    if names is not None and int(number) >= len(names):
        return None
    wanted = number if names is None else names[int(number)]
    for gpu in gpus:
        is_named = bool(wanted) and not wanted.isdecimal() and gpu.uuid.startswith(wanted)
        if is_named or str(gpu.index) == wanted:
            return gpu.utilisation
    return None
