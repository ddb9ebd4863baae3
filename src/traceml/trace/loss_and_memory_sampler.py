"""Samples a step as its backward pass begins: the loss, and now and then the process's memory."""

from __future__ import annotations

import os
import time
from time import perf_counter_ns

from traceml.steps.events import SEE_MEMORY
from traceml.trace.failure import ended_by_device_error
from traceml.trace.interruptions import is_interruption
from traceml.trace.loss import Losses
from traceml.trace.session import LAST_LOOK_S, Session

EVERY_NS = 100_000_000
"""Reading memory costs about 10 µs: in every step, but no more often than this."""

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


class LossAndMemorySampler:
    """Reads every loss, and memory when it is time to; between forward and backward the
    activations are alive, and every reading is of the same moment of a step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder = session.recorder
        self.losses = Losses(session)
        self._at_step_ends = True
        self._recorder.look_at_memory = session.guard(self._look_at_memory)
        session.looks.append(self._look_at_step_end)
        session.before_last_record.append(self._look_at_last_loss)

    def note_arrived(self) -> None:
        """A loss was sent for: note it, if it has come from the device."""
        arrived = self.losses.arrived()
        if arrived is not None:
            loss, number = arrived
            self._recorder.note_loss(number, loss)
            for callback in self._session.on_loss_arrived:
                callback(loss)

    def _look_at_last_loss(self) -> None:
        """The process ends: read the losses that are still on the device, if it answers soon."""
        if not ended_by_device_error():
            for loss, number in self.losses.read_last(time.monotonic() + LAST_LOOK_S):
                self._recorder.note_loss(number, loss)

    def _look_at_step_end(self) -> None:
        """Where no backward pass is seen, memory is looked at between steps."""
        now = perf_counter_ns()
        if now >= self._recorder.due_ns:
            self._note_memory(now)

    def _look_at_memory(self, now: int) -> None:
        """A backward pass begins, and it is time to look."""
        if self._at_step_ends:
            self._at_step_ends = False
            self._session.looks.remove(self._look_at_step_end)
        self._note_memory(now)

    def _note_memory(self, now: int) -> None:
        self._recorder.due_ns = now + EVERY_NS
        rss = resident_bytes()
        if rss is not None:
            self._recorder.note_on_host(SEE_MEMORY, rss)
        for callback in self._session.on_memory_reading:
            callback()


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
