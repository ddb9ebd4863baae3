"""Follows a run folder as the agent writes it: what views look at, read bit by bit.

Only files are read, never a ring: the agent drains those twice a second, and nobody waits for a
reader. A look costs in proportion to what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from traceml.model.errors import RunNotFound, UnreadableRecords
from traceml.model.rank import Rank
from traceml.model.run import Manifest
from traceml.store import folder as folders
from traceml.store.buckets import Buckets, Grid, RankBuckets, together
from traceml.store.followed import FollowedProcess, SegmentGone
from traceml.store.lives import lives_by_rank
from traceml.store.metrics import FollowedMetrics, Logged
from traceml.store.output import FollowedOutput
from traceml.store.sampled import FollowedSamples, SampleTable

T = TypeVar("T")

MAX_BUCKETS = 1024
MAX_CELLS = 1 << 16
"""Buckets of all ranks together: beyond 64 ranks each has fewer."""
MIN_BUCKETS = 64
ATTEMPTS = 5
"""A segment is folded once in thousands of steps: twice in a row is chance enough."""
READERS = 2
MANY_STEPS = 1 << 16
"""New steps that are worth threads; numpy lets them run side by side."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """One rank: its processes one after another."""

    number: int
    lives: Sequence[FollowedProcess]

    @property
    def rank(self) -> Rank:
        return replace(self.lives[-1].rank, rank=self.number)

    @property
    def written(self) -> int:
        """How many steps it has at most."""
        first = self.lives[0].first_number
        return first + sum(life.written for life in self.lives)

    @property
    def unread(self) -> int:
        """About how many steps are new."""
        return sum(life.unread for life in self.lives)

    def read(self, grid: Grid) -> list[str]:
        """Take what is new in each life; what could not be read, in words for people."""
        notes = []
        base = self.lives[0].first_number
        for life in self.lives:
            try:
                life.read(base, grid)
            except UnreadableRecords as error:  # the rest of this life; the next has its own files
                notes.append(str(error))
            base = life.end
        return notes


class RunFollower:
    """A run, as far as it is on disk; `refresh` takes what is new."""

    def __init__(self, folder: Path) -> None:
        """Raises RunNotFound, and UnreadableRecords where its manifest is damaged."""
        self._folder = folder
        self.manifest = folders.read_manifest(folder)
        self._begin()

    def _begin(self) -> None:
        self._grid = Grid(0, 1, MAX_BUCKETS)
        self._processes: dict[str, FollowedProcess] = {}
        self._logs: dict[str, FollowedMetrics] = {}
        self._samples = FollowedSamples(self._folder)
        self._output = FollowedOutput(self._folder)
        self._lanes: Sequence[_Lane] = ()
        self.notes: tuple[str, ...] = ()
        """What could not be read."""

    def refresh(self) -> None:
        """Take what is new; raises RunNotFound where the run was deleted."""
        manifest = self._manifest()
        if manifest != self.manifest:  # another run has its name now
            self.manifest = manifest
            self._begin()
        self._persist(self._read_steps)
        self._samples.look()
        self._output.look()
        for log in self._logs.values():
            log.look()

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
        """Look again where a segment was folded meanwhile; raises RunNotFound."""
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
        found: dict[str, dict[int, Path]] = {}
        for name in os.listdir(self._folder):  # noqa: PTH208 - names are asked for, not paths
            stem, _, ending = name.partition(".")
            if not stem.startswith("rank-"):
                continue
            if ending == "messages" and stem not in self._logs:
                self._logs[stem] = FollowedMetrics(self._folder / name)
            number, _, kind = ending.partition(".")
            if kind == "steps" and number.isdigit():
                found.setdefault(stem, {})[int(number)] = self._folder / name
        for stem in found.keys() - self._processes.keys():
            self._processes[stem] = FollowedProcess(self._folder, stem)
        self._lanes = _lanes(self._with_steps(found))
        self._grid = self._grown()
        if sum(lane.unread for lane in self._lanes) > MANY_STEPS:
            with ThreadPoolExecutor(READERS) as readers:
                notes = list(readers.map(lambda lane: lane.read(self._grid), self._lanes))
        else:
            notes = [lane.read(self._grid) for lane in self._lanes]
        self.notes += tuple(note for of_lane in notes for note in of_lane)

    def _with_steps(self, found: dict[str, dict[int, Path]]) -> list[FollowedProcess]:
        trained, notes = [], []
        for stem, process in self._processes.items():
            try:
                if process.find(found.get(stem, {})):
                    trained.append(process)
            except UnreadableRecords as error:
                notes.append(str(error))
        self.notes = tuple(notes)
        return trained

    def _grown(self) -> Grid:
        """The grid on which everything has room."""
        buckets, length = self._grid.buckets, self._grid.length
        while buckets > MIN_BUCKETS and buckets * len(self._lanes) > MAX_CELLS:
            buckets //= 2
        needed = max((lane.written for lane in self._lanes), default=0)
        while buckets * length < needed:
            length *= 2
        return Grid(0, length, buckets)

    def ranks(self) -> tuple[RankBuckets, ...]:
        """The steps of every rank that took any, in order of rank."""
        return tuple(
            together(lane.rank, [(life.rank, life.buckets) for life in lane.lives])
            for lane in self._lanes
        )

    def ranks_between(self, first_step: int, last_step: int) -> tuple[RankBuckets, ...]:
        """The same for a range of steps, counted from 1, as finely as they are on disk."""
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

    def samples(self) -> SampleTable | None:
        """What the agent sampled; `None` before the first sample."""
        return self._samples.table()

    def rank_numbers(self) -> dict[int, int]:
        """The rank of each process that took steps, by pid."""
        return {life.rank.pid: lane.number for lane in self._lanes for life in lane.lives}

    def metrics(self) -> dict[str, list[Logged]]:
        """What was logged, by name: the lowest rank's, one life after another."""
        found: dict[str, tuple[int, list[Logged]]] = {}
        for rank, log in self._logs_in_order():
            for name, logged in log.metrics.items():
                first, lives = found.setdefault(name, (rank, []))
                if rank == first:
                    lives.append(logged)
        return {name: lives for name, (_, lives) in sorted(found.items())}

    def _logs_in_order(self) -> list[tuple[int, FollowedMetrics]]:
        """By rank and then by time; a process that took no step has the rank in its file's name."""
        places = {
            life.stem: (lane.number, place)
            for lane in self._lanes
            for place, life in enumerate(lane.lives)
        }
        keyed = [
            (places.get(stem, (_rank_in(stem), 0)), stem, log) for stem, log in self._logs.items()
        ]
        return [(place[0], log) for place, _, log in sorted(keyed, key=lambda each: each[:2])]

    @property
    def output(self) -> tuple[str, ...] | None:
        """The last lines that the training printed; `None` where they are not kept."""
        return self._output.lines


def _rank_in(stem: str) -> int:
    """The rank that a process had when it began: `rank-<rank>-<pid>`."""
    number = stem.split("-")[1]
    return int(number) if number.isdigit() else 0


def _lanes(processes: list[FollowedProcess]) -> list[_Lane]:
    """One per rank: restarts one after another, processes side by side numbered on."""
    found = lives_by_rank(processes, lambda process: process.life)
    return [_Lane(number, lives) for number, lives in found]
