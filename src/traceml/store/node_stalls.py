"""Puts together what the agents of several nodes saw of one stall.

Each agent sees the ranks of its own machine alone: who is missing from a collective that its ranks
wait in may be known by another machine's agent only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from traceml.model.failure import Doing, Stall, Standing, StuckCollective

_OUTSIDE = (Doing.CODE, Doing.INPUT, Doing.IDLE)
"""What a rank is at that is in no collective."""


@dataclass(frozen=True, slots=True)
class _NodeStall:
    """A stall as the agent of one node saw it."""

    node: int
    stall: Stall

    @property
    def is_open(self) -> bool:
        """Whether no step came again."""
        return self.stall.resumed_unix_s is None


def merge_stalls(by_node: Sequence[Sequence[Stall]]) -> tuple[Stall, ...]:
    """Returns the stalls of a run, given those of each node on one clock: what several nodes saw at
    the same time is one stall, with the ranks of them all. The one seen last is the last."""
    seen = [_NodeStall(node, each) for node, stalls in enumerate(by_node) for each in stalls]
    found: list[Stall] = []
    # One that resumed somewhere is not the one that goes on elsewhere.
    for is_open in (False, True):
        alike = (each for each in seen if each.is_open == is_open)
        found += map(_merged, _overlapping(alike))
    return tuple(sorted(found, key=lambda stall: stall.seen_unix_s))


def _overlapping(stalls: Iterable[_NodeStall]) -> list[list[_NodeStall]]:
    """Returns groups of stalls of different nodes that were seen at overlapping times."""
    groups: list[list[_NodeStall]] = []
    for each in sorted(stalls, key=lambda each: each.stall.since_unix_s):
        last = groups[-1] if groups else []
        until_unix_s = max((other.stall.seen_unix_s for other in last), default=0.0)
        is_new = all(other.node != each.node for other in last)
        if last and is_new and each.stall.since_unix_s <= until_unix_s:
            last.append(each)
        else:
            groups.append([each])
    return groups


def _merged(parts: Sequence[_NodeStall]) -> Stall:
    if len(parts) == 1:
        return parts[0].stall
    parts = sorted(parts, key=lambda part: part.node)
    stalls = [part.stall for part in parts]
    resumed = [each.resumed_unix_s for each in stalls if each.resumed_unix_s is not None]
    return Stall(
        since_unix_s=min(each.since_unix_s for each in stalls),
        seen_unix_s=max(each.seen_unix_s for each in stalls),
        usual_s=max(each.usual_s for each in stalls),
        ranks=tuple(standing for each in stalls for standing in each.ranks),
        resumed_unix_s=max(resumed, default=None),
        stacks=tuple(name for each in stalls for name in each.stacks),
        collectives=_merge_collectives(stalls),
        first_seen_unix_s=min(each.noticed_unix_s for each in stalls),
    )


# Collectives


def _merge_collectives(stalls: Sequence[Stall]) -> tuple[StuckCollective, ...]:
    """Returns the collectives that ranks wait in, by what the nodes' flight recorders say together;
    the one that was begun first at first."""
    stuck = [each for stall in stalls for each in stall.collectives]
    elsewhere = {rank for each in stuck for rank in _recorded(each)} | {
        each.rank for stall in stalls for each in stall.ranks if _is_outside(each)
    }
    merged = (_merge_group(of_group, elsewhere) for of_group in _by_group(stuck))
    return tuple(sorted(merged, key=lambda each: each.since_unix_s))


def _is_outside(standing: Standing) -> bool:
    """Returns whether a rank is known to be in no collective; one whose GPU works may be."""
    return standing.doing in _OUTSIDE and not standing.moved


def _by_group(stuck: Iterable[StuckCollective]) -> list[list[StuckCollective]]:
    """Returns what is said of each process group. Several may have one name (the tensor-parallel
    groups of each node): in the same one, each node misses the ranks of the other."""
    groups: list[list[StuckCollective]] = []
    for each in stuck:
        of_group = next((group for group in groups if _is_of_group(each, group[0])), None)
        if of_group is None:
            groups.append([each])
        else:
            of_group.append(each)
    return groups


def _is_of_group(one: StuckCollective, other: StuckCollective) -> bool:
    return (
        one.group == other.group
        and not {*one.waiting}.isdisjoint(other.unknown)
        and not {*other.waiting}.isdisjoint(one.unknown)
    )


def _merge_group(of_group: Sequence[StuckCollective], elsewhere: set[int]) -> StuckCollective:
    """Returns the first collective that ranks of a group wait in. A rank of which one node knows
    nothing is missing where it is known to be elsewhere."""
    number = min(each.number for each in of_group)
    here = [each for each in of_group if each.number == number]
    beyond = {rank for each in of_group if each.number > number for rank in _recorded(each)}
    first = min(here, key=lambda each: each.waiting)
    calls = {rank: each.name for each in here for rank in each.waiting}
    calls |= {rank: name for each in here for rank, name in each.others}
    unknown = {rank for each in here for rank in each.unknown} - calls.keys() - beyond
    missing = {rank for each in here for rank in each.missing} | (unknown & elsewhere)
    return replace(
        first,
        since_unix_s=max(each.since_unix_s for each in here),
        waiting=tuple(sorted(rank for rank, name in calls.items() if name == first.name)),
        others=tuple(sorted((rank, name) for rank, name in calls.items() if name != first.name)),
        missing=tuple(sorted(missing)),
        unknown=tuple(sorted(unknown - missing)),
    )


def _recorded(stuck: StuckCollective) -> Iterator[int]:
    """Yields the ranks whose flight recorders were read."""
    yield from stuck.waiting
    yield from stuck.missing
    yield from (rank for rank, _ in stuck.others)
