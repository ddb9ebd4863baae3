"""Reads a GPU's own counters: how busy it was, and with what, between two moments.

GPUs from Hopper on count for NVML (GPM) what their multiprocessors, tensor cores, FP32 units and
memory did; two readings give the share of the time between them. Older ones keep a utilisation
every fifth of a second or so, each with its time. A GPU that has neither, or may not be asked (MIG,
a virtual GPU, no permission), is not measured, and is not asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from traceml.agent.error_log import ErrorLog
from traceml.model.sample import GpuInterval

MAX_GAP_S = 5.0
"""Readings that lie further apart are not compared: the agent was stopped, or the clock jumped."""
BUFFER_READ_S = 0.9
"""How often the driver's own samples are fetched; it keeps about twenty seconds of them."""
MIN_GAP_S = 0.05
"""Readings closer to each other are not compared: the counters advance no faster."""
DECIMALS = 4
"""Of a share: more precise than any counter, and short on disk."""

_METRICS = (
    ("busy_share", "NVML_GPM_METRIC_GRAPHICS_UTIL"),
    ("sm_share", "NVML_GPM_METRIC_SM_UTIL"),
    ("occupancy", "NVML_GPM_METRIC_SM_OCCUPANCY"),
    ("tensor_share", "NVML_GPM_METRIC_ANY_TENSOR_UTIL"),
    ("fp32_share", "NVML_GPM_METRIC_FP32_UTIL"),
    ("dram_share", "NVML_GPM_METRIC_DRAM_BW_UTIL"),
    ("fp16_share", "NVML_GPM_METRIC_FP16_UTIL"),
    ("fp64_share", "NVML_GPM_METRIC_FP64_UTIL"),
)
_GPM_NAMES = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "c_nvmlGpmMetricsGet_t",
    "NVML_GPM_METRICS_GET_VERSION",
)
_SAMPLES_NAMES = (
    "nvmlDeviceGetSamples",
    "NVML_GPU_UTILIZATION_SAMPLES",
    "NVML_VALUE_TYPE_DOUBLE",
    "NVML_ERROR_NOT_FOUND",
)


class CounterSource(Protocol):
    """One way to read a GPU's counters; raises an `NVMLError` where the GPU has none."""

    def read(self) -> tuple[GpuInterval, ...]:
        """Returns the intervals that ended since the last reading, oldest first."""

    def close(self) -> None:
        """Frees what the driver allocated."""


class GpuCounters:
    """The best counters that one GPU has; if they fail, the next best, in the end none."""

    def __init__(
        self, nvml: Any, handle: Any, clock: Callable[[], float], errors: ErrorLog
    ) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._errors = errors
        self._untried: list[Callable[[Any, Any, Callable[[], float]], CounterSource]] = [
            _GpmSource,
            _UtilisationSource,
        ]
        self._source: CounterSource | None = None

    def read(self) -> tuple[GpuInterval, ...]:
        """Returns the intervals that ended since the last reading; empty without counters."""
        while self._source is not None or self._untried:
            with self._errors:
                try:
                    if self._source is None:
                        self._source = self._untried.pop(0)(self._nvml, self._handle, self._clock)
                    return self._source.read()
                except (self._nvml.NVMLError, _Unavailable):
                    pass  # it said so itself: the next best is tried
            self.close()
        return ()

    def close(self) -> None:
        """Frees what the driver allocated."""
        source, self._source = self._source, None
        if source is not None:
            with self._errors:
                source.close()


class _Unavailable(Exception):
    """The GPU has no such counters, or the installed nvidia-ml-py cannot read them."""


def _require(nvml: Any, *names: str) -> None:
    """Raises `_Unavailable` unless the installed nvidia-ml-py has all of these."""
    if not all(hasattr(nvml, name) for name in names):
        raise _Unavailable


class _GpmSource:
    """Keeps the last reading of the counters to compare the next one with."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float]) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._buffers: list[Any] = []
        self._read_unix_s: float | None = None
        _require(nvml, *_GPM_NAMES, *(name for _, name in _METRICS))
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise _Unavailable
        try:
            for _ in range(2):
                self._buffers.append(nvml.nvmlGpmSampleAlloc())
        except BaseException:  # one buffer may be there already
            self.close()
            raise

    def read(self) -> tuple[GpuInterval, ...]:
        before, now = self._buffers
        began_unix_s = self._read_unix_s
        if began_unix_s is not None and 0 <= self._clock() - began_unix_s < MIN_GAP_S:
            return ()
        self._read_unix_s = None  # should the next call fail, the buffer holds nothing
        self._nvml.nvmlGpmSampleGet(self._handle, now)
        self._read_unix_s = ended_unix_s = self._clock()
        self._buffers = [now, before]
        if began_unix_s is None or not 0 < ended_unix_s - began_unix_s <= MAX_GAP_S:
            return ()
        shares = self._shares_between(before, now)
        begin, end = round(began_unix_s, DECIMALS), round(ended_unix_s, DECIMALS)
        return (GpuInterval(begin, end, **shares),)

    def _shares_between(self, first: Any, second: Any) -> dict[str, float | None]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        asked.sample1, asked.sample2 = first, second
        for place, (_, metric) in enumerate(_METRICS):
            asked.metrics[place].metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(asked)
        return {
            name: None if found.nvmlReturn else _share(found.value)
            for (name, _), found in zip(_METRICS, asked.metrics, strict=False)
        }

    def close(self) -> None:
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            try:
                self._nvml.nvmlGpmSampleFree(buffer)
            except self._nvml.NVMLError:
                continue  # the driver has let go of it already


class _UtilisationSource:
    """The driver's own utilisation samples, each over the time since the one before."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float]) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._asked_unix_s = 0.0
        self._last_us = round(clock() * 1e6)
        """The time of the last sample; what is older is of no interest."""
        self._has_last = False
        _require(nvml, *_SAMPLES_NAMES)

    def read(self) -> tuple[GpuInterval, ...]:
        now_s = self._clock()
        if 0 <= now_s - self._asked_unix_s < BUFFER_READ_S:
            return ()
        self._asked_unix_s = now_s
        nvml = self._nvml
        try:
            kind, samples = nvml.nvmlDeviceGetSamples(
                self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._last_us
            )
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_FOUND:
                return ()  # none since the last time
            raise
        field = "dVal" if kind == nvml.NVML_VALUE_TYPE_DOUBLE else "uiVal"
        found = sorted((each.timeStamp, getattr(each.sampleValue, field)) for each in samples)
        return tuple(self._intervals([each for each in found if each[0] > self._last_us]))

    def _intervals(self, samples: list[tuple[int, float]]) -> list[GpuInterval]:
        intervals = []
        for taken_us, utilisation in samples:
            began_us, self._last_us = self._last_us, taken_us
            # Nobody knows when the first one began, nor one after a pause in which none was taken.
            is_known, self._has_last = self._has_last, True
            if is_known and taken_us - began_us <= MAX_GAP_S * 1e6:
                begin, end = round(began_us / 1e6, DECIMALS), round(taken_us / 1e6, DECIMALS)
                intervals.append(GpuInterval(begin, end, busy_share=_share(utilisation)))
        return intervals

    def close(self) -> None:
        """The driver allocates nothing for this."""


def _share(percent: float) -> float | None:
    """Returns NVML's percentage as a share; at most 1, because counters are not read at one
    instant."""
    if not math.isfinite(percent) or percent < 0:
        return None
    return round(min(percent / 100, 1.0), DECIMALS)
