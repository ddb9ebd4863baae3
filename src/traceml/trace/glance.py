"""What is looked at as a backward pass begins: the loss, and now and then the process's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from traceml.trace.failure import ended_by_device_error
from traceml.trace.interruptions import is_interruption
from traceml.trace.loss import Losses, LossMilestones
from traceml.trace.recorder import Event
from traceml.trace.session import LAST_LOOK_S, Session
from traceml.trace.steps import AwaitedLoss

EVERY_NS = 100_000_000
"""Reading memory costs about 10 µs: in every step, but no more often than this."""

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0

Seen = tuple[Event, Any]


class Glance:
    """Looks at every loss, and at memory when it is time to; between forward and backward the
    activations are alive, and every reading is of the same moment of a step."""

    def __init__(self, session: Session) -> None:
        self._tracer = session.tracer
        self._recorder = session.recorder
        self.losses = Losses(session)
        self._due_ns = 0
        self._at_step_ends = True
        self._look_closely = session.guard(self._see)
        self._look_at_end = session.guard(self._look_at_step_end)
        session.tracer.looks.append(self._look_at_end)
        session.tracer.on_loss = LossMilestones(session).see
        session.last_looks.append(self._look_at_last_loss)

    def look(self, tensors: Any) -> tuple[float | AwaitedLoss | None, Sequence[Seen]]:
        """The loss among these tensors, before their gradients are computed, and what else there
        is to see; mostly nothing."""
        now, losses = perf_counter_ns(), self.losses
        seen: Sequence[Seen] = ()
        if now >= self._due_ns or losses.on_device.coming is not None:
            seen = self._look_closely(now) or ()
        return losses.read(tensors), seen

    def _see(self, now: int) -> list[Seen]:
        arrived = self.losses.arrived()
        seen: list[Seen] = [] if arrived is None else [(self._tracer.see_loss, arrived)]
        if now < self._due_ns:
            return seen
        self._due_ns = now + EVERY_NS
        if self._at_step_ends:
            self._at_step_ends = False
            self._tracer.looks.remove(self._look_at_end)
        rss = resident_bytes()
        if rss is not None:
            seen.append((self._tracer.see_memory, rss))
        return seen

    def _look_at_last_loss(self) -> None:
        """The process ends: read the losses that are still on the device, if it answers soon."""
        if not ended_by_device_error():
            for arrived in self.losses.read_last(time.monotonic() + LAST_LOOK_S):
                self._recorder.note_on_host(self._tracer.see_loss, arrived)

    def _look_at_step_end(self) -> None:
        """Where no backward pass is seen, memory is looked at between steps."""
        now = perf_counter_ns()
        if now >= self._due_ns:
            self._due_ns = now + EVERY_NS
            rss = resident_bytes()
            if rss is not None:
                self._recorder.note_on_host(self._tracer.see_memory, rss)


def resident_bytes() -> int | None:
    """How much memory this process holds; `None` where Linux does not tell.

    Opened each time: a kept descriptor saves half of ten microseconds, ten times a second, and is
    the parent's in a forked child and somebody else's in a script that closes descriptors.
    """
    try:
        descriptor = os.open(_STATM, os.O_RDONLY)
    except OSError as error:
        if is_interruption(error):
            raise
        return None
    try:
        return int(os.read(descriptor, 128).split()[1]) * _PAGE_BYTES
    finally:
        os.close(descriptor)
