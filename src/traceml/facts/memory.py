"""How much memory each rank used, and whether it keeps growing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from traceml.facts.step_table import Ints, RankSteps, complete_steps
from traceml.facts.trend import Floats, Trend, find_trend
from traceml.model import record_layout
from traceml.model.sample import ProcessSample, Sample
from traceml.store.records import RankRecords
from traceml.store.step_columns import StepColumns

CHUNK_STEPS = 64  # as many as a block of folded steps holds at least
RECORDING_STEPS = 2
"""Steps after a recorded one in which what it took may still be growing."""


class MemoryOwner(str, Enum):
    """Which memory a trend is about."""

    GPU = "gpu"
    HOST = "host"
    """The rank's own process."""
    WORKERS = "workers"
    """All processes that the rank started, together."""


@dataclass(frozen=True, slots=True)
class ProcessLimit:
    """A limit on the memory of a rank's own process, at the last sample."""

    name: str
    """`RLIMIT_AS` or `RLIMIT_DATA`."""
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """How much the process may still take."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank's memory: on the GPU as its allocator reports it, on the host as its process has
    it."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_rss_bytes: int | None = None
    trends: Mapping[MemoryOwner, Trend] = field(default_factory=dict)
    """The trends of the memory that was read often enough."""
    limit: ProcessLimit | None = None
    """Of which the least was left; `None` where the process has none."""

    @property
    def allocated_rise_bytes(self) -> float | None:
        """How far the GPU's memory rose over the run."""
        return self._rise_bytes(MemoryOwner.GPU)

    @property
    def rss_rise_bytes(self) -> float | None:
        """The same of the rank's own process."""
        return self._rise_bytes(MemoryOwner.HOST)

    @property
    def workers_rss_rise_bytes(self) -> float | None:
        """The same of the processes below it."""
        return self._rise_bytes(MemoryOwner.WORKERS)

    def _rise_bytes(self, owner: MemoryOwner) -> float | None:
        return self.trends[owner].rise_bytes if owner in self.trends else None


NO_MEMORY = RankMemory()


@dataclass(frozen=True, slots=True)
class _Readings:
    """Sizes in order of time, each with the number of its step, counted from 1."""

    numbers: Ints
    times_s: Floats
    sizes: Ints


_NO_READINGS = _Readings(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))

Sampled = Sequence[tuple[float, ProcessSample]]
"""The samples of one rank's process, each with its wall-clock second."""


def processes_by_rank(samples: Sequence[Sample]) -> dict[int, Sampled]:
    """Returns the samples of each rank's process, in order of time."""
    found: dict[int, list[tuple[float, ProcessSample]]] = {}
    for sample in samples:
        for process in sample.processes:
            found.setdefault(process.rank, []).append((sample.unix_s, process))
    return dict(found)


def rank_memory(
    rank: RankRecords,
    sampled: Sampled = (),
    complete: RankSteps | None = None,
    recorded: Collection[int] = (),
) -> RankMemory:
    """Returns one rank's peaks and trends, from its steps and the samples of its process.

    `recorded` are the steps in which torch's profiler ran for us: what it takes from the host then
    is no growth of the script's.
    """
    resident = [process.rss_bytes for _, process in sampled if process.rss_bytes is not None]
    seen = (_peak(rank, "rss_bytes"), max(resident, default=None))
    return RankMemory(
        peak_allocated_bytes=_peak(rank, "allocated_bytes"),
        peak_reserved_bytes=_peak(rank, "reserved_bytes"),
        peak_rss_bytes=max((peak for peak in seen if peak is not None), default=None),
        trends=_trends(
            rank, complete_steps(rank) if complete is None else complete, sampled, recorded
        ),
        limit=_limit(sampled[-1][1]) if sampled else None,
    )


def _limit(process: ProcessSample) -> ProcessLimit | None:
    read = (
        ("RLIMIT_AS", process.address_space_limit_bytes, process.address_space_bytes),
        ("RLIMIT_DATA", process.data_limit_bytes, process.data_bytes),
    )
    known = [
        ProcessLimit(name, limit, used)
        for name, limit, used in read
        if limit is not None and used is not None
    ]
    return min(known, key=lambda each: each.free_bytes, default=None)


def sampled_while(sampled: Sampled, rank: RankRecords, steps: RankSteps) -> Sampled:
    """Returns the samples of the time in which a rank took these steps, and those of its
    blocks."""
    if not len(steps.index):
        return ()
    starts_ns = [int(each) for each in (*rank.blocks["start_ns"][:1], steps.columns["start_ns"][0])]
    last_ns = int(steps.columns["start_ns"][-1]) + max(0, int(steps.columns["wall_ns"][-1]))
    first_s, last_s = rank.rank.unix_s(min(starts_ns)), rank.rank.unix_s(last_ns)
    return [(at, process) for at, process in sampled if first_s <= at <= last_s]


