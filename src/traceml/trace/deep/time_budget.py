"""How often something may be done that costs training time."""

from __future__ import annotations

import math
from collections import deque

LAST_COSTS = 15
"""Costs that are known of what is done again and again."""
MAX_OF_USUAL = 3.0
"""Times the usual cost: what takes longer was interrupted."""


class TimeBudget:
    """When something may be done again, of which all that is done is to be a share of the time.

    What a single burst cost is known badly where steps take unequally long; the sum over bursts is
    known well.
    """

    def __init__(
        self, share: float, began_ns: int, head_start_ns: int = 0, early_share: float = math.inf
    ) -> None:
        """The head start counts as time that has already passed; what may be spent never exceeds
        the early share of the real time."""
        self._share, self._began_ns = share, began_ns
        self._head_start_ns, self._early_share = head_start_ns, max(share, early_share)
        self._spent_ns = 0.0

    def spend(self, cost_ns: float) -> None:
        """So much more was spent."""
        self._spent_ns = max(0.0, self._spent_ns + cost_ns)

    def allows(self, now: int) -> bool:
        """Whether what was spent so far is no more than the share of the time by now."""
        passed_ns = now - self._began_ns
        of_run = self._share * (passed_ns + self._head_start_ns)
        return self._spent_ns <= min(of_run, self._early_share * passed_ns)


class UsualCost:
    """Tells the cost of one kind of work from the time for which its thread was interrupted.

    On a busy machine the thread would have been interrupted without us as well, only elsewhere.
    A single interruption, charged to what costs microseconds, would use up minutes of a budget.
    """

    def __init__(self) -> None:
        self._last_ns: deque[float] = deque(maxlen=LAST_COSTS)

    def charge(self, took_ns: float) -> float:
        """Returns how much of a duration to charge to a budget: at most a few times the usual one.

        While few are known the result may be negative: it corrects what was charged before.
        """
        is_known = len(self._last_ns) == LAST_COSTS
        before_ns = 0.0 if is_known else self._sum_of_charges()
        self._last_ns.append(took_ns)
        if is_known:
            return min(took_ns, self._limit_ns())
        return self._sum_of_charges() - before_ns

    def _sum_of_charges(self) -> float:
        return sum(min(each, self._limit_ns()) for each in self._last_ns)

    def _limit_ns(self) -> float:
        return MAX_OF_USUAL * sorted(self._last_ns)[(len(self._last_ns) - 1) // 2]
