"""From a step's marks to how long each layer itself took."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

ENTER, ENTER_AGAIN, LEAVE, REACH, LEAVE_BACKWARD, BEGIN_PHASE, END_PHASE = range(7)
"""A layer is called; is called during backward, to compute again what was not kept; returns; the
backward pass reaches what it computed; the pass has ended. A whole phase begins, or ends: what no
layer does meanwhile is the rest of that phase."""
BEGIN_WAIT, END_WAIT, HAVE_GRADIENTS = range(7, 10)
"""Waiting for other ranks begins in a collective, and ends; this rank has all its own gradients:
what is left of backward waits for those of the others."""
OUTSIDE = -1
"""The place of what no layer did."""

ALL_PHASES = FORWARD, RECOMPUTE, BACKWARD, COMMUNICATION = range(4)


class LayerMark(NamedTuple):
    """A moment at which the layer that works changes."""

    kind: int
    place: int
    """The layer's; of a phase's marks, the phase."""
    ns: int
    """When our hook there was left …"""
    event: Any
    """The CUDA event there; `None` on a CPU."""
    began_ns: int
    """… and when it was entered: the time between is our own, and no layer's."""
    first_event: Any = None
    """The CUDA event at the beginning of our hook, as soon as one could be recorded …"""
    first_ns: int = 0
    """… and when that was."""


class UnseenTime(NamedTuple):
    """Nanoseconds that torch takes per call of a layer to find and call our hooks: the hooks
    themselves do not see this time."""

    outside: float
    """In the caller of the layer: before the hook at the layer's beginning, and after the one at
    its end."""
    inside: float
    """In the layer itself: between these two hooks."""


NOTHING_UNSEEN = UnseenTime(0.0, 0.0)
MIN_WAITED_SHARE = 0.5
"""Of the time within our hook: a GPU that takes so much of it from the hook's first event to the
last has waited for the hook; one that is still at work passes both at once …"""
MIN_WAITED_NS = 4_000
"""… which takes a microsecond or two by its clock."""


class OwnTimes(NamedTuple):
    """Nanoseconds of each layer itself, without those that it called, by its place; the time of
    no layer is at `OUTSIDE`. Waiting for other ranks is in `communication` alone."""

    forward: dict[int, int]
    recompute: dict[int, int]
    """Forward passes during backward: activation checkpointing."""
    backward: dict[int, int]
    communication: dict[int, int]
    """Waiting for other ranks, in whichever of these phases."""


Owner = tuple[int, int]
"""A phase, and the layer that works in it."""


def owners(marks: Sequence[LayerMark]) -> list[Owner | None]:
    """Who works from each mark until the next; `None` where no layer does."""
    found: list[Owner | None] = []
    works: Owner | None = None
    rest: Owner | None = None  # who works where no layer does: the phase that is open, if any is
    before_wait: Owner | None = None
    outer: list[tuple[Owner | None, Owner | None]] = []
    last_gradients = _last_gradients(marks)
    for number, mark in enumerate(marks):
        if mark.kind == BEGIN_WAIT:
            before_wait, works = works, works and (COMMUNICATION, works[1])
        elif mark.kind == END_WAIT:
            works = before_wait
        elif mark.kind == HAVE_GRADIENTS:
            if number in last_gradients:
                works = rest = (COMMUNICATION, OUTSIDE)
        elif mark.kind in (ENTER, ENTER_AGAIN):
            outer.append((works, rest))
            works = (FORWARD if mark.kind == ENTER else RECOMPUTE, mark.place)
        elif mark.kind == BEGIN_PHASE:
            outer.append((works, rest))
            works = rest = (mark.place, OUTSIDE)
        elif mark.kind in (LEAVE, END_PHASE):
            works, rest = outer.pop() if outer else (None, None)
        elif mark.kind == REACH:
            works = (BACKWARD, mark.place)
        else:
            works = rest
        found.append(works)
    return found


def _last_gradients(marks: Sequence[LayerMark]) -> set[int]:
    """The positions of the marks at which a rank has all its own gradients; of several in one
    backward pass only the last."""
    found: set[int] = set()
    is_awaited = False
    for number in range(len(marks) - 1, -1, -1):
        if marks[number].kind == END_PHASE and marks[number].place == BACKWARD:
            is_awaited = True
        elif marks[number].kind == HAVE_GRADIENTS and is_awaited:
            found.add(number)
            is_awaited = False
    return found


def has_phase(marks: Sequence[LayerMark], phase: int) -> bool:
    """Whether the marks have the beginning of a phase, and everything that layers did for it lies
    within the phase. Gradients that are asked for in another way than `backward` lie outside."""
    begun = ended = 0
    for mark in marks:
        if mark.place == phase and mark.kind in (BEGIN_PHASE, END_PHASE):
            begun, ended = begun + (mark.kind == BEGIN_PHASE), ended + (mark.kind == END_PHASE)
        elif mark.kind == REACH and phase == BACKWARD and begun == ended:
            return False
    return begun > 0


def host_durations(marks: Sequence[LayerMark], unseen: UnseenTime) -> list[int]:
    """Nanoseconds from each mark to the next on the host's clock, without our own time: that of our
    hooks, and what torch takes to call them; none is negative."""
    before, after = _unseen_by_kind(unseen)
    return [
        max(
            0, round(later.began_ns - mark.ns - after.get(mark.kind, 0) - before.get(later.kind, 0))
        )
        for mark, later in pairwise(marks)
    ]


def gpu_durations(marks: Sequence[LayerMark], unseen: UnseenTime) -> list[int]:
    """Nanoseconds that the GPU took from each mark to the next, without our own time; none is
    negative.

    From the last event of one hook to the first event of the next: a GPU that waits for the host
    spends the time within a hook between that hook's own events. There, what passes before the
    first event, and what torch takes to call the hook, is left out too.
    """
    before, after = _unseen_by_kind(unseen)
    has_waited = [
        _elapsed_ns(mark.first_event, mark.event)
        >= max(MIN_WAITED_NS, MIN_WAITED_SHARE * (mark.ns - mark.first_ns))
        for mark in marks
    ]
    found = []
    for number, (mark, later) in enumerate(pairwise(marks)):
        took = _elapsed_ns(mark.event, later.first_event)
        if has_waited[number]:
            took -= after.get(mark.kind, 0)
        if has_waited[number + 1]:
            took -= later.first_ns - later.began_ns + before.get(later.kind, 0)
        found.append(max(0, round(took)))
    return found


def _unseen_by_kind(unseen: UnseenTime) -> tuple[dict[int, float], dict[int, float]]:
    """The unseen time before a mark of each kind, and after it."""
    outside, inside = unseen.outside / 2, unseen.inside / 2
    before = {ENTER: outside, ENTER_AGAIN: outside, LEAVE: inside}
    after = {ENTER: inside, ENTER_AGAIN: inside, LEAVE: outside}
    return before, after


def _elapsed_ns(event: Any, later: Any) -> float:
    return float(event.elapsed_time(later)) * 1e6


def own_times(marks: Sequence[LayerMark], durations: Sequence[int]) -> OwnTimes:
    """The time from each mark to the next, on the clock in question, is that of the layer which
    works there."""
    times = OwnTimes({}, {}, {}, {})
    for works, duration in zip(owners(marks)[:-1], durations, strict=True):
        if works is not None:
            phase, place = times[works[0]], works[1]
            phase[place] = phase.get(place, 0) + duration
    return times