def _trends(
    rank: RankRecords, steps: RankSteps, sampled: Sampled, recorded: Collection[int]
) -> dict[MemoryOwner, Trend]:
    starts_s = _unix_s(rank, steps.columns["start_ns"])
    by_step = _from_steps(rank, steps, starts_s, "rss_bytes")
    by_second = _from_samples(steps, starts_s, [(at, one.rss_bytes) for at, one in sampled])
    host = by_step if len(by_step.sizes) >= len(by_second.sizes) else by_second
    readings = {
        MemoryOwner.GPU: _from_steps(rank, steps, starts_s, "allocated_bytes"),
        MemoryOwner.HOST: _without_recordings(host, recorded) if recorded else host,
        MemoryOwner.WORKERS: _from_samples(steps, starts_s, _of_all_workers(sampled)),
    }
    found = {place: find_trend(r.numbers, r.times_s, r.sizes) for place, r in readings.items()}
    return {place: trend for place, trend in found.items() if trend is not None}


def _from_steps(rank: RankRecords, steps: RankSteps, starts_s: Floats, name: str) -> _Readings:
    """Returns the sizes recorded with the steps; by chunks where old steps are merged into
    blocks."""
    if steps.columns.constants.get(name) == record_layout.NOT_MEASURED and not len(rank.blocks):
        return _NO_READINGS
    sizes = steps.columns[name]
    read = sizes != record_layout.NOT_MEASURED
    numbers = steps.index + 1
    if not read.all():
        numbers, starts_s, sizes = numbers[read], starts_s[read], sizes[read]
    blocks = rank.blocks
    if not len(blocks):
        return _Readings(numbers, starts_s, sizes)
    if len(numbers):  # a folded block says its least, so what is compared with it must be that too
        firsts = np.flatnonzero(np.diff((numbers - 1) // CHUNK_STEPS, prepend=-1))
        numbers, starts_s = numbers[firsts], starts_s[firsts]
        sizes = np.minimum.reduceat(sizes, firsts)
    older = np.cumsum(blocks["complete_steps"]) - blocks["complete_steps"] + 1
    counted = blocks[f"{name}_count"] > 0
    return _Readings(
        np.concatenate([older[counted], numbers]),
        np.concatenate([_unix_s(rank, blocks["start_ns"][counted]), starts_s]),
        np.concatenate([blocks[f"{name}_min"][counted], sizes]),
    )


def _without_recordings(readings: _Readings, recorded: Collection[int]) -> _Readings:
    """Returns readings in which memory grows between two, where a recording was in between, as fast
    as between all others."""
    steps, numbers = np.sort(np.fromiter(recorded, np.int64)), readings.numbers
    before = np.searchsorted(steps, numbers[:-1] - RECORDING_STEPS)
    is_recorded = np.searchsorted(steps, numbers[1:], "right") > before
    grew, passed = np.diff(readings.sizes), np.diff(numbers)
    per_step = grew[~is_recorded].sum() / max(passed[~is_recorded].sum(), 1)
    taken = np.where(is_recorded, grew - np.round(per_step * passed), 0).astype(np.int64)
    return replace(readings, sizes=readings.sizes - np.append(0, np.cumsum(taken)))


def _from_samples(
    steps: RankSteps, starts_s: Floats, sampled: Sequence[tuple[float, int | None]]
) -> _Readings:
    """Returns the sizes sampled once a second, each at the step that ran then; one per step at
    most."""
    read = [(at, size) for at, size in sampled if size is not None]
    if not len(steps.index) or not read:
        return _NO_READINGS
    times_s = np.array([at for at, _ in read], dtype=np.float64)
    sizes = np.array([size for _, size in read], dtype=np.int64)
    at = np.interp(times_s, starts_s, steps.index + 1)
    numbers, firsts = np.unique(at.astype(np.int64), return_index=True)
    return _Readings(numbers, times_s[firsts], sizes[firsts])


def _of_all_workers(sampled: Sampled) -> list[tuple[float, int | None]]:
    """Returns the workers' memory at the moments at which their usual number ran: starting one is
    no growth."""
    if not sampled:  # as for all ranks of other machines
        return []
    counts = Counter(process.workers for _, process in sampled if process.workers)
    usual = max(counts, key=lambda workers: counts[workers], default=None)
    return [
        (at, process.workers_rss_bytes)
        for at, process in sampled
        if usual is not None and process.workers == usual
    ]


def _unix_s(rank: RankRecords, starts_ns: Ints) -> Floats:
    return (starts_ns + (rank.rank.unix_ns - rank.rank.monotonic_ns)) / 1e9


def _peak(rank: RankRecords, name: str) -> int | None:
    steps = rank.steps
    sizes = steps.broadcastable(name) if isinstance(steps, StepColumns) else steps[name]
    found = int(np.max(sizes, initial=record_layout.NOT_MEASURED))
    if len(rank.blocks):
        counted = rank.blocks[f"{name}_count"] > 0
        found = max(found, int(rank.blocks[f"{name}_max"][counted].max(initial=found)))
    return None if found == record_layout.NOT_MEASURED else found
