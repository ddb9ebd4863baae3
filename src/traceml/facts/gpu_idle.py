"""The idle time of the GPU in a mean step, by what the host did then: one account for all rules.

Each idle moment has one cause, so that the causes together are no more than the step. Marks on the
GPU's timeline show when it had caught up with the host. Where the host launches work meanwhile, in
a phase or in the script's own code, that is an upper limit: the GPU's counters say for how long it
was idle at all, and the causes are told no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceml.facts.times import StepTimes


@dataclass(frozen=True, slots=True)
class GpuIdle:
    """Seconds of a mean step in which the GPU had nothing to do; none of them overlap."""

    input_s: float
    copies_s: float
    """The GPU's work waited for a copy."""
    compile_s: float
    gc_s: float
    logging_s: float
    sync_s: float
    """After the host had waited for the device."""
    python_s: float
    """While the host ran the script's own code between the phases."""
    between_s: float
    """Of all these but input and copies, what lay between the phases."""
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
        return self.compile_s + self.gc_s + self.logging_s + self.sync_s + self.python_s

    def of(self, cause: str) -> float:
        """Returns the idle time of `compile`, `gc`, `logging` or `sync`."""
        found: float = getattr(self, f"{cause}_s")
        return found


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
        compile_s=times.idle_compile_s or 0.0,
        gc_s=times.idle_gc_s or 0.0,
        logging_s=times.idle_logging_s or 0.0,
        sync_s=times.idle_sync_s or 0.0,
        python_s=times.idle_python_s or 0.0,
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
        compile_s=part * found.compile_s,
        gc_s=part * found.gc_s,
        logging_s=part * found.logging_s,
        sync_s=part * found.sync_s,
        python_s=part * found.python_s,
        between_s=part * found.between_s,
        launching_s=max(0.0, min(left_s - told_s, at_most_s)),
    )
