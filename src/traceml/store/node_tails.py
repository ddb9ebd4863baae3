"""The last steps of other nodes' ranks, from the files that the head has of them, as they grow.

A look costs in proportion to what is new; of a file that is seen for the first time, only the end
is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model.errors import UnreadableRecords
from traceml.model.failure import NOTHING_SEEN, AgentSaw
from traceml.model.node import NodeState, NodeWay
from traceml.model.sample import Sample
from traceml.store import failures, logged, old_formats
from traceml.store.line_files import LineFollower
from traceml.store.load import by_final_rank
from traceml.store.node_folders import NODES, node_folders, read_node
from traceml.store.node_merge import (
    PidTable,
    shift_message,
    shift_rank,
    shift_samples,
    shift_seen,
)
from traceml.store.recent_steps import MAX_SAMPLES, MAX_STEPS, RecentSteps
from traceml.store.records import STEP_DTYPE, NodeRecords, RunRecords
from traceml.store.rings import RingHead, open_records, parse_head
from traceml.store.samples import SampleTail

MIN_SAMPLES = 12
"""Samples of a node that are kept: as long as a window lasts, and a little more."""
MAX_NODE_SAMPLES = 1_000
"""Of all nodes together, as long as each has enough."""
HEAD_EVERY_LOOKS = 16
"""How often the counters of a process are read again: they change rarely."""

_HEAD_BYTES = 1 << 16
_SEGMENT = re.compile(r"(rank-[^.]+)\.(\d{4})\.steps")


class RecordTail:
    """The newest record file of one process, read like a ring: what is new since the last time.

    When the file is full and another one is begun, what was not read of it is passed over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """The folder and the stem of its files."""
        self.is_over = False
        """Whether nothing more is expected of the process."""
        self._file = path
        self.own_pid: int | None = None
        """The number that its machine gave the process."""
        self._size = 0
        self._read = 0
        """How many of its records were read."""
        self._looks = 0
        self._head: RingHead | None = None

    def grow(self, name: str, size: int, pids: PidTable, ahead_ns: int) -> bool:
        """Looks at the newest file and its size; returns whether it has grown.

        `pids` gives the process a number that no other node has; `ahead_ns` is by how much the
        node's clock is ahead of the head's. Raises UnreadableRecords, and OSError.
        """
        if (name, size) == (self._file.name, self._size):
            return False
        if name != self._file.name:
            self._file, self._read, self._looks = self.path.with_name(name), 0, 0
        if self._looks % HEAD_EVERY_LOOKS == 0:
            head = parse_head(self._pread(_HEAD_BYTES, 0), self._file)
            known = (
                self._head.rank.pid if self._head is not None else pids.of_process(head.rank.pid)
            )
            self.own_pid = head.rank.pid
            self._head = replace(head, rank=shift_rank(head.rank, known, ahead_ns))
        self._size, self._looks = size, self._looks + 1
        return True

    @property
    def pid(self) -> int | None:
        """The number of its process among those of all nodes; `None` before its file was read."""
        return None if self._head is None else self._head.rank.pid

    def head(self) -> RingHead:
        """Returns who writes the file, and the process's counters as they were last read."""
        assert self._head is not None
        return self._head

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        """Returns the records after a number that were not returned before."""
        head = self.head()
        record_bytes = old_formats.STEPS_BY_VERSION[head.version].itemsize
        held = max(0, self._size - head.size) // record_bytes
        first = max(self._read, held - MAX_STEPS)
        if first >= held:
            return np.empty(0, STEP_DTYPE)
        content = self._pread((held - first) * record_bytes, head.size + first * record_bytes)
        self._read = held
        steps = old_formats.sound_steps(old_formats.read_steps(content, head.version))
        return np.asarray(steps[steps["sequence"] > number])

    def _pread(self, size: int, offset: int) -> bytes:
        descriptor = open_records(self._file)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)


