"""Groups the processes of a run into attempts, each one start of all its ranks, and numbers their
steps.

An attempt's first step has the same number on every rank: one more than the highest number that any
rank reached in the attempt before. A rank that did not come that far has a gap in its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from traceml.model.node import NodeWay
from traceml.store.records import RankRecords, RunRecords
from traceml.store.restarted_ranks import ProcessSpan
from traceml.store.step_records import next_number

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process of a rank, with or without steps."""

    rank: int
    pid: int
    hostname: str
    began_unix_s: float
    ended_unix_s: float
    restart: int | None
    records: RankRecords | None = None
    numbered_steps: int = 0
    """How many step numbers the process has used, including those of lost steps."""
    first_step_unix_s: float = math.inf
    has_known_clock: bool = True
    """Whether its times can be compared with those of other machines."""

    @property
    def identity(self) -> tuple[str, int]:
        """Its machine and its pid: containers on two machines often have equal pids."""
        return self.hostname, self.pid


def hosts_without_clock(records: RunRecords) -> frozenset[str]:
    """Returns the machines whose clocks were not compared with the head's: they may be hours
    apart."""
    states = (node.state for node in records.nodes)
    return frozenset(
        state.hostname
        for state in states
        if state.way is not NodeWay.HEAD and state.clock_offset_s is None
    )


def has_records(process: RankRecords) -> bool:
    """Returns whether a process recorded any time at all."""
    return bool(len(process.steps) or len(process.blocks))


def span_unix_s(process: RankRecords) -> tuple[float, float]:
    """Returns when the first record of a process began and its last one ended."""
    steps, blocks, rank = process.steps, process.blocks, process.rank
    first = blocks[0]["start_ns"] if len(blocks) else steps["start_ns"][0]
    if len(steps):
        last = steps["start_ns"][-1] + max(int(steps["wall_ns"][-1]), 0)
    else:
        wall = blocks[-1]["wall_ns_sum"] + blocks[-1]["incomplete_wall_ns"]
        last = blocks[-1]["start_ns"] + wall
    return rank.unix_s(int(first)), rank.unix_s(int(last))


def started_processes(records: RunRecords) -> list[StartedProcess]:
    """Returns the processes of the ranks in the order in which they were started."""
    ends = {(death.hostname, death.pid): death.unix_s for death in records.seen.deaths}
    unmeasured = hosts_without_clock(records)
    found = []
    for each in records.processes or records.ranks:
        if not has_records(each):
            continue
        rank, (began_s, ended_s) = each.rank, span_unix_s(each)
        started_s = rank.process_unix_ns / 1e9 or began_s
        restart = None if each.resumption is None else each.resumption.restart
        found.append(
            StartedProcess(
                rank.rank,
                rank.pid,
                rank.hostname,
                min(started_s, began_s),
                max(_end_unix_s(ends, rank.hostname, rank.pid, ended_s), ended_s),
                restart,
                each,
                next_number(each),
                began_s,
                rank.hostname not in unmeasured,
            )
        )
    trained = {each.identity for each in found}
    for start in records.starts:  # ranks that a launcher started, and that took no step
        has_trained = (start.hostname, start.pid) in trained
        if start.rank is not None and start.unix_s is not None and not has_trained:
            ended_s = _end_unix_s(ends, start.hostname, start.pid, math.inf)
            found.append(
                StartedProcess(
                    start.rank,
                    start.pid,
                    start.hostname,
                    start.unix_s,
                    max(ended_s, start.unix_s),
                    start.restart,
                    has_known_clock=start.hostname not in unmeasured,
                )
            )
    return sorted(found, key=_in_order)


def _end_unix_s(
    ends: Mapping[tuple[str, int], float], hostname: str, pid: int, otherwise_unix_s: float
) -> float:
    """Returns when a process was seen to end; nobody may have said on which machine that was."""
    return ends.get((hostname, pid), ends.get(("", pid), otherwise_unix_s))


