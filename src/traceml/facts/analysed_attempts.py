"""Which attempts of a run are in its step table.

Steps that different sets of ranks took cannot be compared: a rank that trains alone has no peer,
and where ranks share the global batch, each does less the more ranks there are. So the table holds
the attempts of a single set of ranks: the set whose ranks share the most steps, and of two with
equally many the later one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceml.facts.attempts import Attempt
from traceml.facts.step_table import RankSteps
from traceml.store.attempt_groups import span_unix_s
from traceml.store.records import RankRecords
from traceml.store.step_records import count_complete

SAME_MOMENT_S = 1e-3
"""Wall-clock moments of one record differ by less where it is read on two clocks."""


@dataclass(frozen=True, slots=True)
class AnalysedAttempts:
    """The attempts whose steps are analysed, where a run has steps of other sets of ranks too."""

    numbers: tuple[int, ...]
    """The numbers of these attempts, from 1."""
    ranks: tuple[int, ...]
    world_size: int
    steps: int
    """Complete steps in these attempts; of each attempt, those of the rank that took the most."""
    steps_left_out: int
    """Complete steps in all other attempts, counted in the same way."""


def analysed_attempts(attempts: Sequence[Attempt]) -> AnalysedAttempts | None:
    """Returns the attempts to analyse; `None` where those are all that took steps."""
    by_ranks: dict[tuple[int, frozenset[int]], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.steps:
            by_ranks.setdefault((_world_size(attempt), _ranks(attempt)), []).append(attempt)
    if len(by_ranks) < 2:
        return None
    chosen = max(
        by_ranks.values(), key=lambda each: (sum(map(_shared_steps, each)), each[-1].number)
    )
    return AnalysedAttempts(
        numbers=tuple(each.number for each in chosen),
        ranks=tuple(sorted(_ranks(chosen[0]))),
        world_size=_world_size(chosen[0]),
        steps=sum(each.steps for each in chosen),
        steps_left_out=sum(each.steps for each in attempts if each not in chosen),
    )


class StepsByAttempt:
    """Which steps and blocks of a rank belong to which attempt."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._firsts = [each.first_number for each in attempts]
        self._numbers = np.array([each.number for each in attempts])
        self._of_rank: dict[int, list[tuple[Attempt, RankRecords]]] = {}
        for attempt in attempts:
            for process in attempt.processes:
                self._of_rank.setdefault(process.rank.rank, []).append((attempt, process))

    def longest(self, rank: int) -> int:
        """Returns the number of the attempt in which a rank completed the most steps, of two with
        as many the later one; 0 where it took none."""
        taken = (
            (count_complete(process.steps, process.blocks), attempt.number)
            for attempt, process in self._of_rank.get(rank, ())
        )
        return max(taken, default=(0, 0))[1]

    def select(
        self, rank: RankRecords, complete: RankSteps, numbers: Collection[int]
    ) -> tuple[RankRecords, RankSteps]:
        """Returns a rank with only those blocks, and only those of its complete steps, that belong
        to the attempts of these numbers."""
        wanted = np.array(sorted(numbers))
        places = np.searchsorted(self._firsts, complete.index, "right") - 1
        steps = complete.take(np.flatnonzero(np.isin(self._numbers[places], wanted)))
        own = self._of_rank.get(rank.rank.rank, ())
        if not len(rank.blocks) or not own:
            return rank, steps
        begins_s = [span_unix_s(process)[0] for _, process in own]
        starts_s = np.array([rank.rank.unix_s(int(each)) for each in rank.blocks["start_ns"]])
        lives = np.searchsorted(begins_s, starts_s + SAME_MOMENT_S, "right") - 1
        of_lives = np.array([attempt.number for attempt, _ in own])
        kept = np.isin(of_lives[np.maximum(lives, 0)], wanted)
        return replace(rank, blocks=rank.blocks[kept]), steps


def _ranks(attempt: Attempt) -> frozenset[int]:
    """Returns the ranks that completed a step in an attempt."""
    return frozenset(rank for rank, steps in _steps_by_rank(attempt) if steps)


def _shared_steps(attempt: Attempt) -> int:
    return min(steps for _, steps in _steps_by_rank(attempt) if steps)


def _steps_by_rank(attempt: Attempt) -> list[tuple[int, int]]:
    return [(each.rank.rank, count_complete(each.steps, each.blocks)) for each in attempt.processes]


def _world_size(attempt: Attempt) -> int:
    """Returns the number of ranks of the job in an attempt, as its processes report it."""
    return max(each.rank.world_size for each in attempt.processes)
