"""Which processes are one rank: a restarted job has the same ranks again, later.

A script that trains in several processes by itself has several ranks 0 at the same time; they get
further numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

from traceml.model.rank import Rank

T = TypeVar("T")


class ProcessSpan(NamedTuple):
    """One process of a rank, from its first record to its last, on its own monotonic clock."""

    rank: Rank
    began_ns: int | None
    """`None` where it recorded nothing."""
    ended_ns: int | None
    restart: int | None = None
    """How often torch's launcher had started the ranks again; `None` where that is not known."""


def restarts_by_rank(
    processes: Iterable[T], life_of: Callable[[T], ProcessSpan]
) -> list[tuple[int, list[T]]]:
    """Returns each rank's number and its processes in order of time, by number."""
    lives = [(life_of(process), process) for process in processes]
    lives.sort(key=lambda each: (each[0].rank.rank, each[0].rank.unix_ns, each[0].rank.pid))
    joined: list[list[tuple[ProcessSpan, T]]] = []
    for life, process in lives:
        last = joined[-1][-1][0] if joined else None
        if last is not None and last.rank.rank == life.rank.rank and _follows(last, life):
            joined[-1].append((life, process))
        else:
            joined.append([(life, process)])
    numbers = number_ranks([each[-1][0].rank for each in joined])
    found = [
        (number, [process for _, process in each])
        for number, each in zip(numbers, joined, strict=True)
    ]
    return sorted(found, key=lambda rank: rank[0])


def number_ranks(ranks: Sequence[Rank]) -> list[int]:
    """Returns each rank's own number, or the next free one where another process has it already."""
    taken: set[int] = set()
    claimed = {rank.rank for rank in ranks}
    numbers = []
    for rank in ranks:
        number = rank.rank
        if number in taken:
            number = next(free for free in count() if free not in claimed | taken)
        taken.add(number)
        numbers.append(number)
    return numbers


def _follows(first: ProcessSpan, second: ProcessSpan) -> bool:
    """Returns whether the second process is the same rank, restarted: its launcher says so, or it
    began after the first had ended.

    Of two attempts of a launcher the second may begin while a process of the first still ends.
    """
    if (
        first.restart is not None
        and second.restart is not None
        and first.rank.hostname == second.rank.hostname
        and second.restart > first.restart
    ):
        return True
    if first.ended_ns is None or second.began_ns is None:
        return False
    began_s = second.rank.unix_s(second.began_ns)
    started_s = second.rank.process_unix_ns / 1e9 or began_s
    return min(started_s, began_s) >= first.rank.unix_s(first.ended_ns)
