"""What is looked at now and then, as a backward pass begins: the loss, and the process's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from traceml.trace.interruptions import is_interruption
from traceml.trace.loss import Loss
from traceml.trace.recorder import Event
from traceml.trace.session import Session

EVERY_NS = 100_000_000
"""Reading memory costs about 10 µs, and a loss on the GPU as much: in every step, but no more often
than this."""

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0

Seen = tuple[Event, Any]


class Glance:
    """Looks at the loss and at memory when it is time to; between forward and backward the
    activations are alive, and every reading is of the same moment of a step."""

    def __init__(self, session: Session) -> None:
        self._tracer = session.tracer
        self._recorder = session.recorder
        self._loss = Loss(session)
        self._due_ns = 0
        self._at_step_ends = True
        self._look_closely = session.guard(self._see)
        self._look_at_end = session.guard(self._look_at_step_end)
        session.tracer.looks.append(self._look_at_end)

    def look(self, tensors: Any) -> Sequence[Seen]:
        """What there is to see before gradients of these tensors are computed; mostly nothing."""
        now = perf_counter_ns()
        if now < self._due_ns and self._loss.coming is None:
            return ()
        return self._look_closely(now, tensors) or ()

    def _see(self, now: int, tensors: Any) -> list[Seen]:
        seen = self._losses(self._loss.arrived())
        if now < self._due_ns:
            return seen
        self._due_ns = now + EVERY_NS
        if self._at_step_ends:
            self._at_step_ends = False
            self._tracer.looks.remove(self._look_at_end)
        rss = resident_bytes()
        if rss is not None:
            seen.append((self._tracer.see_memory, rss))
        return seen + self._losses(self._loss.read(tensors))

    def _losses(self, loss: float | None) -> list[Seen]:
        return [] if loss is None else [(self._tracer.see_loss, loss)]

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