class ReportTail:
    """What one process says of itself, in its file of messages: its place in the device mesh, its
    settings, its exceptions."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFollower(path)
        self._last = 0
        """The number of the last message that was read."""

    def read_new(self) -> Iterator[dict[str, Any]]:
        """Yields the messages of rare kinds that were not read before, also where the file was
        written anew."""
        lines, _ = self._lines.read_new()
        rare = [line for line in lines if logged.is_rare(line)]
        for said in logged.decode(b"\n".join(rare)):
            number = said.get("number")
            if not isinstance(number, int) or number <= self._last:
                continue
            self._last = number
            if said.get("kind") in logged.RARE_KINDS:
                yield said


@dataclass(frozen=True, slots=True)
class _SeenOnNode:
    """What a node's agent saw go wrong, by its file of this inode, size and time."""

    version: tuple[int, int, int]
    seen: AgentSaw


class NodeTails:
    """Follows the processes of a run's other nodes, for the agent of its head."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[Path, RecordTail] = {}
        self._reports: dict[Path, ReportTail] = {}
        """By the same path."""
        self._of_rank: dict[int, RecordTail] = {}
        """The youngest process of each rank."""
        self._pids = PidTable()
        self._states: dict[Path, NodeState] = {}
        """What each node's folder said about it when it was last looked at."""
        self._samples: dict[Path, SampleTail] = {}
        self._seen: dict[Path, _SeenOnNode] = {}
        self._pids_without_steps: dict[tuple[Path, int], int] = {}
        """The numbers of processes that a node's agent names and that have no steps here."""

    def follow(self, recent: RecentSteps, own_pids: Iterable[int]) -> bool:
        """Adds what is new to the last steps, and what the processes that take them say of
        themselves; returns whether other nodes have sent any steps.

        `own_pids` are the processes of this machine: no process of another node gets their numbers.
        """
        self._pids.reserve(own_pids)
        for node in node_folders(self._folder):
            state = read_node(node)
            if state is not None:
                self._states[node] = state
            if node not in self._samples:
                room = MAX_NODE_SAMPLES // (len(self._samples) + 1)
                most = max(MIN_SAMPLES, min(MAX_SAMPLES, room))
                self._samples[node] = SampleTail(node, most)
            self._samples[node].read()
            ahead_ns = round(1e9 * ((state and state.clock_offset_s) or 0.0))
            for stem, (name, size) in _newest_files(node).items():
                tail = self._processes.setdefault(node / stem, RecordTail(node / stem))
                with suppress(UnreadableRecords, OSError):  # only just made, or gone meanwhile
                    if not tail.is_over and tail.grow(name, size, self._pids, ahead_ns):
                        self._add(recent, tail)
                self._read_reports(recent, tail, ahead_ns)
            self._read_seen(node)
        return bool(self._processes)

    def seen(self) -> tuple[AgentSaw, ...]:
        """Returns what the agents of the other nodes saw go wrong, on the head's clock, as of the
        last look; of most runs nothing."""
        wrong = {node: each.seen for node, each in self._seen.items() if each.seen != NOTHING_SEEN}
        return tuple(
            shift_seen(
                seen,
                self._pids_on(node, seen),
                self._states[node].clock_offset_s or 0.0,
                PurePosixPath(NODES, node.name),
            )
            for node, seen in wrong.items()
        )

    def _read_reports(self, recent: RecentSteps, tail: RecordTail, ahead_ns: int) -> None:
        """Adds what a process says of itself, once its number among those of all nodes is known."""
        if tail.pid is None:
            return
        reports = self._reports.get(tail.path)
        if reports is None:
            messages = tail.path.with_name(f"{tail.path.name}.messages")
            reports = self._reports[tail.path] = ReportTail(messages)
        recent.add_messages(
            [
                json.dumps(shift_message(said, tail.pid, ahead_ns), separators=(",", ":")).encode()
                for said in reports.read_new()
            ]
        )

    def _read_seen(self, node: Path) -> None:
        """Reads what a node's agent saw, where that has changed."""
        state, before = self._states.get(node), self._seen.get(node)
        try:
            found = (node / failures.SEEN).stat(follow_symlinks=False)
        except OSError:  # nothing has gone wrong there
            return
        version = (found.st_ino, found.st_size, found.st_mtime_ns)
        if state is not None and (before is None or before.version != version):
            self._seen[node] = _SeenOnNode(version, failures.read_seen(node, state.hostname))

    def _pids_on(self, node: Path, seen: AgentSaw) -> dict[int, int]:
        """Returns the numbers, among those of all nodes, of the processes that a node's agent
        names."""
        known = {
            tail.own_pid: tail.pid
            for path, tail in self._processes.items()
            if path.parent == node and tail.own_pid is not None and tail.pid is not None
        }
        named = {each.pid for stall in seen.stalls for each in stall.ranks}
        for pid in (named | {death.pid for death in seen.deaths}) - known.keys():
            if (node, pid) not in self._pids_without_steps:
                self._pids_without_steps[node, pid] = self._pids.of_process(pid)
            known[pid] = self._pids_without_steps[node, pid]
        return known

    def nodes(self, window: RunRecords) -> tuple[NodeRecords, ...]:
        """Returns the machines of these last steps, the head first, with their last samples; none
        before another node has sent any."""
        head = read_node(self._folder)
        if head is None or not self._processes:
            return ()
        final = {record.rank.pid: record.rank.rank for record in window.ranks}
        numbers = dict(final)
        ranks: dict[Path, set[int]] = {node: set() for node in self._states}
        pids: dict[Path, dict[int, int]] = {node: {} for node in self._states}
        for path, tail in self._processes.items():
            if tail.pid is not None and tail.own_pid is not None and path.parent in pids:
                pids[path.parent][tail.own_pid] = tail.pid
            if tail.pid in numbers and path.parent in ranks:
                ranks[path.parent].add(numbers.pop(tail.pid))
        own = NodeRecords(
            replace(head, way=NodeWay.HEAD, clock_offset_s=0.0, clock_uncertainty_s=0.0),
            tuple(sorted(numbers.values())),
            window.samples,
        )
        others = (
            NodeRecords(
                replace(state, name=node.name),
                tuple(sorted(ranks[node])),
                by_final_rank(self._samples_of(node, pids[node]), final),
                pids=tuple(sorted(pids[node].values())),
            )
            for node, state in self._states.items()
        )
        return own, *others

    def _samples_of(self, node: Path, pids: dict[int, int]) -> tuple[Sample, ...]:
        """Returns the last samples of a node on the head's clock, with the numbers of its processes
        among those of all nodes."""
        known = self._samples.get(node)
        last = () if known is None else tuple(known.last)
        return shift_samples(last, pids, self._states[node].clock_offset_s or 0.0)

    def _add(self, recent: RecentSteps, tail: RecordTail) -> None:
        rank = tail.head().rank
        before = self._of_rank.setdefault(rank.rank, tail)
        if before is not tail:  # the rank was restarted
            if before.head().rank.unix_ns > rank.unix_ns:
                tail.is_over = True
                return
            before.is_over = True
            recent.follow(before, is_last=True)
            self._of_rank[rank.rank] = tail
        tail.is_over = bool(tail.head().counters["ended"])
        recent.follow(tail, is_last=tail.is_over)


def _newest_files(node: Path) -> dict[str, tuple[str, int]]:
    """Returns the newest record file of each process of a node, and its size, by stem."""
    found: dict[str, tuple[str, int]] = {}
    with os.scandir(node) as entries:
        for entry in entries:
            parts = _SEGMENT.fullmatch(entry.name)
            if parts and entry.name > found.get(parts[1], ("", 0))[0]:
                found[parts[1]] = entry.name, entry.stat(follow_symlinks=False).st_size
    return found
