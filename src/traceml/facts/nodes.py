"""The machines (nodes) of a run over several: how long their ranks take, when they arrive in
communication, and what their sensors say.

How long something takes is measured on one machine and needs no other clock. Only arrivals compare
moments of different machines: they are as uncertain as the clocks, and nobody may claim less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from traceml.facts.sensors import NOT_SAMPLED, HostFacts
from traceml.facts.step_table import Floats, StepTable
from traceml.facts.stragglers import median_of_others
from traceml.facts.times import StepTimes
from traceml.model.node import MAX_DRIFT, NodeState, NodeWay
from traceml.model.quantities import count
from traceml.model.rank import Rank
from traceml.model.sample import Sample
from traceml.store.records import NodeRecords

MAX_STEPS = 256
"""Arrivals are compared in the last steps: enough to see whether a node is always late."""
MAX_SAMPLES = 60_000
"""Of all nodes together: with more, each node's sensors are read in evenly spaced samples, so that
the summary of a thousand nodes takes seconds."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the ranks of one node arrive in communication, compared with those of the others."""

    late_s: float
    """The median over steps; negative where they are early."""
    uncertainty_s: float
    """How far the clocks that were compared may be apart, with drift since they were measured."""
    late_share: float
    """The share of the steps in which they are late by more than that uncertainty, 0–1."""
    steps: int = 0
    """How many steps were compared."""

    @property
    def is_certain(self) -> bool:
        """Whether they are late by more than the clocks may be apart."""
        return self.late_s > self.uncertainty_s


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One machine of a run over several; `None` means "not measured"."""

    name: str
    hostname: str = ""
    node_rank: int | None = None
    """Its number in the job, as its ranks know it."""
    ranks: tuple[int, ...] = ()
    way: NodeWay = NodeWay.COPIED
    version: str = ""
    is_complete: bool = True
    """Whether all its records are here."""
    missing: tuple[str, ...] = ()
    """What is not here, in words."""
    clock_offset_s: float | None = None
    clock_uncertainty_s: float | None = None
    host: HostFacts = NOT_SAMPLED
    step_s: float | None = None
    """The mean over its ranks, as the two that follow."""
    own_s: float | None = None
    communication_s: float | None = None
    slowest_rank: int | None = None
    """The one with the longest own time."""
    slowest_own_s: float | None = None
    arrival: Arrival | None = None
    others_own_s: float | None = None
    """The median of the other nodes that have one; of their round trips likewise."""
    others_round_trip_s: float | None = None

    @property
    def round_trip_s(self) -> float | None:
        """The shortest exchange between its agent and the head's; `None` for the head."""
        if self.way is NodeWay.HEAD or self.clock_uncertainty_s is None:
            return None
        return 2 * self.clock_uncertainty_s


def node_facts(
    nodes: Sequence[NodeRecords],
    ranks: Mapping[int, Rank],
    times: Mapping[int, StepTimes],
    table: StepTable | None,
    hosts: Mapping[str, HostFacts],
    is_over: bool,
) -> tuple[NodeFacts, ...]:
    """Returns the facts of each node, in their order; `times` and `ranks` are by global rank, and
    `hosts` says by a node's name what its samples tell about it."""
    arrivals = _arrivals(nodes, ranks, table)
    found = [
        _node(node, ranks, times, hosts[node.state.name], arrivals.get(node.state.name), is_over)
        for node in nodes
    ]
    own_s = _of_others({node.name: node.own_s for node in found})
    trips_s = _of_others({node.name: node.round_trip_s for node in found})
    return tuple(
        replace(
            node,
            others_own_s=own_s.get(node.name),
            others_round_trip_s=trips_s.get(node.name),
        )
        for node in found
    )


def _of_others(values: Mapping[str, float | None]) -> dict[str, float]:
    """Returns by name the median of the others' values, for those that have one themselves."""
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return {}
    medians = median_of_others(np.array(list(known.values())))
    return dict(zip(known, medians.tolist(), strict=True))


def _node(
    node: NodeRecords,
    ranks: Mapping[int, Rank],
    times: Mapping[int, StepTimes],
    host: HostFacts,
    arrival: Arrival | None,
    is_over: bool,
) -> NodeFacts:
    state = node.state
    measured = {rank: times[rank] for rank in node.ranks if rank in times}
    own = {rank: each.own_s for rank, each in measured.items() if each.own_s is not None}
    slowest = max(own, key=lambda rank: (own[rank], -rank), default=None)
    known = [ranks[rank].node_rank for rank in node.ranks if rank in ranks]
    return NodeFacts(
        name=state.name,
        hostname=state.hostname,
        node_rank=known[0] if known else None,
        ranks=node.ranks,
        way=state.way,
        version=state.traceml_version,
        is_complete=state.is_finished or state.way is NodeWay.HEAD,
        missing=tuple(_missing(node, state, is_over)),
        clock_offset_s=state.clock_offset_s,
        clock_uncertainty_s=state.clock_uncertainty_s,
        host=host,
        step_s=_mean(each.step_s for each in measured.values()),
        own_s=_mean(own.values()),
        communication_s=_mean(each.communication_s for each in measured.values()),
        slowest_rank=slowest,
        slowest_own_s=None if slowest is None else own[slowest],
        arrival=arrival,
    )


