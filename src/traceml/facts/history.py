"""A run over its whole length, in few points: what pictures show of it.

Tables have a row per rank and a column per bucket; NaN is "not measured".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from traceml.model.phase import Phase

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepHistory:
    """Steps in buckets of equal length, oldest first; warm-up included."""

    ranks: tuple[int, ...]
    bucket_steps: int
    first_steps: Ints
    """The number of each bucket's first step, counted from 1."""
    began_s: Floats
    """When each bucket began, in seconds since the run did."""
    step_s: Floats
    """By rank: the mean step, input wait and body."""
    longest_s: Floats
    """By rank: the longest step."""
    phase_s: Mapping[Phase, Floats]
    """By rank: the mean of each phase, the residual among them, on the run's clock."""
    between_s: Floats
    """By rank: what lay between steps (evaluation, checkpoints), per step."""
    allocated_bytes: Floats
    """By rank: the most seen on the GPU."""
    reserved_bytes: Floats
    rss_bytes: Floats
    """By rank: the most that the training process held."""
    loss: Floats
    """By rank: the last loss seen."""


@dataclass(frozen=True, slots=True)
class SensorHistory:
    """What the agent sampled, thinned; every array has a value per moment."""

    at_s: Floats
    """Seconds since the run began."""
    host: Mapping[str, Floats]
    """By the name of the field of `HostSample`."""
    processes: Mapping[int, Mapping[str, Floats]]
    """By rank, then by the name of the field of `ProcessSample`."""
    gpus: Mapping[int, Mapping[str, Floats]]
    """By index, then by the name of the field of `GpuSample`."""
    gpu_names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """One logged metric, thinned."""

    name: str
    steps: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is drawn over time."""

    steps: StepHistory | None = None
    """`None` before the first step."""
    sensors: SensorHistory | None = None
    metrics: tuple[MetricHistory, ...] = ()
