"""When a benchmark looks at its runs, whose turn it is, and whether the answer is clear.

Each look at growing data is another chance of a false alarm. So the looks are planned before the
first run, and each may spend only its share of the 5 % (`Terms.looks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from traceml.compare.record import Comparison, Status
from traceml.compare.terms import Terms

FIRST_LOOK = 3
"""Runs per side. With two, the spread of a side rests on a single difference."""
GROWTH = 1.5
"""From one look to the next. Every look widens all intervals: few that grow cost less than many."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """How many runs are made at most, when they are judged, and how."""

    looks: tuple[int, ...]
    """After how many runs per side they are judged."""
    terms: Terms

    @staticmethod
    def until_clear(max_runs: int, terms: Terms) -> RunPlan:
        """Returns a plan that may end before `max_runs` per side."""
        looks = planned_looks(max_runs)
        return RunPlan(looks, replace(terms, looks=len(looks)))

    @staticmethod
    def of_fixed_size(runs: int, terms: Terms) -> RunPlan:
        """Returns a plan for so many runs per side, which are judged once."""
        return RunPlan((runs,), terms)

    @property
    def max_runs(self) -> int:
        """The most runs per side."""
        return self.looks[-1]

    def is_look(self, a_runs: int, b_runs: int) -> bool:
        """Returns whether the runs are judged now."""
        return a_runs == b_runs and a_runs in self.looks


def planned_looks(max_runs: int) -> tuple[int, ...]:
    """Returns after how many runs per side the runs are judged; the last look is at `max_runs`."""
    looks = []
    runs = FIRST_LOOK
    while runs < max_runs:
        looks.append(runs)
        runs = math.ceil(GROWTH * runs)
    return (*looks, max_runs)


def turns(max_runs: int) -> Iterator[tuple[str, int]]:
    """Yields the side of each run, `a` or `b`, and the number of the run on its side.

    The order is A B B A A B B A …: a machine that becomes steadily slower or faster meets both
    sides alike.
    """
    for number in range(1, max_runs + 1):
        for side in ("ab", "ba")[(number - 1) % 2]:
            yield side, number


def is_clear(comparison: Comparison) -> bool:
    """Returns whether further runs are not needed: there is a verdict."""
    return comparison.verdict.status != Status.INCONCLUSIVE.value
