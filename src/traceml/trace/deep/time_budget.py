"""How often something may be done that costs training time."""

from __future__ import annotations


class TimeBudget:
    """When something may be done again, of which all that is done is to be a share of the time.

    What a single burst cost is known badly where steps take unequally long; the sum over bursts is
    known well.
    """

    def __init__(self, share: float, began_ns: int) -> None:
        self._share, self._began_ns = share, began_ns
        self._spent_ns = 0.0

    def spend(self, cost_ns: float) -> None:
        """So much more was spent."""
        self._spent_ns = max(0.0, self._spent_ns + cost_ns)

    def allows(self, now: int) -> bool:
        """Whether what was spent so far is no more than the share of the time by now."""
        return self._spent_ns <= self._share * (now - self._began_ns)
