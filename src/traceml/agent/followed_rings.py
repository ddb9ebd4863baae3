"""The rings that the agent follows: who writes each of them, and where its records go."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from traceml.agent.processes import process_of
from traceml.agent.stacks import TrainingThread, training_thread
from traceml.model.errors import UnreadableRecords
from traceml.model.run import Manifest
from traceml.store.failures import remove_ring, stacks_of
from traceml.store.load import ring_paths
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingHead, RingReader

MADE_WITHIN_S = 5.0
"""A ring that cannot be read may be one that is just being made; an older one is given up."""


@dataclass
class FollowedRing:
    """A ring that the agent follows, where its records go, and the process that writes it."""

    path: Path
    ring: RingReader
    files: RankFiles
    rank: int
    pid: int
    process: psutil.Process | None
    stacks: Path
    """The file into which the process writes its stacks."""
    head: RingHead
    """Who writes the ring, and its counters, as of the last drain."""
    trouble: OSError | None = None
    """Why the last drain could not bring everything to disk."""

    @property
    def is_silent(self) -> bool:
        """Whether the rank takes no more steps that we would see: it stands still for us alone."""
        counters = self.head.counters
        return bool(counters["ended"] or counters["recording_ended"])

    def update_head(self) -> None:
        """Reads who writes the ring, and its counters: a rank may get its number late."""
        self.head = self.ring.head()
        self.rank = self.head.rank.rank


class FollowedRings:
    """All rings of a run on this machine, and the training threads of those who write them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._rings: dict[Path, FollowedRing | None] = {}
        """By path; `None` for one that cannot be read."""
        self._threads: dict[int, TrainingThread] = {}
        """The training thread of each rank's process, once the rank has said which it is."""

    def followed(self) -> list[FollowedRing]:
        """Returns those that can be read, in the order in which they were found."""
        return [ring for ring in self._rings.values() if ring is not None]

    def find_new(self) -> Iterator[FollowedRing]:
        """Yields the rings that were made since the last time, which are followed from now on."""
        for path in ring_paths(self._folder, self._manifest):
            if path not in self._rings and (found := self._open(path)) is not None:
                yield found

    def _open(self, path: Path) -> FollowedRing | None:
        try:
            ring = RingReader(path)
        except (UnreadableRecords, ValueError) as error:  # ValueError: it is empty yet
            if time.time() - path.stat().st_mtime > MADE_WITHIN_S:
                self._rings[path] = None
                print(error, file=sys.stderr)
            return None
        head = ring.head()
        made = FollowedRing(
            path=path,
            ring=ring,
            files=RankFiles.of(self._folder, path.stem),
            rank=head.rank.rank,
            pid=head.rank.pid,
            process=process_of(head.rank.pid),
            stacks=stacks_of(path),
            head=head,
        )
        self._rings[path] = made
        return made

    def let_go(self, ring: FollowedRing) -> None:
        """Gives the memory of a ring back, all of which is on disk."""
        ring.ring.close()
        remove_ring(ring.path)
        del self._rings[ring.path]

    def pids(self) -> dict[int, int]:
        """Returns the processes by rank; several may claim one rank, and a pid tells them apart."""
        pids: dict[int, int] = {}
        for followed in self.followed():
            free = next(number for number in count(followed.rank) if number not in pids)
            pids[free] = followed.pid
        return pids

    def note_training_threads(self) -> None:
        """Reads which thread trains, of the ranks that had not said so yet."""
        for followed in self.followed():
            if followed.pid not in self._threads:
                thread = training_thread(followed.stacks)
                if thread is not None:
                    self._threads[followed.pid] = thread

    def native_thread(self, pid: int) -> int | None:
        """Returns the system's number of the training thread of a process, once it is known."""
        thread = self._threads.get(pid)
        return None if thread is None else thread.native
