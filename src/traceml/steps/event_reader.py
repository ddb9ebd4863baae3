"""Reads the events of a ring while they are written, and runs the step machine over them.

The writer keeps no count: a slot's last field says which event it holds, so the end is where the
numbers stop. Several threads write, each into a slot that it has reserved before, so the reader may
meet a slot that is not written yet though later ones are: it waits there, and skips the slot when
it is still empty after some readings (a signal's handler raised in between).
"""

from __future__ import annotations

import mmap
import struct

from traceml.steps.events import EVENT, EVENT_BYTES, KINDS, TIMED
from traceml.steps.step_machine import StepMachine

CHUNK = 4096
"""Events that are copied at a time …"""
FIRST_CHUNK = 256
"""… after a first look at so many: mostly there are no more."""
MARGIN = 64
"""Slots that the writer may be overwriting while they are copied: so close, the reader jumps."""
SKIPPED = 1024
"""How far the reader jumps ahead of the oldest event then, so as not to be caught again."""
LOOKAHEAD = 64
"""How far behind a slot that is not written later ones are looked for."""
MIN_TIMES_EMPTY = 4
"""Readings that find a slot empty before it is skipped; the agent reads twice at a time."""
MAX_JUMPS = 8
"""In one reading: a writer that overtakes the reader more often is left alone until the next."""
MAX_EVENTS = 1 << 52
"""A number that no process comes to: the ring is damaged."""
LATEST = 2
"""Threads that write at a time: so many of the last events may be caught in mid-write."""

_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_OFFSET = EVENT_BYTES - _SEQUENCE.size

Buffer = mmap.mmap | bytearray


