"""A driver that answers as NVML does, for GPU 0 and GPU 1: the edge at which tests stand in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from traceml.agent.gpus import REASON_READERS

NEW_READER, OLD_READER = REASON_READERS
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 6, 13
DRIVER_NOT_LOADED, GPU_IS_LOST = 9, 15
GPM_METRICS = {
    "NVML_GPM_METRIC_GRAPHICS_UTIL": 1,
    "NVML_GPM_METRIC_SM_UTIL": 2,
    "NVML_GPM_METRIC_SM_OCCUPANCY": 3,
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 5,
    "NVML_GPM_METRIC_DRAM_BW_UTIL": 10,
    "NVML_GPM_METRIC_FP64_UTIL": 11,
    "NVML_GPM_METRIC_FP32_UTIL": 12,
    "NVML_GPM_METRIC_FP16_UTIL": 13,
}


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


@dataclass
class FakeDriver:
    """What NVML would answer, by function name, for GPU 0 and GPU 1."""

    errors: dict[tuple[str, int], int] = field(default_factory=dict)
    unforeseen: dict[tuple[str, int], Exception] = field(default_factory=dict)
    """What a call raises that is no error of NVML's."""
    missing: set[str] = field(default_factory=set)
    calls: list[tuple[str, int]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    init_error: int | None = None
    count_error: int | None = None
    shutdown_error: int | None = None
    answers: dict[str, Callable[[int], Any]] = field(
        default_factory=lambda: {
            "nvmlDeviceGetHandleByIndex": lambda gpu: gpu,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetName": lambda _: "NVIDIA H200",
            "nvmlDeviceGetMaxClockInfo": lambda _: 1980,
            "nvmlDeviceGetClockInfo": lambda _: 1755,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=gpu + 7, total=100),
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=93, memory=40),
            "nvmlDeviceGetTemperature": lambda _: 61,
            "nvmlDeviceGetPowerUsage": lambda _: 512_345,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [],
            "nvmlDeviceGetProcessUtilization": lambda _: [],
            NEW_READER: lambda _: 0x4,
            OLD_READER: lambda _: 0x20,
        }
    )

    def module(self) -> ModuleType:
        module: Any = ModuleType("pynvml")
        module.NVMLError = FakeError
        module.NVML_CLOCK_SM, module.NVML_TEMPERATURE_GPU = 1, 0
        module.NVML_ERROR_GPU_IS_LOST = GPU_IS_LOST
        module.NVML_ERROR_NOT_FOUND = NOT_FOUND
        module.NVML_ERROR_FUNCTION_NOT_FOUND = FUNCTION_NOT_FOUND
        module.nvmlInit = self._init
        module.nvmlShutdown = self._shutdown
        module.nvmlDeviceGetCount = self._count
        for name in self.answers:
            if name not in self.missing:
                setattr(module, name, self._function(name))
        return module  # type: ignore[no-any-return]

    def _function(self, name: str) -> Callable[..., Any]:
        def call(gpu: int, *_: int) -> Any:
            self._note(name, gpu)
            return self.answers[name](gpu)

        return call

    def _note(self, name: str, gpu: int) -> None:
        """One call; raises what it has to fail with."""
        self.calls.append((name, gpu))
        if (name, gpu) in self.unforeseen:
            raise self.unforeseen[name, gpu]
        if (name, gpu) in self.errors:
            raise FakeError(self.errors[name, gpu])

    def _init(self) -> None:
        self.opened += 1
        if self.init_error is not None:
            raise FakeError(self.init_error)

    def _count(self) -> int:
        if self.count_error is not None:
            raise FakeError(self.count_error)
        return 2

    def _shutdown(self) -> None:
        self.closed += 1
        if self.shutdown_error is not None:
            raise FakeError(self.shutdown_error)


class _Metric(ctypes.Structure):
    _fields_ = (
        ("metricId", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_uint),
        ("value", ctypes.c_double),
    )


class _MetricsGet:
    """The question for metrics, as the binding's structure has it."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = (_Metric * 32)()


@dataclass
class FakeCounters(FakeDriver):
    """A driver whose GPUs count: GPM, where `has_gpm`, and their own samples of the utilisation."""

    has_gpm: bool = True
    percents: dict[int, float] = field(default_factory=dict)
    """What GPM says between any two readings, by metric."""
    metric_errors: dict[int, int] = field(default_factory=dict)
    samples: list[tuple[int, float]] = field(default_factory=list)
    """The utilisation in percent, by time in microseconds."""
    buffers: list[dict[str, Any]] = field(default_factory=list)
    """What was allocated and not given back; each knows which reading it holds."""
    readings: int = 0

    def __post_init__(self) -> None:
        self.answers |= {
            "nvmlGpmQueryDeviceSupport": lambda _: SimpleNamespace(
                isSupportedDevice=int(self.has_gpm)
            ),
        }

    def module(self) -> ModuleType:
        module: Any = super().module()
        vars(module).update(GPM_METRICS)
        module.NVML_ERROR_NOT_FOUND = NOT_FOUND
        module.NVML_GPM_METRICS_GET_VERSION = 1
        module.NVML_GPU_UTILIZATION_SAMPLES, module.NVML_VALUE_TYPE_DOUBLE = 1, 0
        module.c_nvmlGpmMetricsGet_t = _MetricsGet
        functions: dict[str, Callable[..., Any]] = {
            "nvmlGpmSampleAlloc": self._allocate,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmSampleGet": self._read,
            "nvmlGpmMetricsGet": self._compare,
            "nvmlDeviceGetSamples": self._kept_samples,
        }
        vars(module).update(functions)
        for name in self.missing & vars(module).keys():
            delattr(module, name)
        return module  # type: ignore[no-any-return]

    def _allocate(self) -> dict[str, Any]:
        self._note("nvmlGpmSampleAlloc", len(self.buffers))
        self.buffers.append({})
        return self.buffers[-1]

    def _free(self, buffer: dict[str, Any]) -> None:
        self.buffers[:] = [each for each in self.buffers if each is not buffer]

    def _read(self, gpu: int, buffer: dict[str, Any]) -> None:
        self._note("nvmlGpmSampleGet", gpu)
        self.readings += 1
        buffer.update(gpu=gpu, reading=self.readings)

    def _compare(self, asked: _MetricsGet) -> _MetricsGet:
        assert (asked.version, asked.sample1["gpu"]) == (1, asked.sample2["gpu"])
        assert asked.sample1["reading"] < asked.sample2["reading"]
        self._note("nvmlGpmMetricsGet", asked.sample1["gpu"])
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = self.metric_errors.get(metric.metricId, 0)
            metric.value = self.percents.get(metric.metricId, 0.0)
        return asked

    def _kept_samples(self, gpu: int, kind: int, since_us: int) -> tuple[int, list[Any]]:
        assert kind == 1
        self._note("nvmlDeviceGetSamples", gpu)
        found = [each for each in self.samples if each[0] > since_us]
        if not found:
            raise FakeError(NOT_FOUND)
        return 1, [
            SimpleNamespace(timeStamp=at_us, sampleValue=SimpleNamespace(uiVal=percent))
            for at_us, percent in found
        ]
