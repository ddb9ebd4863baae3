"""How the GPUs were used while training steps ran, by their hardware counters.

A sample counts if it lies almost entirely inside complete steps of the ranks on that GPU; it is
weighted by its overlap with them. With too few samples everything is `None`, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from traceml.facts.step_stretches import Stretches
from traceml.model.sample import COUNTED, GpuInterval, GpuSample

Floats = npt.NDArray[np.float64]

MIN_INSIDE = 0.9
"""The share of a sample's interval that must lie inside steps. What it saw outside can then change
a mean by a tenth at most."""
MIN_SAMPLES = 4
"""One second of training at four samples per second. With fewer, a single unusual sample would be a
third of the mean."""
SENSOR_S = 1.0
"""The longest time over which NVML averages a plain utilisation reading."""


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Shares of the time in which steps ran, 0–1; all `None` where there were too few samples."""

    samples: int = 0
    """The number of samples that counted."""
    busy_share: float | None = None
    busy_peak: float | None = None
    sm_share: float | None = None
    occupancy: float | None = None
    tensor_share: float | None = None
    fp32_share: float | None = None
    dram_share: float | None = None
    fp16_share: float | None = None
    fp64_share: float | None = None

    @property
    def counted(self) -> int | None:
        """The intervals that count; `None` where none does."""
        return self.samples or None


NOT_COUNTED = GpuUse()


def gpu_use(
    samples: Sequence[GpuSample], at_unix_s: Floats, ran: Stretches, step_s: float
) -> GpuUse:
    """Returns one GPU's use, from its samples and the moments at which they were taken.

    The samples that count must cover at least one whole step, however long it is.
    """
    intervals = [interval for sample in samples for interval in sample.intervals]
    if not intervals:
        intervals = _of_the_sensor(samples, at_unix_s)
    if not intervals:
        return NOT_COUNTED
    table: Floats = np.array(intervals, dtype=np.float64)  # `None` becomes NaN
    begin_s, end_s = table[:, 0], table[:, 1]
    inside_s = ran.overlap_s(begin_s, end_s)
    counts = (end_s > begin_s) & (inside_s >= MIN_INSIDE * (end_s - begin_s))
    weights_s, values = inside_s[counts], table[counts, 2:]
    return _weighed(weights_s, dict(zip(COUNTED, values.T, strict=True)), step_s)


def mean_use(used: Sequence[GpuUse]) -> GpuUse:
    """Returns the mean over several GPUs, and the number of samples of all of them."""
    means: dict[str, float | None] = {}
    for field in fields(GpuUse)[1:]:
        known = [value for each in used if (value := getattr(each, field.name)) is not None]
        together = max(known, default=None) if field.name == "busy_peak" else _mean(known)
        means[field.name] = together
    return GpuUse(samples=sum(each.samples for each in used), **means)


def _of_the_sensor(samples: Sequence[GpuSample], at_unix_s: Floats) -> list[GpuInterval]:
    """Returns the intervals of plain utilisation readings, for a GPU without counters."""
    return [
        GpuInterval(float(at_s) - SENSOR_S, float(at_s), busy_share=sample.utilisation)
        for sample, at_s in zip(samples, at_unix_s, strict=True)
        if sample.utilisation is not None
    ]


def _weighed(weights_s: Floats, values: Mapping[str, Floats], step_s: float) -> GpuUse:
    means: dict[str, float | None] = {}
    for name, found in values.items():
        known = np.isfinite(found)
        enough = np.count_nonzero(known) >= MIN_SAMPLES and weights_s[known].sum() >= step_s
        means[name] = float(np.average(found[known], weights=weights_s[known])) if enough else None
    busy = values["busy_share"]
    peak = None if means["busy_share"] is None else float(np.nanmax(busy))
    return GpuUse(samples=len(weights_s), busy_peak=peak, **means)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
