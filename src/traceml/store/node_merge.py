"""Puts the records of several nodes together: on one clock, and with process numbers that no two
nodes share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import msgspec

from traceml.model.failure import AgentSaw, FailureReport, Stall
from traceml.model.lineage import Lineage
from traceml.model.node import NodeState
from traceml.model.rank import Rank, ScriptStart
from traceml.model.run import Ending, Manifest
from traceml.model.sample import GpuSample, ProcessSample, Sample, StackBurst
from traceml.store.layer_records import LayerRecords
from traceml.store.node_folders import NODES
from traceml.store.node_stalls import merge_stalls
from traceml.store.records import RankRecords
from traceml.store.step_trace_records import StepTraceRecords

PID_LIMIT = 1 << 22
"""No process of a Linux machine has a higher number."""
MAX_LATER_END_S = 10.0
"""How much later than the head's the training of another machine may end in one job that ended: its
ranks are stopped one after the other, and clocks are aligned within milliseconds."""


@dataclass
class FolderRecords:
    """What one node's folder holds, before the ranks of all nodes are numbered."""

    manifest: Manifest
    processes: list[RankRecords]
    starts: tuple[ScriptStart, ...]
    messages: list[dict[str, Any]]
    samples: tuple[Sample, ...]
    ending: Ending | None
    reports: tuple[FailureReport, ...]
    seen: AgentSaw
    artifact_hashes: dict[str, Any]
    lineage: Lineage | None
    stack_bursts: tuple[StackBurst, ...]
    layers: tuple[LayerRecords, ...]
    step_traces: tuple[StepTraceRecords, ...]
    notes: list[str]


def bring_together(own: FolderRecords, others: list[tuple[NodeState, FolderRecords]]) -> None:
    """Brings the records of other nodes to the head's clock, and gives their processes numbers that
    no process of another node has."""
    pids = PidTable()
    pids.of_node(_pids(own))
    for state, part in others:
        ahead_s, new = state.clock_offset_s or 0.0, pids.of_node(_pids(part))
        ahead_ns = round(ahead_s * 1e9)
        part.processes = [_shift_process(each, new, ahead_ns) for each in part.processes]
        part.starts = tuple(_shift_start(each, new, ahead_s) for each in part.starts)
        _shift_messages(part.messages, ahead_s)
        part.samples = shift_samples(part.samples, new, ahead_s)
        part.reports = tuple(_shift_report(each, new, ahead_s) for each in part.reports)
        part.seen = shift_seen(part.seen, new, ahead_s, PurePosixPath(NODES, state.name))
        part.stack_bursts = tuple(_shift_burst(each, new, ahead_s) for each in part.stack_bursts)
        part.layers = tuple(replace(each, pid=new.get(each.pid, each.pid)) for each in part.layers)
        part.step_traces = tuple(_moved_traces(each, new, state) for each in part.step_traces)
        if part.ending is not None:
            pid = part.ending.pid
            part.ending = replace(
                part.ending,
                unix_s=part.ending.unix_s - ahead_s,
                pid=None if pid is None else new.get(pid, pid),
            )


def ending_of_job(
    own: FolderRecords, others: list[tuple[NodeState, FolderRecords]]
) -> Ending | None:
    """Returns how the run ended, once it is on one clock: as its head did, unless other machines
    trained on without it; then as the last of them did."""
    if own.ending is None:
        return None
    # A clock that was not measured may be hours apart.
    measured = [part for state, part in others if state.clock_offset_s is not None]
    trained_unix_s = max(
        (_last_step_unix_s(each) for part in measured for each in part.processes), default=0.0
    )
    if trained_unix_s <= own.ending.unix_s + MAX_LATER_END_S:
        return own.ending
    endings = [part.ending for part in measured if part.ending is not None]
    last = max(endings, key=lambda ending: ending.unix_s, default=own.ending)
    if trained_unix_s <= last.unix_s + MAX_LATER_END_S:
        return replace(last, unix_s=max(last.unix_s, trained_unix_s))
    return Ending(trained_unix_s)  # nobody saw how the machine ended that trained until then


