"""Follows a run folder while the agent writes it, for live views.

Only files are read, never a ring: the agent drains the rings twice a second, and no reader delays
it. A refresh costs in proportion to what is new. Of a run over several machines the folders of all
its nodes are read, which lie below that of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from traceml.model.errors import RunNotFound, UnreadableRecords
from traceml.model.rank import Rank
from traceml.model.run import Manifest
from traceml.store import folder as folders
from traceml.store.attempt_groups import group_lives
from traceml.store.buckets import Buckets, Grid, RankBuckets, together
from traceml.store.metric_follower import Logged, MetricFollower
from traceml.store.node_followers import NodeFollower, NodeFollowers
from traceml.store.output_follower import OutputFollower
from traceml.store.process_follower import ProcessFollower, SegmentGone
from traceml.store.restarted_ranks import restarts_by_rank
from traceml.store.sample_follower import NodeSamples

T = TypeVar("T")

MAX_BUCKETS = 1024
MAX_CELLS = 1 << 16
"""Buckets of all ranks together: with more than 64 ranks each has fewer."""
MIN_BUCKETS = 16
ATTEMPTS = 5
"""A segment is merged into blocks once in thousands of steps, so a second time in a row is rare."""
READERS = 2
MANY_STEPS = 1 << 16
"""From so many new steps on, threads are used; numpy runs them in parallel."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One rank: its processes one after another."""

    number: int
    lives: Sequence[ProcessFollower]

    @property
    def rank(self) -> Rank:
        return replace(self.lives[-1].rank, rank=self.number)

    @property
    def written(self) -> int:
        """Returns an upper limit for the number of its steps."""
        return sum(map(_max_number, self.lives))