class EventReader:
    """One ring's events, from a number on."""

    def __init__(
        self, buffer: Buffer, base: int, capacity: int, machine: StepMachine, cursor: int = 0
    ) -> None:
        self._buffer = buffer
        self._base = base
        self._capacity = capacity
        self.machine = machine
        self.cursor = cursor
        """The number of the event that is read next."""
        self._hole = -1
        """The last slot that was found empty, and how often."""
        self._times_empty = 0

    @property
    def is_overtaken(self) -> bool:
        """Whether what is to be read next has been overwritten."""
        return self._is_overtaken(self.cursor)

    def is_filling(self, share: float) -> bool:
        """Whether so large a share of the ring waits to be read."""
        number = self.cursor + int(share * self._capacity)
        return self._sequence(number) > number

    def advance(self, everything: bool = False) -> None:
        """Handle all events that are there, but not many more than the ring holds: a writer that
        is as fast as we are would keep us here. `everything`: nobody will write any more."""
        jumps, enough, count = 0, self.cursor + self._capacity, FIRST_CHUNK
        while everything or self.cursor < enough:
            chunk = self._copy(count)
            count = CHUNK
            handled = self._handle(chunk)
            if self._is_overtaken(self.cursor):
                jumps += 1
                if jumps > MAX_JUMPS or not self._jump(SKIPPED << jumps):
                    return
                enough = self.cursor + self._capacity
                continue
            if handled * EVENT_BYTES == len(chunk):
                continue  # there may be more
            if not self._skip_hole(everything):
                return

    def _sequence(self, number: int) -> int:
        """Which event is in a slot, plus one; 0 for none."""
        slot = self._base + number % self._capacity * EVENT_BYTES
        return int(_SEQUENCE.unpack_from(self._buffer, slot + _SEQUENCE_OFFSET)[0])

    def _copy(self, count: int) -> bytes:
        """So many slots from the cursor on, up to the end of the ring at most."""
        first = self.cursor % self._capacity
        count = min(count, self._capacity - first)
        start = self._base + first * EVENT_BYTES
        return bytes(self._buffer[start : start + count * EVENT_BYTES])

    def _handle(self, chunk: bytes) -> int:
        """Run the machine over the events of a copy, as far as they follow each other.

        The last ones may have been copied in mid-write: they are taken from the ring again.
        """
        first = self.cursor
        if self._is_overtaken(first):
            return -1
        valid = self._valid(chunk)
        settled = max(0, valid - LATEST)
        self._run(chunk[: settled * EVENT_BYTES])
        for number in range(first + settled, first + valid):
            slot = self._base + number % self._capacity * EVENT_BYTES
            self._run(bytes(self._buffer[slot : slot + EVENT_BYTES]))
        return valid

    def _valid(self, chunk: bytes) -> int:
        """How many events at the head of a copy are those that are expected there."""
        numbers = _numbers(chunk)
        first = self.cursor + 1
        if numbers and numbers[-1] == first + len(numbers) - 1:  # as in every full chunk
            expected = range(first, first + len(numbers))
            if all(map(int.__eq__, numbers, expected)):
                return len(numbers)
        for index, number in enumerate(numbers):
            if number != first + index:
                return index
        return len(numbers)

    def _run(self, chunk: bytes) -> None:
        machine = self.machine
        for moment, kind, flags, mark, argument, sequence in EVENT.iter_unpack(chunk):
            machine.is_timed = flags & TIMED
            machine.event = sequence
            if kind < KINDS:
                machine.handlers[kind](argument, moment, mark, flags)
        self.cursor += len(chunk) // EVENT_BYTES

    def _is_overtaken(self, number: int) -> bool:
        """Whether the writer has come round to a slot, or is about to."""
        behind = number - MARGIN
        if behind < 0:
            return self._sequence(number) > number + 1
        return self._sequence(behind) > behind + 1 or self._sequence(number) > number + 1

    def _jump(self, skipped: int) -> bool:
        """Go on behind what was overwritten, and so many more: the writer is still at it.

        Returns whether there is anything that makes sense.
        """
        start = self._base
        slots = memoryview(self._buffer)[start : start + self._capacity * EVENT_BYTES]
        try:
            newest = max(slots.cast("Q")[3::4].tolist())
        finally:
            slots.release()
        if newest > MAX_EVENTS:
            return False
        ahead = min(skipped, self._capacity * 3 // 4)
        cursor = max(self.cursor + 1, newest - self._capacity + ahead)
        self.cursor = cursor
        self.machine.lose_events(self._next_moment())
        return True

    def _next_moment(self) -> int:
        """When the next event happened that has a moment; 0 where none is found."""
        for number in range(self.cursor, self.cursor + CHUNK):
            slot = self._base + number % self._capacity * EVENT_BYTES
            moment, *_, sequence = EVENT.unpack_from(self._buffer, slot)
            if sequence != number + 1:
                return 0
            if moment:
                return int(moment)
        return 0

    def _is_any_written(self, first: int, end: int) -> bool:
        """Whether any of these events is there."""
        place = first % self._capacity
        if place + end - first > self._capacity:  # they go on at the beginning of the ring
            return any(self._sequence(number) == number + 1 for number in range(first, end))
        start = self._base + place * EVENT_BYTES
        slots = bytes(self._buffer[start : start + (end - first) * EVENT_BYTES])
        return any(map(int.__eq__, _numbers(slots), range(first + 1, end + 1)))

    def _skip_hole(self, everything: bool) -> bool:
        """Whether the slot at the cursor was skipped: it is not written, and later ones are."""
        if not self._is_any_written(self.cursor + 1, self.cursor + LOOKAHEAD):
            return False
        if self._sequence(self.cursor) == self.cursor + 1:
            return True  # it has been written meanwhile
        if self._hole != self.cursor:
            self._hole, self._times_empty = self.cursor, 0
        self._times_empty += 1
        if not everything and self._times_empty < MIN_TIMES_EMPTY:
            return False
        self.cursor += 1
        return True


def _numbers(slots: bytes) -> list[int]:
    """Which event is in each of these slots, plus one; 0 for none."""
    return memoryview(slots).cast("Q")[3::4].tolist()
