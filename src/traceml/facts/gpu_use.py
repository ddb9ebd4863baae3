"""How the GPUs were used while training steps ran, by their hardware counters.

A sample counts if it lies almost entirely inside complete steps of the ranks on that GPU, and no
other process computed there: the counters do not say whose work they saw. It is weighted by its
overlap with the steps. With too few samples everything is `None`, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
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
MAX_OTHERS = 0.02
"""The share of time in which other processes may compute: it changes no share by more than that."""
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
    is_alone = np.array(
        [(sample.other_busy_share or 0.0) <= MAX_OTHERS for sample in samples], dtype=np.bool_
    )
    samples = [sample for sample, alone in zip(samples, is_alone, strict=True) if alone]
    at_unix_s = at_unix_s[is_alone]
    intervals = [interval for sample in samples for interval in sample.intervals]
    table: Floats = (
        np.array(intervals, dtype=np.float64)  # `None` becomes NaN
        if intervals
        else _of_the_sensor(samples, at_unix_s)
    )
    if not len(table):
        return NOT_COUNTED
    begin_s, end_s = table[:, 0], table[:, 1]
    inside_s = ran.overlap_s(begin_s, end_s)
    counts = (end_s > begin_s) & (inside_s >= MIN_INSIDE * (end_s - begin_s))
    return _weighed(inside_s[counts], table[counts, 2:], step_s)


def mean_use(used: Sequence[GpuUse]) -> GpuUse:
    """Returns the mean over several GPUs, and the number of samples of all of them."""
    means: dict[str, float | None] = {}
    for field in fields(GpuUse)[1:]:
        known = [value for each in used if (value := getattr(each, field.name)) is not None]
        together = max(known, default=None) if field.name == "busy_peak" else _mean(known)
        means[field.name] = together
    return GpuUse(samples=sum(each.samples for each in used), **means)


def _of_the_sensor(samples: Sequence[GpuSample], at_unix_s: Floats) -> Floats:
    """Returns the intervals of plain utilisation readings, for a GPU without counters: a row for
    each, a column per field of `GpuInterval`."""
    read = np.array([sample.utilisation for sample in samples], np.float64)
    is_read = np.isfinite(read)
    table = np.full((np.count_nonzero(is_read), len(GpuInterval._fields)), np.nan)
    table[:, 0], table[:, 1] = at_unix_s[is_read] - SENSOR_S, at_unix_s[is_read]
    table[:, 2 + COUNTED.index("busy_share")] = read[is_read]
    return table


def _weighed(weights_s: Floats, values: Floats, step_s: float) -> GpuUse:
    """Returns the means of what was counted: a row per sample, a column per name of `COUNTED`."""
    means: dict[str, float | None] = dict.fromkeys(COUNTED)
    is_known = np.isfinite(values)
    for place in np.flatnonzero(is_known.sum(axis=0) >= MIN_SAMPLES):
        known = is_known[:, place]
        weights = weights_s[known]
        if weights.sum() >= step_s:
            means[COUNTED[place]] = float(np.average(values[known, place], weights=weights))
    busy = values[:, COUNTED.index("busy_share")]
    peak = None if means["busy_share"] is None else float(np.nanmax(busy))
    return GpuUse(samples=len(weights_s), busy_peak=peak, **means)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
