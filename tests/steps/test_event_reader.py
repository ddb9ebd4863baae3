"""Events read from a ring while it is written: in order, each once, and gaps are known."""

import pytest

from traceml.model import record_layout
from traceml.steps import events
from traceml.steps.event_reader import MIN_TIMES_EMPTY, EventReader
from traceml.steps.events import ENTER_STEP, EVENT, EVENT_BYTES, EXIT_STEP, step_ended
from traceml.steps.step_machine import StepMachine

FIELDS = [name for name, _ in record_layout.STEP]
CAPACITY = 1024


class Ring:
    """A ring of events on a clock of our own, and its reader."""

    def __init__(self, capacity=CAPACITY):
        self.buffer = bytearray(capacity * EVENT_BYTES)
        self.capacity = capacity
        self.reader = EventReader(self.buffer, 0, capacity, StepMachine())
        self.number = self.ends = 0
        self.now = 1_000

    def note(self, kind, argument=0, takes=10):
        self.put(self.number, kind, argument)
        self.number += 1
        self.now += takes

    def put(self, number, kind, argument=0):
        slot = number % self.capacity * EVENT_BYTES
        EVENT.pack_into(self.buffer, slot, self.now, kind, 0, 0, argument, number + 1)

    def step(self):
        self.note(ENTER_STEP)
        self.ends += 1
        self.note(EXIT_STEP, step_ended(self.ends, False))

    def step_with_fetch(self):
        """A step that the next fetch ends."""
        self.note(events.BEGIN_FETCH, 1)
        self.note(events.END_FETCH, 8)
        self.note(events.BEGIN_BACKWARD)
        self.note(events.END_BACKWARD)
        self.note(events.BEGIN_OPTIMIZER, 1)
        self.ends += 1
        self.note(events.END_OPTIMIZER, events.optimizer_ended(self.ends, 1))

    def read(self, everything=False):
        self.reader.advance(everything)
        done, self.reader.machine.rows.done = self.reader.machine.rows.done, []
        return [dict(zip(FIELDS, row, strict=True)) for row in done]


class RingOfAFastWriter(Ring):
    """While its reader looks for a place to go on, so many more steps are written."""

    def __init__(self, capacity, steps):
        super().__init__(capacity)
        found = self.reader._jump

        def jump(skipped):
            is_sensible = found(skipped)
            for _ in range(steps):
                self.step()
            return is_sensible

        self.reader._jump = jump


@pytest.fixture
def ring():
    return Ring()


def test_a_writer_that_stays_ahead_does_not_shut_the_reader_out():
    """What it writes meanwhile overwrites 3,000 events behind the oldest."""
    ring = RingOfAFastWriter(1 << 14, 1500)
    recorded = 0
    for _ in range(10):
        for _ in range(10_000):
            ring.step()
        recorded += len(ring.read())
    assert recorded > 10 * 1000


def test_every_event_is_read_once_however_often_the_ring_comes_round(ring):
    numbers = []
    for _ in range(20):
        for _ in range(200):
            ring.step()
        numbers += [row["sequence"] for row in ring.read()]
    assert numbers == list(range(1, 4001))


def test_a_slot_that_is_not_written_yet_is_waited_for(ring):
    ring.step()
    late = ring.number
    ring.number += 1
    ring.step()
    assert len(ring.read()) == 1
    ring.put(late, events.LOSE_TRACK)
    assert len(ring.read()) == 1
    assert ring.reader.cursor == ring.number


@pytest.mark.parametrize("before", [0, CAPACITY - 2], ids=["at the beginning", "at the end"])
def test_what_is_written_behind_an_empty_slot_is_found_anywhere_in_the_ring(ring, before):
    for _ in range(before // 2):
        ring.step()
    ring.read()
    ring.number += 1
    ring.step()
    for _ in range(MIN_TIMES_EMPTY - 1):
        assert not ring.read()
    assert len(ring.read()) == 1


def test_a_slot_that_is_never_written_is_skipped_after_some_readings(ring):
    ring.step()
    ring.number += 1  # a signal's handler raised after the slot was reserved
    ring.step()
    assert len(ring.read()) == 1
    for _ in range(MIN_TIMES_EMPTY - 2):
        assert ring.read() == []
    assert len(ring.read()) == 1
    ring.number += 1
    ring.step()
    assert len(ring.read(everything=True)) == 1


def test_steps_that_were_overwritten_are_counted_and_none_is_joined_of_two(ring):
    for _ in range(10):
        ring.step()
    assert len(ring.read()) == 10
    ring.note(ENTER_STEP)
    ring.ends += 1
    ring.note(EXIT_STEP, step_ended(ring.ends, False))
    for _ in range(2 * CAPACITY):
        ring.step()
    rows = ring.read()
    taken = 10 + 1 + 2 * CAPACITY
    assert rows[-1]["sequence"] == taken
    assert [row["sequence"] for row in rows] == list(range(taken - len(rows) + 1, taken + 1))
    assert ring.reader.machine.steps in (taken, taken - 1)  # one may have been torn in two
    complete = [row for row in rows if not row["flags"] & record_layout.NO_STEP]
    assert {row["body_ns"] for row in complete} == {10}


def test_the_step_in_which_events_were_lost_is_no_complete_one(ring):
    """However it goes on: an optimizer that steps would make it one."""
    machine = ring.reader.machine
    for _ in range(3):
        ring.step_with_fetch()
    assert len(ring.read()) == 2
    machine.lose_events(ring.now)
    ring.note(events.BEGIN_OPTIMIZER, 1)
    ring.ends += 5
    ring.note(events.END_OPTIMIZER, events.optimizer_ended(ring.ends, 1))
    ring.note(events.BEGIN_FETCH, 1)
    third, torn = ring.read()
    assert not third["flags"] & record_layout.NO_STEP  # its optimizer had stepped
    assert torn["flags"] & record_layout.StepFlag.ABORTED
    assert torn["sequence"] == 3 + 4 + 1


def test_a_step_whose_optimizer_has_stepped_is_complete_when_events_are_lost(ring):
    for _ in range(3):
        ring.step_with_fetch()
    assert len(ring.read()) == 2
    ring.reader.machine.lose_events(ring.now)
    assert ring.reader.machine.steps == 3
    ring.ends += 2  # of steps whose events are gone
    ring.note(events.BEGIN_FETCH, 1)
    ring.note(events.END_FETCH, 8)
    ring.ends += 1
    ring.note(events.END_OPTIMIZER, events.optimizer_ended(ring.ends, 1))
    ring.read()
    assert ring.reader.machine.steps == 5


def test_a_gap_that_ends_at_an_event_without_a_moment_adds_no_time(ring):
    ring.step()
    ring.read()
    for _ in range(3 * CAPACITY):
        now, ring.now = ring.now, 0
        ring.note(events.SEE_MEMORY, 1, takes=0)
        ring.now = now
        ring.step()
    rows = ring.read()
    assert len(rows) > 10
    assert all(row["start_ns"] >= 1_000 for row in rows)
    assert sum(row["wall_ns"] for row in rows) < ring.now


def test_a_ring_that_fills_says_so(ring):
    assert not ring.reader.is_filling(0.125)
    for _ in range(CAPACITY // 8):
        ring.step()
    assert ring.reader.is_filling(0.125)
    ring.read()
    assert not ring.reader.is_filling(0.125)


@pytest.mark.parametrize("filler", [b"\xff", b"\x7f", b"\x01"])
def test_a_ring_of_garbage_ends_the_reading(filler):
    ring = Ring(64)
    ring.buffer[:] = filler * len(ring.buffer)
    assert ring.read(everything=True) == []
