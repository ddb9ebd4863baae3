"""From a step's marks to how long each layer itself took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

ENTER, ENTER_AGAIN, LEAVE, REACH, LEAVE_BACKWARD, BEGIN_PHASE, END_PHASE = range(7)
"""A layer is called; is called during backward, to compute again what was not kept; returns; the
backward pass reaches what it computed; the pass has ended. A whole phase begins, or ends: what no
layer does meanwhile is the rest of that phase."""
OUTSIDE = -1
"""The place of what no layer did."""

FORWARD, RECOMPUTE, BACKWARD = range(3)


class LayerMark(NamedTuple):
    """A moment at which the layer that works changes."""

    kind: int
    place: int
    """The layer's; of a phase's marks, the phase."""
    ns: int
    event: Any
    """The CUDA event there; `None` on a CPU."""


class OwnTimes(NamedTuple):
    """Nanoseconds of each layer itself, without those that it called, by its place; the time of
    no layer is at `OUTSIDE`."""

    forward: dict[int, int]
    recompute: dict[int, int]
    """Forward passes during backward: activation checkpointing."""
    backward: dict[int, int]


Owner = tuple[int, int]
"""A phase, and the layer that works in it."""


def owners(marks: Sequence[LayerMark]) -> list[Owner | None]:
    """Who works from each mark until the next; `None` where no layer does."""
    found: list[Owner | None] = []
    works: Owner | None = None
    rest: Owner | None = None  # who works where no layer does: the phase that is open, if any is
    outer: list[tuple[Owner | None, Owner | None]] = []
    for mark in marks:
        if mark.kind in (ENTER, ENTER_AGAIN):
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


def has_phase(marks: Sequence[LayerMark], phase: int) -> bool:
    """Whether the marks say when a phase began."""
    return any(mark.kind == BEGIN_PHASE and mark.place == phase for mark in marks)


def own_times(marks: Sequence[LayerMark], moments: Sequence[int]) -> OwnTimes:
    """The time between each two marks is that of the layer which works there.

    The moments are those of the marks, on the clock in question.
    """
    times = OwnTimes({}, {}, {})
    for number, works in enumerate(owners(marks)[:-1]):
        if works is not None:
            phase, place = times[works[0]], works[1]
            phase[place] = phase.get(place, 0) + moments[number + 1] - moments[number]
    return times