def _missing(node: NodeRecords, state: NodeState, is_over: bool) -> list[str]:
    """Returns what the records of a node lack, a few words each; during a run more may come."""
    found = []
    if is_over:
        if not state.is_finished and state.way is not NodeWay.HEAD:
            found.append("its last records")
        if not node.ranks:
            found.append("its ranks")
        if not node.samples:
            found.append("its sensors")
    if state.files_left:
        found.append(count(len(state.files_left), "file"))
    if state.clock_uncertainty_s is None:
        found.append("its clock's offset")
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def thinned(samples: Sequence[Sample], nodes: int) -> Sequence[Sample]:
    """Returns a node's samples; of those of very many nodes some, evenly spaced, with the first and
    the last."""
    most = max(2, MAX_SAMPLES // max(1, nodes))
    if len(samples) <= most:
        return samples
    chosen = np.linspace(0, len(samples) - 1, most).round().astype(int)
    return [samples[place] for place in chosen]


# Arrivals


def _arrivals(
    nodes: Sequence[NodeRecords], ranks: Mapping[int, Rank], table: StepTable | None
) -> dict[str, Arrival]:
    """Returns the arrivals of each node, by name; none where the clocks were not measured, where
    ranks did not measure communication, or where a GPU works behind its host, so that the host's
    moments say little."""
    if table is None or table.clock != "cpu" or len(nodes) < 2:
        return {}
    rows = {rank: row for row, rank in enumerate(table.ranks)}
    compared = [
        (node, [rows[rank] for rank in node.ranks if rank in rows])
        for node in nodes
        if node.state.clock_uncertainty_s is not None
    ]
    compared = [(node, found) for node, found in compared if found]
    moments = _arrival_moments_s(table, ranks)
    if len(compared) < 2 or moments is None:
        return {}
    of_nodes = [found for _, found in compared]
    by_node = np.stack([np.median(moments[found], axis=0) for found in of_nodes])
    late = by_node - median_of_others(by_node)
    uncertain = [_clock_uncertainty_s(node.state, table, ranks) for node, _ in compared]
    waits_s = _waits_s(table)
    by_node_s = np.array([np.median(waits_s[found]) for found in of_nodes])
    found = {
        node.state.name: _arrival(row, uncertain[place], uncertain[:place] + uncertain[place + 1 :])
        for place, ((node, _), row) in enumerate(zip(compared, late, strict=True))
    }
    most_s = zip(by_node_s.tolist(), median_of_others(by_node_s).tolist(), strict=True)
    return {
        name: arrival
        for (name, arrival), (own_s, others_s) in zip(found.items(), most_s, strict=True)
        if _is_possible(arrival, own_s, others_s)
    }


def _is_possible(arrival: Arrival, own_wait_s: float, others_wait_s: float) -> bool:
    """Returns whether a node's lateness was waited for: by the others, or by itself where it is
    early. Else a clock was set during the run, and its moments say nothing."""
    waited_s = others_wait_s if arrival.late_s > 0 else own_wait_s
    return abs(arrival.late_s) <= waited_s + arrival.uncertainty_s


def _clock_uncertainty_s(node: NodeState, table: StepTable, ranks: Mapping[int, Rank]) -> float:
    """Returns how wrong a node's clock may be in the steps that are compared: what was measured,
    and what it may have drifted by between then and the step that is furthest from it."""
    uncertainty_s = node.clock_uncertainty_s or 0.0
    if node.clock_unix_s is None:
        return uncertainty_s
    measured_s = node.clock_unix_s - (node.clock_offset_s or 0.0)
    first_ns = table.rank_steps[0].columns["start_ns"][_first_compared(table) :]
    if not len(first_ns):
        return uncertainty_s
    rank = ranks[table.ranks[0]]
    moments_s = (rank.unix_s(int(first_ns[0])), rank.unix_s(int(first_ns[-1])))
    return uncertainty_s + MAX_DRIFT * max(abs(each - measured_s) for each in moments_s)


def _waits_s(table: StepTable) -> Floats:
    """Returns each rank's median of what communication took in the steps that are compared."""
    first = _first_compared(table)
    return np.array(
        [
            np.median(np.maximum(steps.columns["communication_ns"][first:], 0)) * 1e-9
            for steps in table.rank_steps
        ]
    )


def _first_compared(table: StepTable) -> int:
    return max(table.warmup, len(table.index) - MAX_STEPS)


def _arrival(late: Floats, own_s: float, others_s: Sequence[float]) -> Arrival:
    uncertainty_s = own_s + median(others_s)
    return Arrival(
        late_s=float(np.median(late)),
        uncertainty_s=uncertainty_s,
        late_share=float((late > uncertainty_s).mean()),
        steps=len(late),
    )


def _arrival_moments_s(table: StepTable, ranks: Mapping[int, Rank]) -> Floats | None:
    """Returns when each rank (row) was ready to communicate in each of the last steps (column), in
    seconds since some moment on the head's clock; `None` where some rank did not measure
    communication, or no step was timed on all.

    That is the step's end less the communication and the optimizer, which follows it.
    """
    first = _first_compared(table)
    base_ns: int | None = None
    found = np.empty((len(table.ranks), len(table.index) - first))
    for row, (number, steps) in enumerate(zip(table.ranks, table.rank_steps, strict=True)):
        rank, columns = ranks[number], steps.columns
        communication = columns["communication_ns"][first:]
        if not (communication >= 0).any():
            return None
        ready_ns = (
            columns["start_ns"][first:].astype(np.int64)
            + columns["wall_ns"][first:]
            - np.maximum(communication, 0)
            - np.maximum(columns["optimizer_ns"][first:], 0)
            + (rank.unix_ns - rank.monotonic_ns)
        )
        if base_ns is None:
            base_ns = int(ready_ns[0]) if len(ready_ns) else 0
        found[row] = (ready_ns - base_ns) * 1e-9
    return found if found.size else None
