"""How long each rank's training thread ran on a CPU core, and how long it waited for one.

A rank whose thread uses more CPU time has more work. One whose thread was ready to run but got no
core was delayed by other programs on the machine. A thread that did neither was blocked: it slept,
or waited for a disk, a lock or another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from traceml.model.sample import ProcessSample, Sample

MIN_SAMPLES = 3
"""Two intervals of a second; a single one may be unusual."""


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """A training thread's time as means per step."""

    cpu_s: float
    wait_s: float
    """Ready to run but waiting for a core."""
    samples: int


def thread_times(
    samples: Sequence[Sample], walls_s: Mapping[int, float | None]
) -> dict[int, ThreadTime]:
    """Returns the times by rank; `walls_s` is each rank's mean wall time per step.

    The counters are read about once a second, so the rate over all of them is used. A rank with too
    few readings is missing.
    """
    read: dict[int, list[tuple[float, ProcessSample]]] = {}
    for sample in samples:
        for process in sample.processes:
            read.setdefault(process.rank, []).append((sample.unix_s, process))
    found = {}
    for rank, readings in read.items():
        wall_s = walls_s.get(rank)
        rate = _rate(readings)
        if wall_s and rate is not None:
            cpu, wait, count = rate
            found[rank] = ThreadTime(cpu * wall_s, wait * wall_s, count)
    return found


def _rate(readings: Sequence[tuple[float, ProcessSample]]) -> tuple[float, float, int] | None:
    """Returns seconds of CPU time and of waiting per second, and the number of readings."""
    cpu_s = wait_s = interval_s = 0.0
    used = 0
    for (before_s, before), (after_s, after) in pairwise(readings):
        spent_s = _growth(before, after, "train_thread_cpu_s")
        waited_s = _growth(before, after, "train_thread_wait_s")
        if spent_s is None or waited_s is None or after_s <= before_s:
            continue
        cpu_s, wait_s, interval_s = (
            cpu_s + spent_s,
            wait_s + waited_s,
            interval_s + after_s - before_s,
        )
        used += 1
    if used + 1 < MIN_SAMPLES:
        return None
    return cpu_s / interval_s, wait_s / interval_s, used + 1


def _growth(before: ProcessSample, after: ProcessSample, name: str) -> float | None:
    """Returns by how much a counter grew; `None` where it is unknown or the process changed."""
    was_s, is_s = getattr(before, name), getattr(after, name)
    if before.pid != after.pid or was_s is None or is_s is None or is_s < was_s:
        return None
    return float(is_s - was_s)