class RunFollower:
    """A run as far as it is on disk; `refresh` reads what is new."""

    def __init__(self, folder: Path) -> None:
        """Raises RunNotFound, and UnreadableRecords where its manifest is damaged."""
        self._folder = folder
        self.manifest = folders.read_manifest(folder)
        self._begin()

    def _begin(self) -> None:
        self._grid = Grid(0, 1, MAX_BUCKETS)
        self._nodes = NodeFollowers(self._folder)
        self._output = OutputFollower(self._folder)
        self._lanes: Sequence[_Lane] = ()
        self.notes: tuple[str, ...] = ()
        """What could not be read."""

    def refresh(self) -> None:
        """Reads what is new; raises RunNotFound where the run was deleted."""
        manifest = self._manifest()
        if manifest != self.manifest:  # another run has its name now
            self.manifest = manifest
            self._begin()
        self._persist(self._read_steps)
        self._output.refresh()
        for node in self._nodes:
            node.samples.refresh()
        self._read_metrics()

    def _manifest(self) -> Manifest:
        try:
            return folders.read_manifest(self._folder)
        except RunNotFound:
            raise self._deleted() from None

    def _deleted(self) -> RunNotFound:
        return RunNotFound(
            f"the run {self._folder.name!r} is gone: {self._folder} was deleted or moved while it "
            "was looked at; choose another run"
        )

    def _persist(self, look: Callable[[], T]) -> T:
        """Repeats the call where a segment was merged meanwhile; raises RunNotFound."""
        for _ in range(ATTEMPTS):
            try:
                return look()
            except SegmentGone:
                continue
            except FileNotFoundError:
                break
        raise self._deleted()

    # Steps

    def _read_steps(self) -> None:
        unreadable: list[str] = []
        self._lanes = _lanes(self._nodes.find(unreadable))
        attempts = group_lives(
            ((lane.number, lane.lives) for lane in self._lanes), lambda process: process.life
        )
        self._grid = self._grown(sum(max(map(_max_number, lives)) for lives in attempts))
        first, notes = 0, []
        for lives in attempts:  # each begins with the same number on every rank
            notes += _read(lives, first, self._grid)
            first = max(life.end for life in lives)
        self.notes = (*unreadable, *notes)

    def _grown(self, needed: int) -> Grid:
        """Returns a grid that covers so many steps."""
        buckets, length = self._grid.buckets, self._grid.length
        while buckets > MIN_BUCKETS and buckets * len(self._lanes) > MAX_CELLS:
            buckets //= 2
        while buckets * length < needed:
            length *= 2
        return Grid(0, length, buckets)

    def ranks(self) -> tuple[RankBuckets, ...]:
        """Returns the steps of every rank that took any, by rank."""
        return tuple(
            together(lane.rank, [(life.rank, life.buckets) for life in lane.lives])
            for lane in self._lanes
        )

    def ranks_between(self, first_step: int, last_step: int) -> tuple[RankBuckets, ...]:
        """Returns the same for a range of steps, counted from 1, as finely as they are on disk."""
        first = max(0, first_step - 1)
        if last_step <= first:
            return ()
        grid = Grid.over(first, last_step, self._grid.buckets)
        return self._persist(lambda: self._read_on(grid))

    def _read_on(self, grid: Grid) -> tuple[RankBuckets, ...]:
        self._read_steps()
        found = []
        for lane in self._lanes:
            lives = [(life.rank, Buckets(grid)) for life in lane.lives]
            for life, (_, buckets) in zip(lane.lives, lives, strict=True):
                life.add_range(buckets)
            found.append(together(lane.rank, lives))
        return tuple(found)

    # Everything else

    def samples(self) -> tuple[NodeSamples, ...]:
        """Returns what the agents sampled, the head's first; without nodes that sampled nothing."""
        tables = ((node.place, node.samples_on_head()) for node in self._nodes)
        return tuple(NodeSamples(place.name, table) for place, table in tables if table is not None)

    def nodes(self) -> tuple[NodeFollower, ...]:
        """Returns the folder of every node, the head's first."""
        return tuple(self._nodes)

    def steps_written(self) -> int:
        """Returns an upper limit for the number of steps of all ranks together."""
        return sum(lane.written for lane in self._lanes)

    def rank_numbers(self) -> dict[int, int]:
        """Returns the rank of each process that took steps, by pid."""
        return {life.rank.pid: lane.number for lane in self._lanes for life in lane.lives}

    def metrics(self) -> dict[str, list[Logged]]:
        """Returns the logged metrics by name: those of the lowest rank, restart by restart."""
        found: dict[str, tuple[int, list[Logged]]] = {}
        for rank, log in self._logs_in_order():
            for name, logged in log.metrics.items():
                first, lives = found.setdefault(name, (rank, []))
                if rank == first:
                    lives.append(logged)
        return {name: lives for name, (_, lives) in sorted(found.items())}

    def _read_metrics(self) -> None:
        """Reads what the ranks logged; of a metric that several log, only the lowest rank's."""
        of_lower: set[str] = set()
        for _, logs in groupby(self._logs_in_order(), key=lambda each: each[0]):
            own = [log for _, log in logs]
            for log in own:
                log.refresh(of_lower)
            of_lower.update(name for log in own for name in log.metrics)

    def _logs_in_order(self) -> list[tuple[int, MetricFollower]]:
        """Returns the logs by rank and then by time; without steps, the rank is that in the file's
        name."""
        places = {
            life: (lane.number, place)
            for lane in self._lanes
            for place, life in enumerate(lane.lives)
        }
        keyed = []
        for node in self._nodes:
            for stem, log in node.logs.items():
                life = node.processes.get(stem)
                place = None if life is None else places.get(life)
                keyed.append((place or (_rank_in(stem), 0), stem, log))
        return [(place[0], log) for place, _, log in sorted(keyed, key=lambda each: each[:2])]

    @property
    def output(self) -> tuple[str, ...] | None:
        """The last lines that the training printed; `None` where they are not kept."""
        return self._output.lines


def _rank_in(stem: str) -> int:
    """Returns the rank in a file name: `rank-<rank>-<pid>`."""
    number = stem.split("-")[1]
    return int(number) if number.isdigit() else 0


def _max_number(life: ProcessFollower) -> int:
    """Returns an upper limit for the numbers of a process's steps, within its attempt."""
    return life.first_number + life.written


def _read(lives: Sequence[ProcessFollower], first: int, grid: Grid) -> list[str]:
    """Reads the new records of an attempt's processes; its first step has the number `first`, from
    0. Returns a message for each process whose records could not be read."""

    def read(life: ProcessFollower) -> str | None:
        try:
            life.read(first + life.first_number, grid)
        except UnreadableRecords as error:  # of this process alone: others have their own files
            return str(error)
        return None

    if sum(life.unread for life in lives) > MANY_STEPS:
        with ThreadPoolExecutor(READERS) as readers:
            found = list(readers.map(read, lives))
    else:
        found = list(map(read, lives))
    return [note for note in found if note is not None]


def _lanes(processes: list[ProcessFollower]) -> list[_Lane]:
    """Returns one lane per rank: restarts one after another; parallel processes get further
    numbers."""
    found = restarts_by_rank(processes, lambda process: process.life)
    return [_Lane(number, lives) for number, lives in found]