def _last_step_unix_s(process: RankRecords) -> float:
    if not len(process.steps):
        return 0.0
    last = int(process.steps["start_ns"][-1]) + max(int(process.steps["wall_ns"][-1]), 0)
    return process.rank.unix_s(last)


def _pids(part: FolderRecords) -> set[int]:
    """Returns the numbers of all processes that a folder names."""
    return {
        *(each.rank.pid for each in part.processes),
        *(each.pid for each in part.starts),
        *(each.pid for each in part.reports),
        *(each.pid for each in part.seen.deaths),
        *part.seen.scripts,
        *(each.pid for each in part.layers),
        *(each.pid for each in part.step_traces),
        *(process.pid for sample in part.samples for process in sample.processes),
        *([] if part.ending is None or part.ending.pid is None else [part.ending.pid]),
    }


def _shift_start(start: ScriptStart, pids: dict[int, int], ahead_s: float) -> ScriptStart:
    unix_s = None if start.unix_s is None else start.unix_s - ahead_s
    return replace(start, pid=pids.get(start.pid, start.pid), unix_s=unix_s)


def _moved_traces(
    traces: StepTraceRecords, pids: dict[int, int], node: NodeState
) -> StepTraceRecords:
    """Returns the traces of another node, whose files lie in its folder."""
    place = PurePosixPath(NODES, node.name)
    kept = tuple(msgspec.structs.replace(each, file=str(place / each.file)) for each in traces.kept)
    return replace(traces, pid=pids.get(traces.pid, traces.pid), kept=kept)


def _shift_process(record: RankRecords, pids: dict[int, int], ahead_ns: int) -> RankRecords:
    pid = pids.get(record.rank.pid, record.rank.pid)
    return replace(record, rank=shift_rank(record.rank, pid, ahead_ns))


def shift_rank(rank: Rank, pid: int, ahead_ns: int) -> Rank:
    """Returns a rank of a node whose clock is ahead of the head's by so much, under a process
    number that no other node has."""
    started_ns = rank.process_unix_ns
    return replace(
        rank,
        pid=pid,
        unix_ns=rank.unix_ns - ahead_ns,
        process_unix_ns=started_ns - ahead_ns if started_ns else 0,
    )


def seen_by_all(seen: Sequence[AgentSaw]) -> AgentSaw:
    """Returns what the agents of all nodes saw go wrong, given that of each on one clock."""
    if len(seen) == 1:
        return seen[0]
    deaths = (each for part in seen for each in part.deaths)
    return AgentSaw(
        deaths=tuple(sorted(deaths, key=lambda death: death.unix_s)),
        stalls=merge_stalls([part.stalls for part in seen]),
        scripts=tuple(each for part in seen for each in part.scripts),
    )


class PidTable:
    """Gives each process of a run over several nodes a number that no other one has.

    A process keeps the number that its machine gave it, unless one of another node has the same.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def of_node(self, pids: Iterable[int]) -> dict[int, int]:
        """Returns the numbers of one node's processes by those that its machine gave them."""
        found = {pid: self._free(pid) for pid in sorted(set(pids))}
        self.reserve(found.values())
        return found

    def of_process(self, pid: int) -> int:
        """Returns the number of one more process of any node."""
        return self.of_node([pid])[pid]

    def reserve(self, pids: Iterable[int]) -> None:
        """Keeps these numbers for the processes that have them."""
        self._taken.update(pids)

    def _free(self, pid: int) -> int:
        while pid in self._taken:
            pid += PID_LIMIT
        return pid


def shift_samples(
    samples: tuple[Sample, ...], pids: dict[int, int], ahead_s: float
) -> tuple[Sample, ...]:
    """Returns the samples of a node whose clock is ahead of the head's by so much."""
    return tuple(
        replace(
            sample,
            unix_s=sample.unix_s - ahead_s,
            processes=_renumber(sample.processes, pids),
            gpus=_shift_gpus(sample.gpus, ahead_s),
        )
        for sample in samples
    )


