"""What the host was doing while the GPU had nothing to do, from the marks of a step.

The host puts a mark at one moment, and the GPU passes it at a later one: at once where its queue is
empty, after all work before it otherwise. So between two marks the GPU has caught up with the host
from the moment at which it passed the first one until the host has put the second; before that and
after that it has work. In between it waits for whatever the host is doing: compiling, collecting
garbage, logging, waiting for the device, launching the work of a phase, or running the script's own
code. Time for input, copies and communication are phases, and are not counted here.

Inside forward, backward and optimizer the GPU may be busy with what was launched a moment ago: what
is left there for launching is an upper limit. The same holds for the script's own code, as far as
it launches work.

A wait for the device is not idle time itself: the GPU works meanwhile, up to the round trip at its
end, so what the host waited after the GPU had caught up is taken out. But afterwards its queue is
empty, and the host has lost the lead that it would have without the wait. So idle time after a wait
is charged to it until that lead is used up; a batch that comes late uses it up as well, because a
host that is ahead only waits longer for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from traceml.model.record_layout import IDLE_CAUSES, ROUND_TRIP_NS
from traceml.steps.events import (
    BACKWARD,
    CHECKPOINT,
    CLOSURE,
    COMMUNICATION,
    COMPILE,
    EVALUATION,
    FORWARD,
    GC,
    GRAPH,
    INPUT,
    LOGGING,
    OPTIMIZER,
    SYNC,
    SYNCS,
)
from traceml.steps.open_step import Span

MAX_TOLD = 100
"""Marks that are told of at a time: of more, the tracer may have stopped before the last that was
passed (`MIN_RESOLVED` in `trace/gpu.py`)."""
DRIFTS_ONE_IN = 10_000
"""The clocks of host and GPU run apart by less than this share; crystals are ten times as exact."""

_COMPILE, _GC, _LOGGING, _SYNC, _PYTHON, _LAUNCHING = range(len(IDLE_CAUSES))
_BETWEEN = len(IDLE_CAUSES)
_PAUSES = ((COMPILE, _COMPILE), (GC, _GC), (LOGGING, _LOGGING))
"""In the order in which they are charged."""
_LAUNCHES = frozenset((FORWARD, BACKWARD, OPTIMIZER, GRAPH))
_USES_UP_LEAD = frozenset((INPUT, COMMUNICATION))
_NO_TRAINING = frozenset((EVALUATION, CHECKPOINT))
_OWN_CODE = None
_FIRST_WAIT = -1

Spent = dict[int, int]
"""Nanoseconds by cause; under `SYNCS`, how often the host waited, and under `_FIRST_WAIT` when it
began to wait for the first time."""


class IdleAccount:
    """The idle time of one rank's GPU, step by step."""

    def __init__(self) -> None:
        self._put: dict[int, int] = {}
        """When the host put each mark that a step may still need."""
        self._not_passed: dict[int, int] = {}
        """A moment at which a mark was not passed yet, of some marks."""
        self._told = (0, 0, 0)
        """When the tracer last told of marks, how many it told of, and the one that follows."""
        self._spent: dict[int, Spent] = {}
        """What the host spent on its pauses, by the mark that it had put last."""
        self._offset: int | None = None
        """The host's clock less the GPU's, at the least: no mark is passed before it is put."""
        self._offset_at = 0
        """On the GPU's clock."""
        self._lead = 0
        """By how much the host would be ahead without the waits of the last step …"""
        self._ended_at: int | None = None
        """… which ended then, on the GPU's clock."""

    def see_mark(self, mark: int, now: int) -> None:
        """The host has put a mark."""
        self._put[mark] = now

    def reach(self, mark: int, since: int) -> None:
        """The tracer tells that the GPU has passed a mark; it asked after this moment.

        It asks for one mark after the other and stops at the first that is not passed yet.
        """
        asked_at, count, following = self._told
        if since != asked_at:
            if 0 < count <= MAX_TOLD:
                self._not_passed[following] = asked_at
            count = 0
        self._told = (since, count + 1, mark + 1)

    def spend(self, mark: int, cause: int, duration: int) -> None:
        """The host has spent time on a pause; this mark was the last before it."""
        if mark:  # else in a step that is not timed on the GPU
            spent = self._spent.setdefault(mark, {})
            spent[cause] = spent.get(cause, 0) + duration

    def wait(self, mark: int, duration: int, now: int) -> None:
        """The host has waited for the device until now; this mark was the last before it."""
        if mark:
            self.spend(mark, SYNC, duration)
            self.spend(mark, SYNCS, 1)
            self._spent[mark].setdefault(_FIRST_WAIT, now - duration)

    def lose_clock(self) -> None:
        """Marks were lost: how the clocks of host and GPU relate has to be learnt again."""
        self._offset, self._lead, self._ended_at = None, 0, None
        self._not_passed.clear()

    def forget_before(self, mark: int) -> None:
        """Drop what no step from this mark on needs."""
        kept: dict[int, Any]
        for kept in (self._put, self._not_passed, self._spent):
            while kept and (oldest := next(iter(kept))) < mark:
                del kept[oldest]

    def account(
        self, first: int, last: int, spans: Sequence[Span], moments: Mapping[int, int]
    ) -> list[int]:
        """Returns the idle nanoseconds of a step between two marks, in the order of `IDLE_CAUSES`;
        and how many of them lay between the phases.

        `moments` says when the GPU passed each mark.
        """
        phases = _phases(first, last, spans)
        known = [mark for mark in phases if mark in moments and mark in self._put]
        marks = [first, *(mark for mark in known if mark > first)]
        offset = self._learn_offset(known, moments)
        spent_after = self._spent_after(marks)
        idle = [0] * (len(IDLE_CAUSES) + 1)
        lead, waited = self._lead_at(first, moments, offset), 0
        for begin, end in pairwise(marks):
            phase, spent = phases[begin], spent_after.get(begin, {})
            if phase in _NO_TRAINING:
                lead = waited = 0  # nobody is ahead after it
                continue
            lost = spent.get(SYNC, 0) + ROUND_TRIP_NS * spent.get(SYNCS, 0)
            lead, waited = lead + lost, waited + lost
            passed = moments[begin] + offset
            caught_up = self._put[end] - passed - _worked_in_waits(spent, passed)
            free = max(0, min(caught_up, moments[end] - moments[begin]))
            lead -= _charge(idle, phase, free, spent, lead)
        self._lead, self._ended_at = min(lead, waited), moments.get(last)
        return idle

    def _lead_at(self, first: int, moments: Mapping[int, int], offset: int) -> int:
        """Returns what is left of the host's lead as a step begins: time between two explicit steps
        uses it up."""
        if self._ended_at is None or first not in self._put:
            return self._lead
        return max(0, self._lead - max(0, self._put[first] - self._ended_at - offset))

    def _learn_offset(self, marks: Sequence[int], moments: Mapping[int, int]) -> int:
        """Returns the offset of the clocks: the largest that lets no mark be passed too early.

        What an earlier mark showed holds less, by as much as the clocks may have run apart since.
        """
        seen = [(self._passed_after(mark) - moments[mark], moments[mark]) for mark in marks]
        now = moments[marks[-1]] if marks else self._offset_at
        if self._offset is not None:
            seen.append((self._offset, self._offset_at))
        offsets = (offset - (now - at) // DRIFTS_ONE_IN for offset, at in seen)
        self._offset, self._offset_at = max(offsets, default=0), now
        return self._offset

    def _passed_after(self, mark: int) -> int:
        """Returns a moment on the host's clock before which a mark was not passed."""
        put = self._put[mark]
        return max(put, self._not_passed.get(mark, put))

    def _spent_after(self, marks: Sequence[int]) -> dict[int, Spent]:
        """Returns what the host spent after each of these marks, up to the next of them."""
        found: dict[int, Spent] = {}
        for mark, spent in self._spent.items():
            if marks[0] <= mark < marks[-1]:
                total = found.setdefault(marks[bisect_right(marks, mark) - 1], {})
                first_wait = total.get(_FIRST_WAIT, spent.get(_FIRST_WAIT))
                for cause, duration in spent.items():
                    total[cause] = total.get(cause, 0) + duration
                if first_wait is not None:
                    total[_FIRST_WAIT] = first_wait  # marks are in order
        return found

    def as_plain(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "put": [
                _differences(column) for column in zip(*sorted(self._put.items()), strict=True)
            ],
            "spent": [(mark, list(spent.items())) for mark, spent in self._spent.items()],
            "not_passed": list(self._not_passed.items()),
            "told": self._told,
            "clock": (self._offset, self._offset_at),
            "lead": (self._lead, self._ended_at),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> IdleAccount:
        """The account that `as_plain` was made of."""
        found = cls()
        columns = [accumulate(differences) for differences in plain["put"]]
        found._put = dict(zip(*columns, strict=True))
        found._spent = {mark: dict(spent) for mark, spent in plain["spent"]}
        found._not_passed = dict(plain["not_passed"])
        asked_at, count, following = plain["told"]
        found._told = (asked_at, count, following)
        found._offset, found._offset_at = plain["clock"]
        found._lead, found._ended_at = plain["lead"]
        return found


def _differences(numbers: Sequence[int]) -> list[int]:
    """Returns the first number and what follows it as differences, which are shorter to write."""
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


def _worked_in_waits(spent: Spent, passed: int) -> int:
    """Returns for how long the GPU worked while the host waited, after it had passed a mark.

    The first wait cannot end before the GPU has passed the mark; all others come after that.
    """
    if not spent.get(SYNCS):
        return 0
    before = max(0, passed - spent[_FIRST_WAIT])
    return max(0, spent[SYNC] - before - ROUND_TRIP_NS * spent[SYNCS])


def _charge(idle: list[int], phase: int | None, free: int, spent: Spent, lead: int) -> int:
    """Charge the time between two marks in which the GPU had caught up with the host.

    Returns how much of the host's lead, as it would be without its waits, this time uses up.
    """
    is_own_code = phase is _OWN_CODE
    if not is_own_code and phase not in _LAUNCHES:
        return min(lead, free) if phase in _USES_UP_LEAD else 0
    if is_own_code:
        idle[_BETWEEN] += free
    for cause, place in _PAUSES:
        part = min(spent.get(cause, 0), free)
        idle[place] += part
        free -= part
    # Inside a phase the GPU is busy with what the host launches after a wait.
    waited = min(lead if is_own_code else ROUND_TRIP_NS * spent.get(SYNCS, 0), free)
    idle[_SYNC] += waited
    idle[_PYTHON if is_own_code else _LAUNCHING] += free - waited
    return waited


def _phases(first: int, last: int, spans: Sequence[Span]) -> dict[int, int | None]:
    """Returns the innermost phase that follows each mark of a step, in the order of the marks."""
    inside = [span for span in spans if first <= span[1] and span[2] <= last]
    begun: dict[int, list[Span]] = {first: [], last: []}
    for span in sorted(inside, key=lambda span: (span[1], -span[2])):
        begun.setdefault(span[1], []).append(span)
        begun.setdefault(span[2], [])
    found: dict[int, int | None] = {}
    under_way: list[Span] = []
    for mark in sorted(begun):
        under_way = [span for span in under_way if span[2] > mark] + begun[mark]
        phase = under_way[-1][0] if under_way else _OWN_CODE
        found[mark] = _OWN_CODE if phase == CLOSURE else phase
    return found
