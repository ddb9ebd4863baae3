"""Notes what the hooks see, and lets the step machine digest it once per step.

A hook in the middle of a step finds cold caches: there, only the moment is taken. The machine then
runs over all of a step's events in one go, when its code is warm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from traceml.trace.steps import GC, StepTracer

MOST_EVENTS = 256
"""Undigested events: a step of hundreds of micro-batches is digested in parts."""

Event = Callable[[Any, int, Any], Any]
"""A method of the step machine: what happened, the moment, the mark."""


class Recorder:
    """The events of the training thread that the step machine has not seen yet."""

    def __init__(self, tracer: StepTracer, collected_ns: deque[int] | None = None) -> None:
        self.tracer = tracer
        self.optimizer_mark: Any = None
        """The mark at which the last optimizer step began."""
        self._events: list[tuple[Event, Any, int, Any]] = []
        self._collected_ns = deque([0]) if collected_ns is None else collected_ns
        """The time of all garbage collections, as the only item (see `garbage_collection`)."""
        self.noted_ns = 0
        """How much of it has been noted; more than the total is only inside a collection."""

    def note(self, event: Event, what: Any) -> Any:
        """Something happens now; returns its mark on the GPU's timeline, if there is one."""
        gpu = self.tracer.gpu
        now = perf_counter_ns()
        if self._collected_ns[0] > self.noted_ns:
            self.note_collections()
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
        if self._collected_ns[0] > self.noted_ns:
            self.note_collections()
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
            # What was collected meanwhile will be taken out of the fetch when it is noted.
            collected_ns = max(0, self._collected_ns[0] - self.noted_ns)
            self.tracer.resume_fetch(perf_counter_ns() - collected_ns)

    # Garbage collection: no event of its own, since no Python may run where one begins or ends.

    def note_collections(self) -> None:
        """Charge the collections since the last event, in the phase that is still open."""
        total_ns = self._collected_ns[0]
        if total_ns > self.noted_ns:
            self.note_on_host(self.tracer.spend, (GC, total_ns - self.noted_ns))
            self.noted_ns = total_ns

    def skip_collections(self) -> None:
        """Leave the collections since the last event where they happened."""
        self.noted_ns = max(self.noted_ns, self._collected_ns[0])

    # What becomes of the events

    def digest(self) -> None:
        """Feed the step machine with everything noted so far."""
        events, self._events = self._events, []
        try:
            for event, what, now, mark in events:
                event(what, now, mark)
        except BaseException:
            # A step may be half written: the next one begins after it.
            self._events = [(self.tracer.lose_track, True, perf_counter_ns(), None)]
            raise

    def lose_track(self) -> None:
        """Something was interrupted: what it began will not be ended."""
        self._events.append((self.tracer.lose_track, False, perf_counter_ns(), None))

    def forget(self) -> None:
        """Begin anew: in a forked child, or when another thread turns out to train."""
        self._events = []
        self.optimizer_mark = None
        self.skip_collections()
        self.tracer.forget()
