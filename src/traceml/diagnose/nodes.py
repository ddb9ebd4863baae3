"""Findings that name a machine of a run over several: rules about a machine are asked of each, and
late ranks that are all of one machine are told as that machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.facts.nodes import NodeFacts
from traceml.facts.sensors import HostFacts
from traceml.model.evidence import Evidence, Piece, as_share, as_words
from traceml.model.finding import Finding, Section
from traceml.model.quantities import count, percent

MAX_NAMED = 3
MIN_LATE_SHARE = 0.5
"""Of a machine's ranks: when more than this are late, it is the machine that is late."""
FEW_MACHINES = 0.5
"""Of all machines: when more than this are late, it is no matter of single machines."""


# Rules about a machine


def ask(rule: Rule, facts: Facts) -> Finding | None:
    """Returns what a rule finds; one about a machine is asked of each machine of several that was
    sampled, and the worst one that it finds is told, with the names of the others."""
    if not rule.is_about_a_machine or not facts.nodes:
        return rule.check(facts)
    sampled = [each for each in facts.by_node if each[0].host.samples]
    found = [
        (node, finding)
        for node, there in sampled or facts.by_node
        if (finding := rule.check(there)) is not None
    ]
    if not found:
        return None
    # Of what different kinds a rule finds, the worst one's is told; sorting keeps the nodes' order.
    sign = 1 if rule.is_worse_when_low else -1
    found.sort(key=lambda one: (-one[1].severity.weight, sign * (one[1].share or 0.0)))
    worst = found[0][1]
    alike = [node.name for node, finding in found if finding.kind is worst.kind]
    return replace(
        worst,
        claim=f"{_where(alike, len(facts.nodes))}: {_within_sentence(worst.claim)}",
        nodes=tuple(alike),
        evidence=Evidence(as_words("node", alike[0]), *worst.evidence.pieces),
    )


def _where(names: Sequence[str], nodes: int) -> str:
    if len(names) == 1:
        return f"Node {names[0]}"
    if len(names) == nodes:
        return f"{'Both' if nodes == 2 else f'All {count(nodes)}'} nodes, {names[0]} the most"
    return f"Node {names[0]}, and less so {listed_nodes(names[1:])}"


def _within_sentence(claim: str) -> str:
    """Returns a claim as it continues a sentence after a colon: in lower case, unless it begins
    with an acronym such as `CPU`."""
    return claim[:1].lower() + claim[1:] if claim[1:2].islower() else claim


def listed_nodes(names: Sequence[str]) -> str:
    """Returns the names of machines in a sentence; of many the first ones and their number."""
    if len(names) == 1:
        return names[0]
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} and {count(len(names) - MAX_NAMED)} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


# Findings about how a run went


def name_machines(finding: Finding, facts: Facts) -> Finding:
    """Returns a finding of the stability section with the machines of the ranks that it is about,
    where the run has several and it names none itself."""
    names = facts.node_names
    if finding.section is not Section.STABILITY or finding.nodes or not names:
        return finding
    found = dict.fromkeys(names[rank] for rank in finding.ranks if rank in names)
    return replace(finding, nodes=tuple(found))


# Late ranks


@dataclass(frozen=True, slots=True)
class LateNodes:
    """The machines whose ranks are late."""

    names: tuple[str, ...]
    words: str
    """The late ranks, told by their machines: `all 8 ranks of node-b`."""
    others: tuple[int, ...] = ()
    """Late ranks of other machines, most of whose ranks are not late."""


def late_nodes(facts: Facts, ranks: Sequence[int]) -> LateNodes | None:
    """Returns the machines that late ranks are told by; `None` where the ranks themselves say more:
    single ones of a machine, ranks of most machines, or a run on one machine."""
    where = facts.node_names
    if not where or any(rank not in where for rank in ranks):
        return None
    late, there = Counter(where[rank] for rank in ranks), Counter(where.values())
    names = tuple(sorted(name for name in late if late[name] > MIN_LATE_SHARE * there[name]))
    if not names or len(late) > FEW_MACHINES * len(there):
        return None
    theirs = tuple(rank for rank in ranks if where[rank] in names)
    others = tuple(rank for rank in ranks if where[rank] not in names)
    words = _ranks_of(names, theirs, sum(there[name] for name in names))
    if others:
        words += f", and {f'rank {others[0]}' if len(others) == 1 else f'{len(others)} others'}"
    return LateNodes(names, words, others)


