"""Which steps are recorded whole, and which recordings are kept: pure, without a clock.

Which step is the worst is known when it is over, and then it was not recorded. So candidates are
recorded as long as their cost allows: where slow steps recur, the next of them in turn with any
other, else any. Kept are those whose time is nearest to the median of the candidates that were not
chosen for being slow, and the slowest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

FIRST_STEP = 10
"""Steps before the first recording: the first steps of a run are unlike the others."""
MIN_STEPS_BETWEEN = 5
"""Between two recordings: what one of them disturbs is over then."""
SLOW = 1.5
"""Times the median of the last steps: a step that takes longer is slow."""
REMEMBERED_STEPS = 64
JUDGED_AGAIN = 16
"""Steps after which the median is computed anew."""
MIN_RECURRENCES = 3
"""Slow steps at the same distance from each other: then the next is expected at that distance."""
NEAR = 0.1
"""Of the median: a typical step that is nearer is replaced by no other, and a worst one only by
one that is longer by more than this."""

TYPICAL, WORST = "typical", "worst"


class StepWatch:
    """The times of the steps that are not recorded, and which of them are slow."""

    def __init__(self) -> None:
        self.seen = 0
        """Steps so far, recorded ones among them."""
        self.usual_ns = 0.0
        """The median of the last steps."""
        self._times: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._slow: deque[int] = deque(maxlen=MIN_RECURRENCES + 1)
        """The numbers of the last slow steps."""

    def see(self, took_ns: int) -> None:
        """A step that was not recorded took so long."""
        self.pass_over()
        self._times.append(took_ns)
        if self.seen % JUDGED_AGAIN == 0 or not self.usual_ns or self.seen <= FIRST_STEP:
            self.usual_ns = median(self._times)
        self._note_if_slow(took_ns, self.usual_ns)

    def see_recorded(self, took_ns: int, usual_recorded_ns: float) -> None:
        """A recorded step took so long: that is longer by what recording takes."""
        self.pass_over()
        self._note_if_slow(took_ns, usual_recorded_ns)

    def pass_over(self) -> None:
        """There was a step whose time says nothing."""
        self.seen += 1

    def _note_if_slow(self, took_ns: int, usual_ns: float) -> None:
        if self.seen > FIRST_STEP and took_ns > SLOW * usual_ns:
            self._slow.append(self.seen)

    @property
    def next_slow(self) -> int | None:
        """The number of the next step that is expected to be slow; `None` where none is."""
        numbers = list(self._slow)
        gaps = {later - earlier for earlier, later in pairwise(numbers)}
        if len(numbers) <= MIN_RECURRENCES or len(gaps) != 1:
            return None
        (gap,) = gaps
        missed = self.seen - numbers[-1] > gap
        return None if gap < 2 or missed else numbers[-1] + gap


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step that was recorded."""

    step: int
    """Its number in the run, from 1."""
    took_ns: int
    """Its time on the host's clock while it was recorded."""
    file: str = ""


@dataclass(slots=True)
class KeptSteps:
    """The recordings that are kept, at most `count` of them: half of them typical, half worst."""

    count: int
    kept: list[RecordedStep] = field(default_factory=list)
    times_ns: deque[int] = field(default_factory=lambda: deque(maxlen=1000))
    """Of the recorded steps that were not chosen for being slow."""

    @property
    def is_full(self) -> bool:
        """Whether there are as many as were asked for."""
        return len(self.kept) >= self.count

    @property
    def usual_ns(self) -> float:
        """The median time of the recorded steps that any step could have been; 0 without any."""
        return median(self.times_ns) if self.times_ns else 0.0

    def replaced_by(
        self, took_ns: int, was_expected_slow: bool = False
    ) -> tuple[bool, RecordedStep | None]:
        """Whether a new recording that took so long is worth keeping, and in place of which.

        Its time counts among those that say what is typical, unless it was chosen for being slow.
        """
        if not was_expected_slow:
            self.times_ns.append(took_ns)
        if not self.is_full:
            return True, None
        usual_ns, roles = self.usual_ns, self.roles()
        worst = [each for each in self.kept if roles[each.step] == WORST]
        least = min(worst, key=lambda each: each.took_ns, default=None)
        if least is not None and took_ns > (1 + NEAR) * least.took_ns:
            return True, least
        typical = [each for each in self.kept if roles[each.step] == TYPICAL]
        farthest = max(typical, key=lambda each: abs(each.took_ns - usual_ns))
        distance_ns = abs(farthest.took_ns - usual_ns)
        is_better = distance_ns > NEAR * usual_ns and abs(took_ns - usual_ns) < distance_ns / 2
        return (True, farthest) if is_better else (False, None)

    def keep(self, new: RecordedStep, instead_of: RecordedStep | None) -> None:
        """Keep a recording, in place of another."""
        if instead_of is not None:
            self.kept.remove(instead_of)
        self.kept.append(new)

    def roles(self) -> dict[int, str]:
        """Whether each kept step is a typical one or one of the worst, by its number."""
        slowest = sorted(self.kept, key=lambda each: -each.took_ns)
        worst = {each.step for each in slowest[: len(self.kept) // 2]}
        return {each.step: WORST if each.step in worst else TYPICAL for each in _ordered(self.kept)}


def _ordered(steps: Iterable[RecordedStep]) -> list[RecordedStep]:
    return sorted(steps, key=lambda each: each.step)
