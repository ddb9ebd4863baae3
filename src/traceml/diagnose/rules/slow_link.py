"""Slow link: communication waits for one machine whose ranks compute as fast as the others.

*Meaning.* In a run over several machines, ranks wait for data to travel, and one machine is the
reason: its ranks compute as fast as the others, yet an exchange with it takes much longer than with
the others, or its ranks arrive late in communication. Its network card, cable or switch port is
suspect, or a path between the machines that is longer than it should be.

*Measured.* The exchange is the shortest round trip between a node's agent and the head's, of
several. Where it is long for every other node, the head is named, and that it may be the network
between all machines; of two machines both are named, because they have one link. Arrivals are
moments of different machines: their clocks are aligned by the offset that each agent measured
against the head's, and a node counts as late only where it is late by more than the clocks may be
apart, with what they may drift by since then (50 µs a second), and its ranks' own work does not
explain it. Where nobody waited for that long, a clock was set during the run: then its arrivals are
not known.

*Evidence.* `node`, `arrival_late_ms`, `clock_uncertainty_ms`, `late_share` (of the steps),
`own_excess_ms` (what its ranks compute longer than the others), `round_trip_ms`,
`other_round_trip_ms`, `exposed_ms`, `diagnosis_clock`.

*Thresholds.* Exposed communication of 10 % of the step and 1 ms; own work longer than the others'
by less than 5 % of the step. A slow exchange: 5 ms and five times that of the other nodes, and no
longer than twice what a step waits, because another network may carry the training. Late: by 5 %
of the step and 3 ms more than its own work explains, by more than the clocks may be apart, in 75 %
of at least 30 steps.

*What to do.* Test the link with `iperf3` and `ping` between that machine and another; look at
the card's speed and errors (`ethtool`, `ethtool -S`); see that the training uses the interface you
mean (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`).

*Silent* on one machine, where communication was not measured, and about more than half of the
nodes: then it is the network as a whole. Arrivals are not known where a GPU works behind its host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceml.diagnose.nodes import FEW_MACHINES, listed_nodes
from traceml.diagnose.rule import Doc, Remedy, Rule, RuleRole, Symptom, Turn, lost
from traceml.facts.facts import Facts
from traceml.facts.nodes import NodeFacts
from traceml.model.evidence import Evidence, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.node import NodeWay
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration

KIND = Kind.SLOW_LINK

EXPOSED_SHARE = 0.10  # of the step, as COMM_BOUND: below it a faster link would not be noticed
EXPOSED_S = 0.001
LATE_SHARE = 0.05  # of the step
LATE_S = 0.003  # a rank that waits for a core is late by less
MIN_STEPS = 30  # of fewer, most may be late by chance
LATE_STEPS = 0.75  # of the steps: a link that is slow now and then is another matter
SAME_WORK = 0.05  # of the step: what ranks work longer than others may not be what is waited for
ROUND_TRIP_S = 0.005  # machines of one room answer within a millisecond, a busy agent included
ROUND_TRIP_TIMES = 5.0  # that of the other nodes
MAX_ROUND_TRIPS = 2.0  # of what a step waits: a longer one is not on the training's way


def check(facts: Facts) -> Finding | None:
    """Fires when communication waits for machines whose ranks are not slow themselves."""
    exposed_s, step_s = facts.mean.communication_s, facts.mean.step_s
    if len(facts.nodes) < 2 or exposed_s is None or not step_s:
        return None
    if exposed_s < max(EXPOSED_S, EXPOSED_SHARE * step_s):
        return None
    # How long an exchange takes is measured; a late arrival may also follow from another's link.
    link = _far_link(facts.nodes, step_s, exposed_s) or _late_link(facts.nodes, step_s)
    if link is None:
        return None
    names, cost_s = tuple(node.name for node in link.nodes), min(exposed_s, link.cost_s)
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING,
        claim=link.claim,
        action=(
            f"Test the link of {listed_nodes(names)} against another machine (iperf3, ping), look "
            "at its network card's speed and errors (ethtool, ethtool -S), and see that the "
            "training uses the interface that you mean (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)."
        ),
        phase=Phase.COMMUNICATION,
        share=cost_s / step_s,
        ranks=tuple(sorted(rank for node in link.nodes for rank in node.ranks)),
        nodes=names,
        lost_s_per_step=cost_s,
        evidence=_evidence(facts, link, exposed_s),
    )


@dataclass(frozen=True, slots=True)
class _SlowLink:
    """The machines whose link is slow, the worst one first, and how that is known."""

    nodes: tuple[NodeFacts, ...]
    claim: str
    cost_s: float
    round_trip_s: float | None


# A long exchange


def _far_link(nodes: Sequence[NodeFacts], step_s: float, exposed_s: float) -> _SlowLink | None:
    """Returns the machines with which an exchange takes so long that it explains the waiting."""
    head = next((node for node in nodes if node.way is NodeWay.HEAD), None)
    far = [node for node in nodes if _is_far(node, exposed_s)]
    alone = [node for node in far if _is_far_alone(node) and _works_alike(node, step_s)]
    if alone and len(alone) <= FEW_MACHINES * len(nodes) and len(nodes) > 2:
        alone.sort(key=_trip_s, reverse=True)
        trip_s = _trip_s(alone[0])
        return _SlowLink(tuple(alone), _far_claim(alone[0]), trip_s, trip_s)
    if head is not None and len(far) == len(nodes) - 1:
        return _link_of_head(head, far, step_s)
    return None


def _link_of_head(head: NodeFacts, others: Sequence[NodeFacts], step_s: float) -> _SlowLink | None:
    """Returns the link of the head, where an exchange with it takes long for every other node."""
    if not all(_works_alike(node, step_s) for node in (head, *others)):
        return None
    trip_s = min(map(_trip_s, others))
    takes = f"takes at least {duration(trip_s)}, while the ranks of all machines compute alike"
    if len(others) == 1:
        claim = (
            f"Every collective waits for the link between {head.name} and {others[0].name}: an "
            f"exchange between them {takes}."
        )
        return _SlowLink((head, *others), claim, trip_s, trip_s)
    claim = (
        f"Every collective waits for the link of {head.name}, or for the network between all "
        f"machines: an exchange between it and each of {count(len(others))} others {takes}."
    )
    return _SlowLink((head,), claim, trip_s, trip_s)


def _trip_s(node: NodeFacts) -> float:
    return node.round_trip_s or 0.0


def _is_far(node: NodeFacts, exposed_s: float) -> bool:
    """Returns whether an exchange with the head takes long, but not longer than a step waits."""
    return ROUND_TRIP_S <= _trip_s(node) <= MAX_ROUND_TRIPS * exposed_s


def _is_far_alone(node: NodeFacts) -> bool:
    """Returns whether an exchange with this node takes much longer than with the others."""
    return _trip_s(node) >= ROUND_TRIP_TIMES * (node.others_round_trip_s or 0.0)


def _works_alike(node: NodeFacts, step_s: float) -> bool:
    """Returns whether the ranks of a node are known to work no longer than those of the others, as
    far as a step would notice."""
    excess_s = _own_excess_s(node)
    return excess_s is not None and excess_s < SAME_WORK * step_s


def _own_excess_s(node: NodeFacts) -> float | None:
    """Returns what the ranks of a node work longer than those of the others, on average."""
    if node.own_s is None or node.others_own_s is None:
        return None
    return node.own_s - node.others_own_s


# Late arrivals


def _late_link(nodes: Sequence[NodeFacts], step_s: float) -> _SlowLink | None:
    """Returns the machines whose ranks arrive late though they work no longer than the others."""
    late = sorted((node for node in nodes if _is_late(node, step_s)), key=_late_s, reverse=True)
    if not late or len(late) > FEW_MACHINES * len(nodes):
        return None
    worst = late[0]
    return _SlowLink(tuple(late), _late_claim(worst), _late_s(worst), worst.round_trip_s)


def _is_late(node: NodeFacts, step_s: float) -> bool:
    """Returns whether a node's ranks arrive late for certain, in nearly every step, and by more
    than their own work explains."""
    arrival = node.arrival
    if arrival is None or not arrival.is_certain or not _works_alike(node, step_s):
        return False
    late_s = arrival.late_s - max(0.0, _own_excess_s(node) or 0.0)
    if arrival.steps < MIN_STEPS or late_s < max(LATE_S, LATE_SHARE * step_s):
        return False
    return arrival.late_share >= LATE_STEPS


def _late_s(node: NodeFacts) -> float:
    return 0.0 if node.arrival is None else node.arrival.late_s


def _work(node: NodeFacts) -> str:
    own, usual = duration(node.own_s), duration(node.others_own_s)
    return f"({own} of own work against {usual})"


def _late_claim(node: NodeFacts) -> str:
    uncertain = None if node.arrival is None else node.arrival.uncertainty_s
    return (
        f"The ranks of {node.name} compute as fast as the others {_work(node)}, but are "
        f"ready to communicate {duration(_late_s(node))} later (clocks: ±{duration(uncertain)}): "
        f"every collective waits for {node.name}, whose network, or the link to it, is slow."
    )


def _far_claim(node: NodeFacts) -> str:
    elsewhere = node.others_round_trip_s
    beside = "" if elsewhere is None else f", and {duration(elsewhere)} with the others"
    return (
        f"Every collective waits for the link to {node.name}: an exchange with it takes at least "
        f"{duration(node.round_trip_s)}{beside}, while its ranks compute as fast as the others "
        f"{_work(node)}."
    )


def _evidence(facts: Facts, link: _SlowLink, exposed_s: float) -> Evidence:
    node = link.nodes[0]
    arrival = node.arrival
    return Evidence(
        as_words("node", node.name),
        in_ms("arrival_late_ms", None if arrival is None else arrival.late_s),
        in_ms("clock_uncertainty_ms", None if arrival is None else arrival.uncertainty_s),
        as_share("late_share", None if arrival is None else arrival.late_share),
        in_ms("own_excess_ms", _own_excess_s(node)),
        in_ms("round_trip_ms", link.round_trip_s),
        in_ms("other_round_trip_ms", node.others_round_trip_s),
        in_ms("exposed_ms", exposed_s),
        as_words("diagnosis_clock", facts.clock),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.CAUSE,
    explains=(Kind.COMM_BOUND,),
    turn=Turn.LATE_RANK,
    what_if=Remedy("if its link were as fast as the others'", lost),
    doc=Doc(
        "warn",
        "communication waits for one machine whose ranks are not slow",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
