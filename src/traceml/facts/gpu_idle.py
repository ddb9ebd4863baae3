"""The idle time of the GPU in a mean step, by what the host did then: one account for all rules.

Each idle moment has one cause, so that the causes together are no more than the step. Marks on the
GPU's timeline show when it had caught up with the host. Where the host launches work meanwhile, in
a phase or in the script's own code, that is an upper limit: the GPU's counters say for how long it
was idle at all, and the causes are told no more than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traceml.facts.times import StepTimes
from traceml.model.record_layout import IDLE_CAUSES

_HOST_CAUSES = tuple(cause for cause in IDLE_CAUSES if cause != "launching")


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
    """The same by the GPU's counters, which take short gaps for work: so much at least; `None`
    where they were not read often enough."""

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


def gpu_idle(times: StepTimes, busy_share: float | None) -> GpuIdle | None:
    """Returns the account of a mean step; `None` where it was not measured.

    `busy_share` is the share of the time in which the GPU had a kernel while steps ran, 0–1.
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
    if busy_share is None:
        return found
    left_s = max(0.0, (1 - busy_share) * times.step_s - found.input_s - found.copies_s)
    told_s = found.host_s
    part = min(1.0, left_s / told_s) if told_s else 1.0
    return replace(
        found,
        by_cause={cause: part * idle_s for cause, idle_s in found.by_cause.items()},
        between_s=part * found.between_s,
        launching_s=max(0.0, min(left_s - told_s, at_most_s)),
    )
