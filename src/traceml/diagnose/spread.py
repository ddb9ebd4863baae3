"""The worst rank beside the median one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traceml.facts.facts import Facts, RankFacts


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over ranks: its largest, whose that is, and the median rank's."""

    worst: float
    worst_rank: int
    median: float

    @property
    def skew(self) -> float:
        """How much larger the worst is than the median, as a share of the median."""
        return (self.worst - self.median) / self.median if self.median > 0 else 0.0


def over_ranks(facts: Facts, value: Callable[[RankFacts], float | None]) -> Spread | None:
    """The spread of what was measured; of an even number of ranks the lower middle one counts."""
    measured = [
        (found, rank.rank.rank) for rank in facts.ranks if (found := value(rank)) is not None
    ]
    if not measured:
        return None
    ranked = sorted(measured, key=lambda one: (one[0], -one[1]))
    worst, worst_rank = ranked[-1]
    return Spread(worst, worst_rank, ranked[(len(ranked) - 1) // 2][0])
