"""The folders of a run's nodes while their agents write them: processes with steps, logged metrics,
samples. A run on one machine has one, its own folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from traceml.model.errors import UnreadableRecords
from traceml.model.rank import Rank
from traceml.store.metric_follower import MetricFollower
from traceml.store.node_folders import NODE, node_folders, read_node
from traceml.store.node_merge import PID_LIMIT, shift_rank
from traceml.store.process_follower import ProcessFollower
from traceml.store.regular_files import stat_regular
from traceml.store.sample_follower import MAX_MOMENTS, SampleFollower, SampleTable

MIN_MOMENTS = 60
"""Moments of samples that are kept of each of many nodes; all of them share `MAX_MOMENTS`."""


@dataclass(slots=True)
class NodePlace:
    """One node among those of a run: what its clock and its process numbers are for the head."""

    folder: Path
    number: int = 0
    """In the order in which nodes were found; 0 is the head."""
    name: str = ""
    """Empty where the run is not known to have several nodes."""
    ahead_s: float = 0.0
    """Its clock minus the head's."""

    def pid(self, pid: int) -> int:
        """Returns a number for one of its processes that no process of another node has."""
        return pid + self.number * PID_LIMIT

    def on_head(self, rank: Rank) -> Rank:
        """Returns one of its ranks on the head's clock, with a process number of its own."""
        if not self.number:
            return rank
        return shift_rank(rank, self.pid(rank.pid), round(self.ahead_s * 1e9))


class NodeFollower:
    """The folder of one node as far as it is on disk."""

    def __init__(self, folder: Path, number: int) -> None:
        self.place = NodePlace(folder, number)
        self.processes: dict[str, ProcessFollower] = {}
        self.logs: dict[str, MetricFollower] = {}
        self.samples = SampleFollower(folder, max(MIN_MOMENTS, MAX_MOMENTS // (number + 1)))
        self._read: tuple[int, int] | None = None
        """Which `node.json` was read: its inode and time."""

    def find(self, notes: list[str]) -> list[ProcessFollower]:
        """Returns its processes that took steps; adds what cannot be read, in words.

        Raises FileNotFoundError where the folder is gone, and SegmentGone.
        """
        self._read_clock()
        segments = self._list_files()
        for stem in segments.keys() - self.processes.keys():
            self.processes[stem] = ProcessFollower(self.place.folder, stem, self.place.on_head)
        trained = []
        for stem, process in self.processes.items():
            try:
                if process.find(segments.get(stem, {})):
                    trained.append(process)
            except UnreadableRecords as error:
                notes.append(str(error))
        return trained

    def samples_on_head(self) -> SampleTable | None:
        """Returns what its agent sampled, on the head's clock; `None` before the first sample."""
        table, place = self.samples.table(), self.place
        if table is None or not place.number:
            return table
        processes = {place.pid(pid): found for pid, found in table.processes.items()}
        return replace(table, unix_s=table.unix_s - place.ahead_s, processes=processes)

    def _list_files(self) -> dict[str, dict[int, Path]]:
        """Returns the record files by process and number; begins to follow new message files."""
        folder, found = self.place.folder, dict[str, dict[int, Path]]()
        for name in os.listdir(folder):  # noqa: PTH208 - names are asked for, not paths
            stem, _, ending = name.partition(".")
            if not stem.startswith("rank-"):
                continue
            if ending == "messages" and stem not in self.logs:
                self.logs[stem] = MetricFollower(folder / name)
            number, _, kind = ending.partition(".")
            if kind == "steps" and number.isdigit():
                found.setdefault(stem, {})[int(number)] = folder / name
        return found

    def _read_clock(self) -> None:
        """Reads the node's name and how far its clock is ahead, where that was written again."""
        found = stat_regular(self.place.folder / NODE)
        mark = None if found is None else (found.st_ino, found.st_mtime_ns)
        if mark is None or mark == self._read:
            return
        state = read_node(self.place.folder)
        if state is not None:
            self._read, self.place.ahead_s = mark, state.clock_offset_s or 0.0
            self.place.name = self.place.folder.name if self.place.number else state.name


class NodeFollowers:
    """The folders of all nodes of a run, the head's first; others are added as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes = {folder: NodeFollower(folder, 0)}

    def __iter__(self) -> Iterator[NodeFollower]:
        return iter(self._nodes.values())

    def find(self, notes: list[str]) -> list[ProcessFollower]:
        """Returns the processes of all nodes that took steps; adds what cannot be read, in words.

        Raises FileNotFoundError where the run's folder is gone, and SegmentGone.
        """
        for folder in node_folders(self._folder):
            if folder not in self._nodes:
                self._nodes[folder] = NodeFollower(folder, len(self._nodes))
        head, *others = self
        trained = head.find(notes)
        for node in others:
            with suppress(FileNotFoundError):  # it was taken away, and the run goes on
                trained += node.find(notes)
        return trained
