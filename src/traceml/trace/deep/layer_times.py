"""From a step's marks to how long each layer itself took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

ENTER, ENTER_AGAIN, LEAVE, REACH, LEAVE_BACKWARD = range(5)
"""A layer is called; is called during backward, to compute again what was not kept; returns; the
backward pass reaches what it computed; the pass has ended."""
OUTSIDE = -1
"""The place of what no layer did."""

FORWARD, RECOMPUTE, BACKWARD = range(3)


class Mark(NamedTuple):
    """A moment at which the layer that works changes."""

    kind: int
    place: int
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


def own_times(marks: Sequence[Mark], moments: Sequence[int]) -> OwnTimes:
    """The time between each two marks is that of the layer which works there.

    The moments are those of the marks, on the clock in question.
    """
    times = OwnTimes({}, {}, {})
    works: tuple[int, int] | None = None
    """The phase and the layer that work at present."""
    outer: list[tuple[int, int] | None] = []
    for number, mark in enumerate(marks):
        if works is not None:
            spent = moments[number] - moments[number - 1]
            phase = times[works[0]]
            phase[works[1]] = phase.get(works[1], 0) + spent
        if mark.kind in (ENTER, ENTER_AGAIN):
            outer.append(works)
            works = (FORWARD if mark.kind == ENTER else RECOMPUTE, mark.place)
        elif mark.kind == LEAVE:
            works = outer.pop() if outer else None
        elif mark.kind == REACH:
            works = (BACKWARD, mark.place)
        else:
            works = None
    return times