def _ranks_of(names: Sequence[str], late: Sequence[int], there: int) -> str:
    """Returns late ranks by their machines, which have so many ranks together."""
    if len(late) == 1:
        return f"rank {late[0]} of {names[0]}"
    which = "all" if len(late) == there else f"{len(late)} of"
    return f"{which} {count(there, 'rank')} of {listed_nodes(names)}"


# What is known about a late machine


@dataclass(frozen=True, slots=True)
class _ComparedSensor:
    """A sensor by which machines are compared."""

    key: str
    read: Callable[[HostFacts], float | None]
    words: str
    """What is said of a machine, with its value and that of the others."""
    least: float
    """A machine has to differ by so much."""
    is_low_bad: bool = False


_COMPARED_SENSORS = (
    _ComparedSensor(
        "cpu_other_share",
        lambda host: host.cpu_other_share.mean,
        "other processes keep {} of its cores busy (elsewhere {})",
        0.15,
    ),
    _ComparedSensor(
        "cpu_steal_share",
        lambda host: host.cpu_steal_share.mean,
        "its hypervisor takes {} of its CPU time (elsewhere {})",
        0.05,
    ),
    _ComparedSensor(
        "cpu_throttled_share",
        lambda host: host.cpu_throttled_share.mean,
        "a CPU quota stops it for {} of the time (elsewhere {})",
        0.05,
    ),
    _ComparedSensor(
        "gpu_clock_share",
        lambda host: host.gpu_clock_share.mean,
        "its GPUs run at {} of their highest clock (elsewhere {})",
        0.08,
        is_low_bad=True,
    ),
    _ComparedSensor(
        "disk_busy_share",
        lambda host: host.disk_busy_share.mean,
        "its busiest disk is at work {} of the time (elsewhere {})",
        0.25,
    ),
    _ComparedSensor(
        "ram_share",
        lambda host: host.ram_share.mean,
        "its memory is {} full (elsewhere {})",
        0.20,
    ),
    _ComparedSensor(
        "cpu_share",
        lambda host: host.cpu_share.mean,
        "its CPU is {} busy (elsewhere {})",
        0.20,
    ),
)
"""The likeliest reasons first; a busy CPU may be the late ranks' own work."""


def node_words(facts: Facts, late: LateNodes) -> str:
    """Returns sentences about late machines: in what their sensors differ from those of the others,
    or that they do not, where they were sampled."""
    told = [
        reading.words.format(percent(own), percent(other))
        for reading, own, other in _differ(facts, late)
    ]
    where = listed_nodes(late.names)
    whose = f"All late ranks are on {where}, and on no other machine"
    if late.others:
        whose = f"Nearly all late ranks are on {where}"
    if told:
        of_one = f" On {late.names[0]}" if len(late.names) > 1 else " There"
        return f"{whose}.{of_one} {', and '.join(told[:2])}: look at that first. "
    if any(node.host.samples for node in facts.nodes if node.name in late.names):
        return (
            f"{whose}: suspect the machine first. Its CPU, memory, disk and GPU clocks read like "
            "those of the others. "
        )
    return f"{whose}: suspect the machine first. "


def node_evidence(facts: Facts, late: LateNodes) -> tuple[Piece, ...]:
    """Returns the machine's name, and the sensors in which it differs from the others."""
    return (
        as_words("node", listed_nodes(late.names)),
        *(
            piece
            for reading, own, other in _differ(facts, late)
            for piece in (
                as_share(f"node_{reading.key}", own),
                as_share(f"other_nodes_{reading.key}", other),
            )
        ),
    )


def _differ(facts: Facts, late: LateNodes) -> list[tuple[_ComparedSensor, float, float]]:
    """Returns the sensors in which the first late machine is worse off than the median of those
    that are not late, with both values."""
    theirs: NodeFacts | None = next((n for n in facts.nodes if n.name == late.names[0]), None)
    if theirs is None:
        return []
    others = [node.host for node in facts.nodes if node.name not in late.names]
    found = []
    for reading in _COMPARED_SENSORS:
        own = reading.read(theirs.host)
        known = [value for host in others if (value := reading.read(host)) is not None]
        if own is None or not known:
            continue
        other = median(known)
        excess = other - own if reading.is_low_bad else own - other
        if excess >= reading.least:
            found.append((reading, own, other))
    if len(found) > 1:  # its own work is no second reason beside somebody else's
        found = [one for one in found if one[0].key != "cpu_share"]
    return found
