"""The idle time of the GPU in a mean step, by what the host did then: one account for all rules.

Each idle moment has one cause, so that the causes together are no more than the step. Marks on the
GPU's timeline show when it had caught up with the host. Where the host launches work meanwhile, in
a phase or in the script's own code, that is an upper limit. How long the GPU was idle at all is
known exactly from the steps whose kernels the deep profile recorded, and otherwise from the GPU's
counters; the causes are told no more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traceml.facts.times import StepTimes
from traceml.model.record_layout import IDLE_CAUSES

_HOST_CAUSES = tuple(cause for cause in IDLE_CAUSES if cause != "launching")


MIN_RECORDED_STEPS = 2
"""Steps whose kernels were recorded: a single one may be unlike the others."""


@dataclass(frozen=True, slots=True)
class RecordedBusy:
    """How long the GPU worked in a mean step, by its own record; seconds per step.

    Recording makes the host slower, and the step longer, but no kernel: these times stand beside
    those of the steps that were not recorded.
    """

    steps: int
    busy_s: float
    """At least one kernel or copy ran."""
    copies_s: float
    """Of that, copies."""


@dataclass(frozen=True, slots=True)
class GpuIdle:
    """Seconds of a mean step in which the GPU had nothing to do; none of them overlap."""

    input_s: float
    copies_s: float
    """The GPU's work waited for a copy."""
    by_cause: Mapping[str, float]
    """By what the host did then: each of `IDLE_CAUSES` but launching."""
    between_s: float
    """Of what the host did, what lay between the phases."""
    launching_at_most_s: float
    """While the host launched the work of forward, backward and optimizer."""
    launching_s: float | None
    """How much of that the GPU really was idle: by its own record, or by its counters, which take
    short gaps for work, so much at least; `None` where neither was read often enough."""

    @property
    def besides_launching_s(self) -> float:
        """All but launching."""
        return self.input_s + self.copies_s + self.host_s

    @property
    def host_s(self) -> float:
        """What the host did, but for launching."""
        return sum(self.by_cause.values())

    @property
    def python_s(self) -> float:
        """While the host ran the script's own code between the phases."""
        return self.by_cause["python"]


def gpu_idle(
    times: StepTimes, busy_share: float | None, recorded: RecordedBusy | None = None
) -> GpuIdle | None:
    """Returns the account of a mean step; `None` where it was not measured.

    `busy_share` is the share of the time in which the GPU had a kernel while steps ran, 0–1, by its
    counters. What was `recorded` is exact and wins.
    """
    at_most_s = times.idle_launching_s
    if at_most_s is None or not times.step_s:
        return None
    found = GpuIdle(
        input_s=times.input_s or 0.0,
        copies_s=times.h2d_s or 0.0,
        by_cause={cause: getattr(times, f"idle_{cause}_s") or 0.0 for cause in _HOST_CAUSES},
        between_s=times.idle_between_s or 0.0,
        launching_at_most_s=at_most_s,
        launching_s=None,
    )
    left_s = idle_in_compute_s(times, busy_share, recorded)
    if left_s is None:
        return found
    told_s = found.host_s
    part = min(1.0, left_s / told_s) if told_s else 1.0
    return replace(
        found,
        by_cause={cause: part * idle_s for cause, idle_s in found.by_cause.items()},
        between_s=part * found.between_s,
        launching_s=max(0.0, min(left_s - told_s, at_most_s)),
    )


def idle_in_compute_s(
    times: StepTimes, busy_share: float | None, recorded: RecordedBusy | None
) -> float | None:
    """Returns how long the GPU was idle in a mean step, but for input and copies; `None` where that
    is not known.

    The record counts a copy as work, the counters do not.
    """
    step_s, copies_s = times.step_s or 0.0, times.h2d_s or 0.0
    if recorded is not None:
        idle_s = step_s - recorded.busy_s
        copies_s = max(0.0, copies_s - recorded.copies_s)
    elif busy_share is not None:
        idle_s = (1 - busy_share) * step_s
    else:
        return None
    return max(0.0, idle_s - (times.input_s or 0.0) - copies_s)
