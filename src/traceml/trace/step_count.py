"""How many steps this process has taken, for the few who have to know: a failure, a limit.

Steps are made outside, of the events in the ring. Here the same machine is run over the same events
when somebody asks, from where the agent has saved it on: exact, and nothing in all other steps.
"""

from __future__ import annotations

import threading

from traceml.steps import saved_state
from traceml.steps.event_reader import EventReader
from traceml.steps.step_machine import StepMachine
from traceml.trace.recorder import STAGED_EVENTS, Recorder
from traceml.trace.ring import STATE_BYTES, Ring

MANY_EVENTS = 2_000
"""So many events take some milliseconds to count: it may be quicker to begin where the agent is."""


class StepCount:
    """The steps of this process so far."""

    def __init__(self, recorder: Recorder, limit: int) -> None:
        self._recorder = recorder
        self._limit = limit
        self._reader: EventReader | None = None
        self._ring: Ring | None = None
        self._lock = threading.Lock()
        self._last = 0

    def at(self, ring: Ring | None, events_before: int) -> int:
        """How many complete steps there were when so many events had been noted."""
        if not self._lock.acquire(blocking=False):
            return self._last  # another thread counts, or this one did when a signal came
        is_whole = False
        try:
            reader = self._reader
            if reader is None or self._ring is not ring or self._is_behind(reader):
                reader = self._reader = self._begin(ring)
                self._ring = ring
            elif ring is not None and self._recorder.written - reader.cursor > MANY_EVENTS:
                saved = self._begin(ring)
                if saved.cursor > reader.cursor:
                    reader = self._reader = saved
            reader.advance(everything=True)
            reader.machine.rows.done.clear()
            self._last = reader.machine.steps_at(events_before)
            is_whole = True
            return self._last
        finally:
            if not is_whole:  # a signal's handler raised among the events: count them anew
                self._reader = None
            self._lock.release()

    def stepped(self, ring: Ring | None, events_before: int) -> int:
        """The same, and the step that is over but for what is done until the next batch."""
        complete = self.at(ring, events_before)
        reader = self._reader
        return complete + bool(reader is not None and reader.machine.step.stepped)

    def has_fetched(self, ring: Ring | None, events_before: int) -> bool:
        """Whether the step that is open after these events has fetched a batch."""
        self.at(ring, events_before)
        reader = self._reader
        return reader is not None and reader.machine.step.fetched_in_step

    def _is_behind(self, reader: EventReader) -> bool:
        """Whether events may be gone that the reader has not seen, and the agent has."""
        behind = self._recorder.written - reader.cursor
        return self._ring is not None and behind > self._ring.event_capacity // 2

    def _begin(self, ring: Ring | None) -> EventReader:
        if ring is None:
            staged = self._recorder.staged or bytearray()
            first = max(0, self._recorder.written - STAGED_EVENTS)
            return EventReader(staged, 0, STAGED_EVENTS, StepMachine(self._limit), first)
        saved = saved_state.load(ring.mapping, ring.state_base, STATE_BYTES, self._limit)
        machine, cursor = StepMachine(self._limit), ring.first_event
        if saved is not None:
            machine, cursor = saved.machine, saved.cursor
        place = ring.mapping, ring.event_base, ring.event_capacity
        return EventReader(*place, machine, cursor)
