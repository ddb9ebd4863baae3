"""Notes what the hooks see, and lets the step machine digest it once per step.

A hook in the middle of a step finds cold caches: there, only the moment is taken. The machine then
runs over all of a step's events in one go, when its code is warm.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from traceml.trace.steps import StepTracer

MOST_EVENTS = 256
"""Undigested events: a step of hundreds of micro-batches is digested in parts."""

Event = Callable[[Any, int, Any], Any]
"""A method of the step machine: what happened, the moment, the mark."""


class Recorder:
    """The events of the training thread that the step machine has not seen yet."""

    def __init__(self, tracer: StepTracer) -> None:
        self.tracer = tracer
        self._events: list[tuple[Event, Any, int, Any]] = []

    def note(self, event: Event, what: Any) -> Any:
        """Something happens now; returns its mark on the GPU's timeline, if there is one."""
        gpu = self.tracer.gpu
        now = perf_counter_ns()
        mark = None if gpu is None else gpu.mark()
        self._events.append((event, what, now, mark))
        if len(self._events) > MOST_EVENTS:
            self.digest()
        return mark

    def note_on_host(self, event: Event, what: Any) -> None:
        """Something that has no place on the GPU's timeline, and whose moment does not matter."""
        self._events.append((event, what, 0, None))
        if len(self._events) > MOST_EVENTS:
            self.digest()

    def note_boundary(self, event: Event, what: Any) -> None:
        """Something happens where a step may end or begin."""
        gpu = self.tracer.gpu
        now = perf_counter_ns()
        mark = None if gpu is None else gpu.mark_boundary()
        self._events.append((event, what, now, mark))

    def note_and_digest(self, event: Event, what: Any) -> None:
        """Something happens that ends a step."""
        self.note_boundary(event, what)
        self.digest()

    def begin_fetch(self, source: int) -> None:
        """A batch is asked for: the step before may end here."""
        self.note_boundary(self.tracer.begin_fetch, source)
        if not self.tracer.is_explicit:
            self.digest()
            self.tracer.resume_fetch(perf_counter_ns())

    def digest(self) -> None:
        """Feed the step machine with everything noted so far."""
        events, self._events = self._events, []
        for event, what, now, mark in events:
            event(what, now, mark)

    def forget(self) -> None:
        """Begin anew: in a forked child, or when another thread turns out to train."""
        self._events = []
        self.tracer.forget()