class AttemptGroup:
    """The processes of one attempt, found one after the other."""

    def __init__(self, processes: Sequence[StartedProcess] = (), have_waited: bool = False) -> None:
        """`have_waited` says that these processes were started before the attempt began, and waited
        for it."""
        self.processes: list[StartedProcess] = []
        self._waited = {each.identity for each in processes} if have_waited else set()
        self._ranks: set[int] = set()
        self._restarts: dict[str, set[int | None]] = {}
        """The counts of restarts by their launchers, by machine."""
        self._ended_unix_s: float | None = None
        """When the last of the processes whose clock is known has ended."""
        self.world_size = 0
        """How many ranks the attempt had, including those that were moved to another group."""
        for process in processes:
            self.add(process)

    def add(self, process: StartedProcess) -> None:
        """Adds one more process to the attempt."""
        self.processes.append(process)
        self._ranks.add(process.rank)
        self.world_size = max(self.world_size, len(self.processes))
        self._restarts.setdefault(process.hostname, set()).add(process.restart)
        if process.has_known_clock:
            self._ended_unix_s = max(self._ended_unix_s or 0.0, process.ended_unix_s)

    @property
    def began_unix_s(self) -> float:
        """When the attempt began: with the first process that did not have to wait for it."""
        started = [each for each in self.processes if each.identity not in self._waited]
        return min(each.began_unix_s for each in started or self.processes)

    def without_waiting(self, process: StartedProcess) -> tuple[AttemptGroup, list[StartedProcess]]:
        """Returns the group without the processes that waited for the next attempt, and these.

        They began no step before `process`, of the next attempt, was started: their launcher had no
        reason to start them again while ranks of another machine failed to begin.
        """
        waiting = [
            each
            for each in self.processes
            if each.has_known_clock == process.has_known_clock
            and each.rank != process.rank
            and process.began_unix_s < each.first_step_unix_s < math.inf
        ]
        rest = AttemptGroup([each for each in self.processes if each not in waiting])
        rest.world_size = self.world_size
        return rest, waiting

    def is_before(self, process: StartedProcess) -> bool:
        """Returns whether a process belongs to a later attempt than this one: its launcher counts
        more restarts, its rank is already in this attempt, or all processes of this attempt had
        ended when it began.

        Counts of restarts are compared within one machine only: in one attempt, two machines may
        count differently.
        """
        counts = self._restarts.get(process.hostname, set())
        is_there = process.rank in self._ranks
        if process.restart is not None and counts and None not in counts:
            if all(count is not None and process.restart > count for count in counts):
                return True
            if process.restart in counts and not is_there:
                return False
        if is_there or self._ended_unix_s is None or not process.has_known_clock:
            return is_there
        return self._ended_unix_s <= process.began_unix_s


def group_attempts(processes: Sequence[StartedProcess]) -> list[AttemptGroup]:
    """Returns the processes of each attempt."""
    groups = [AttemptGroup()]
    for process in processes:
        if groups[-1].processes and groups[-1].is_before(process):
            groups[-1], waiting = groups[-1].without_waiting(process)
            groups.append(AttemptGroup(waiting, have_waited=True))
        groups[-1].add(process)
    return [group for group in groups if group.processes]


def first_numbers(groups: Sequence[AttemptGroup]) -> list[int]:
    """Returns the number, from 0, of the first step of each attempt."""
    counts = [max(each.numbered_steps for each in group.processes) for group in groups]
    return list(accumulate(counts[:-1], initial=0))


def group_lives(
    lives_by_rank: Iterable[tuple[int, Sequence[T]]], span_of: Callable[[T], ProcessSpan]
) -> list[list[T]]:
    """Returns the processes of each attempt, of all that took steps, given by rank."""
    found = [
        (_started(number, span), life)
        for number, lives in lives_by_rank
        for life in lives
        if (span := span_of(life)).began_ns is not None
    ]
    groups = group_attempts(sorted((each for each, _ in found), key=_in_order))
    life_of = {id(each): life for each, life in found}
    return [[life_of[id(each)] for each in group.processes] for group in groups]


def _started(number: int, span: ProcessSpan) -> StartedProcess:
    rank, began_ns = span.rank, span.began_ns or 0
    began_s = rank.unix_s(began_ns)
    started_s = min(rank.process_unix_ns / 1e9 or began_s, began_s)
    ended_s = math.inf if span.ended_ns is None else max(rank.unix_s(span.ended_ns), began_s)
    return StartedProcess(
        number,
        rank.pid,
        rank.hostname,
        started_s,
        ended_s,
        span.restart,
        first_step_unix_s=began_s,
    )


def _in_order(process: StartedProcess) -> tuple[float, int]:
    return process.began_unix_s, process.pid
