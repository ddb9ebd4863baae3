"""Which rank did not arrive at the collective that the others wait in, by the flight recorder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceml.model.failure import StuckCollective
from traceml.store.flight_recorder import CollectiveCall, FlightDump


@dataclass(frozen=True, slots=True)
class _Member:
    """One rank of a process group."""

    rank: int
    calls: dict[int, CollectiveCall]
    """By number."""

    @property
    def reached(self) -> int:
        """The number of the last collective that it began."""
        return max(self.calls, default=0)

    @property
    def waits_at(self) -> int | None:
        """The first of its collectives that is not complete; `None` where all are."""
        open_ones = [number for number, call in self.calls.items() if not call.is_complete]
        return min(open_ones, default=None)


def stuck_collectives(dumps: Sequence[FlightDump]) -> tuple[StuckCollective, ...]:
    """Returns the collectives that ranks wait in, the one that was begun first at first.

    Collectives of a group have the same numbers on every rank. A rank whose last one comes before
    the first that others wait in did not arrive there; one that began another operation under the
    same number took another branch. A rank of the group without a dump is not known.
    """
    groups = dict.fromkeys(call.group for dump in dumps for call in dump.calls)
    found = [stuck for group in groups if (stuck := _stuck(group, dumps)) is not None]
    return tuple(sorted(found, key=lambda stuck: stuck.since_unix_s))


def _stuck(group: str, dumps: Sequence[FlightDump]) -> StuckCollective | None:
    members = list(_members(group, dumps))
    waits = [member.waits_at for member in members]
    first = min((number for number in waits if number is not None), default=None)
    if first is None:
        return None
    # A rank that has completed it, or let go of its record, was there.
    missing = [member.rank for member in members if member.reached < first]
    here = {member.rank: member.calls[first] for member in members if first in member.calls}
    waiting = [member.rank for member in members if member.waits_at == first]
    call = here[waiting[0]]
    others = {rank: each.name for rank, each in here.items() if each.name != call.name}
    known = {member.rank for member in members}
    return StuckCollective(
        group=call.group_words,
        number=first,
        name=call.name,
        size_bytes=call.size_bytes,
        since_unix_s=max(here[rank].created_unix_s for rank in waiting),
        waiting=tuple(rank for rank in waiting if rank not in others),
        missing=tuple(missing),
        others=tuple(sorted(others.items())),
        unknown=tuple(sorted(_ranks_of(group, dumps) - known)),
        where=call.where,
    )


def _members(group: str, dumps: Sequence[FlightDump]) -> Iterator[_Member]:
    """Yields the ranks of a group that have a dump; one that began none of its collectives is
    known by the group's list of ranks alone."""
    ranks = _ranks_of(group, dumps)
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        calls = {call.number: call for call in dump.calls if call.group == group}
        if calls or dump.rank in ranks:
            yield _Member(dump.rank, calls)


def _ranks_of(group: str, dumps: Sequence[FlightDump]) -> set[int]:
    return {rank for dump in dumps for rank in dump.groups.get(group, ())}
