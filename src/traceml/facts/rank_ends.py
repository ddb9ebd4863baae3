"""What is last known of a rank: its last step, its memory, and the samples of its machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml.facts.sensors import oom_kills
from traceml.facts.step_table import complete_steps
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_records import is_incomplete

LAST_SAMPLES = 5
"""Seconds before the end: a process that dies gives its memory back before the last of them."""
CURVE_STEPS = 32
"""Steps before the end whose memory is shown."""
MIN_SIZES = 8
"""With fewer sizes of a process than this, it cannot be said whether it grew from step to step."""


@dataclass(frozen=True, slots=True)
class LastSamples:
    """What the agent of a rank's machine read last: of the machine, and of the rank."""

    ram_share: float | None = None
    rss_bytes: int | None = None
    oom_kills: int | None = None
    """Processes that the kernel killed for memory while the run went on."""


NOT_SAMPLED = LastSamples()


def last_samples(records: RunRecords, rank: int) -> LastSamples:
    """Returns what was sampled last of a rank and its machine."""
    there = (node.samples for node in records.nodes if rank in node.ranks)
    samples = next(there, records.samples)
    if not samples:
        return NOT_SAMPLED
    shares = [
        sample.host.ram_used_bytes / sample.host.ram_total_bytes
        for sample in samples[-LAST_SAMPLES:]
        if sample.host.ram_used_bytes is not None and sample.host.ram_total_bytes
    ]
    resident = [
        process.rss_bytes
        for sample in samples
        for process in sample.processes
        if process.rank == rank and process.rss_bytes is not None
    ]
    return LastSamples(
        max(shares, default=None), resident[-1] if resident else None, oom_kills(samples)
    )


def last_step_unix_s(rank: RankRecords) -> float:
    """Returns when a rank's last complete step ended; 0 where it took none."""
    complete = np.flatnonzero(~is_incomplete(rank.steps))
    if not len(complete):
        return 0.0
    last = complete[-1]
    return rank.rank.unix_s(int(rank.steps["start_ns"][last] + rank.steps["wall_ns"][last]))


def steps_taken(rank: RankRecords) -> int:
    """Returns the number of a rank's last complete step, as the summary numbers them."""
    found = complete_steps(rank).index
    if len(found):
        return int(found[-1]) + 1
    return rank.earlier_steps + int(rank.blocks["complete_steps"].sum())


def last_peaks(rank: RankRecords) -> tuple[int, ...]:
    """Returns the peaks of GPU memory of a rank's last steps, in bytes, oldest first."""
    peaks = rank.steps["allocated_bytes"]
    return tuple(int(peak) for peak in peaks[peaks >= 0][-CURVE_STEPS:])


def last_resident_bytes(rank: RankRecords) -> int | None:
    """Returns the last size of a rank's process that its steps recorded; `None` without one."""
    sizes = rank.steps["rss_bytes"]
    read = sizes[sizes >= 0]
    return int(read[-1]) if len(read) else None


def steady_growth(rank: RankRecords) -> tuple[int, int] | None:
    """Returns the size of a rank's process in its first recorded step, and over how many steps it
    grew since, if it grew steadily; else `None`.

    Steadily means that between a quarter and three quarters of the growth had happened by the
    middle step: memory that is taken once, at the beginning or at the end, does not grow from step
    to step.
    """
    sizes = rank.steps["rss_bytes"]
    (places,) = np.nonzero(sizes >= 0)
    if len(places) < MIN_SIZES:
        return None
    first, middle, last = (int(sizes[places[at]]) for at in (0, len(places) // 2, -1))
    grown = last - first
    is_steady = grown > 0 and 0.25 * grown <= middle - first <= 0.75 * grown
    return (first, int(places[-1] - places[0]) + 1) if is_steady else None


def last_batch(rank: RankRecords) -> int | None:
    """Returns the samples of a rank's last step that had any; `None` where none had."""
    counted = rank.steps["samples"][rank.steps["samples"] > 0]
    return int(counted[-1]) if len(counted) else None