def _renumber(
    processes: tuple[ProcessSample, ...], pids: dict[int, int]
) -> tuple[ProcessSample, ...]:
    if all(pids.get(process.pid, process.pid) == process.pid for process in processes):
        return processes
    return tuple(replace(process, pid=pids.get(process.pid, process.pid)) for process in processes)


def _shift_gpus(gpus: tuple[GpuSample, ...], ahead_s: float) -> tuple[GpuSample, ...]:
    if not any(gpu.intervals for gpu in gpus):
        return gpus
    return tuple(
        replace(
            gpu,
            intervals=tuple(
                each._replace(
                    begin_unix_s=each.begin_unix_s - ahead_s,
                    end_unix_s=each.end_unix_s - ahead_s,
                )
                for each in gpu.intervals
            ),
        )
        for gpu in gpus
    )


def shift_seen(
    seen: AgentSaw, pids: dict[int, int], ahead_s: float, folder: PurePosixPath
) -> AgentSaw:
    """Returns what a node's agent saw go wrong, with other process numbers, on the head's clock;
    its stacks lie in the node's folder."""
    return AgentSaw(
        deaths=tuple(
            replace(death, pid=pids.get(death.pid, death.pid), unix_s=death.unix_s - ahead_s)
            for death in seen.deaths
        ),
        stalls=tuple(_shift_stall(stall, pids, ahead_s, folder) for stall in seen.stalls),
        scripts=tuple(pids.get(pid, pid) for pid in seen.scripts),
    )


def _shift_stall(
    stall: Stall, pids: dict[int, int], ahead_s: float, folder: PurePosixPath
) -> Stall:
    return replace(
        stall,
        since_unix_s=stall.since_unix_s - ahead_s,
        seen_unix_s=stall.seen_unix_s - ahead_s,
        first_seen_unix_s=_earlier(stall.first_seen_unix_s, ahead_s),
        resumed_unix_s=_earlier(stall.resumed_unix_s, ahead_s),
        ranks=tuple(replace(each, pid=pids.get(each.pid, each.pid)) for each in stall.ranks),
        stacks=tuple(str(folder / name) for name in stall.stacks),
        collectives=tuple(
            replace(each, since_unix_s=each.since_unix_s - ahead_s) for each in stall.collectives
        ),
    )


def _shift_report(report: FailureReport, pids: dict[int, int], ahead_s: float) -> FailureReport:
    """The same for an exception that a process of the node left."""
    started_by = report.started_by
    return replace(
        report,
        pid=pids.get(report.pid, report.pid),
        started_by=None if started_by is None else pids.get(started_by, started_by),
        unix_s=report.unix_s - ahead_s if report.unix_s else report.unix_s,
    )


def _shift_burst(burst: StackBurst, pids: dict[int, int], ahead_s: float) -> StackBurst:
    """The same for looks at a training thread of the node."""
    return replace(
        burst,
        pid=pids.get(burst.pid, burst.pid),
        samples=tuple(replace(each, unix_s=each.unix_s - ahead_s) for each in burst.samples),
    )


def _shift_messages(messages: Iterable[dict[str, Any]], ahead_s: float) -> None:
    """The same for messages of the node's processes, in place."""
    ahead_ns = round(ahead_s * 1e9)
    for message in messages:
        _shift_moments(message, ahead_ns)


def shift_message(message: dict[str, Any], pid: int, ahead_ns: int) -> dict[str, Any]:
    """Returns a message of a process of another node under a number that no other node has, with
    its moments on the head's clock."""
    found = {**message, "pid": pid}
    _shift_moments(found, ahead_ns)
    return found


def _shift_moments(message: dict[str, Any], ahead_ns: int) -> None:
    """Brings the moments that a message names to the head's clock, in place; an exception whose
    moment is not known has 0.0."""
    if isinstance(message.get("unix_ns"), int):
        message["unix_ns"] -= ahead_ns
    if isinstance(message.get("unix_s"), float) and message["unix_s"]:
        message["unix_s"] -= ahead_ns / 1e9


def _earlier(unix_s: float | None, by_s: float) -> float | None:
    return None if unix_s is None else unix_s - by_s
