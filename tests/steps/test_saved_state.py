"""Whoever goes on from a saved state makes the same steps, wherever the one before was killed."""

import json
import zlib

import pytest

from traceml.steps import events, saved_state
from traceml.steps.event_reader import EventReader
from traceml.steps.events import EVENT, EVENT_BYTES, EVENT_WITH_FLOAT, optimizer_ended, step_ended
from traceml.steps.step_machine import StepMachine

SLOT_BYTES = 1 << 14
CAPACITY = 1024


def a_training():
    """Events of everything that a machine has to remember: kind, argument, flags, mark, loss."""
    mark = ends = 0
    yield events.HOLD_IN_GRAPH, events.graph_contents(1, 1), 0, 7, None
    yield events.HOLD_OPTIMIZER, 3, 0, 7, None
    for step in range(6):
        timed = events.TIMED if step % 2 else 0
        mark += 1
        yield events.BEGIN_FETCH, 1, timed, mark, None
        yield events.END_FETCH, 8, timed, mark + 1, None
        yield events.BEGIN_FORWARD, 3, timed, mark + 2, None
        yield events.END_FORWARD, 3, timed, mark + 3, None
        yield events.SPEND, 5, events.GC << events.CAUSE_SHIFT, 0, None
        yield events.BEGIN_BACKWARD, step, timed | events.AWAITED_LOSS, mark + 4, None
        yield events.HAVE_LOCAL_GRADIENTS, 0, timed, mark + 5, None
        yield events.END_BACKWARD, 0, timed, mark + 6, None
        yield events.BEGIN_OPTIMIZER, 1, timed, mark + 7, None
        ends += 1
        yield events.END_OPTIMIZER, optimizer_ended(ends, 1), timed, mark + 8, None
        yield events.SEE_LOSS, 0, 0, step, 1.0 / (step + 1)
        yield events.BEGIN_FETCH, 2, timed, mark + 9, None
        for reached in range(mark, mark + 10):
            yield events.REACH_MARK, 10, 0, reached, None
        mark += 9
        yield events.END_FETCH, 8, 0, 0, None
        yield events.BEGIN_FORWARD, 0, 0, 0, None
        yield events.END_FORWARD, 0, 0, 0, None
        yield events.BEGIN_FETCH, 2, timed, mark, None
        yield events.END_EPOCH, 2, 0, 0, None
    yield events.BEGIN_REPLAY, 7, 0, 0, None
    yield events.END_REPLAY, optimizer_ended(ends, 7), 0, 0, None
    for _ in range(3):
        yield events.ENTER_STEP, 0, 0, 0, None
        ends += 1
        yield events.EXIT_STEP, step_ended(ends, False), 0, 0, None
    yield events.FINISH, 0, 0, 0, None


def make_ring():
    buffer = bytearray(CAPACITY * EVENT_BYTES + 2 * SLOT_BYTES)
    count = 0
    for kind, argument, flags, mark, loss in a_training():
        packer = EVENT if loss is None else EVENT_WITH_FLOAT
        what = argument if loss is None else loss
        moment = 1_000 + 10 * count
        packer.pack_into(buffer, count * EVENT_BYTES, moment, kind, flags, mark, what, count + 1)
        count += 1
    return buffer, count


def rows_of(machine):
    machine.rows.flush()
    return machine.rows.done


def test_a_killed_reader_is_followed_by_one_that_makes_the_same_steps():
    buffer, count = make_ring()
    whole = EventReader(buffer, 0, CAPACITY, StepMachine())
    whole.advance(everything=True)
    expected = rows_of(whole.machine)
    assert len(expected) > 9
    assert any(row[13] >= 0 for row in expected), "some step has times of the GPU"
    base = CAPACITY * EVENT_BYTES
    for cut in range(count):
        part = bytearray(buffer)
        part[cut * EVENT_BYTES : count * EVENT_BYTES] = bytes((count - cut) * EVENT_BYTES)
        first = EventReader(part, 0, CAPACITY, StepMachine())
        first.advance(everything=False)
        done = list(first.machine.rows.done)
        saved = saved_state.Saved(first.machine, first.cursor, len(done))
        assert saved_state.save(part, base, SLOT_BYTES, saved)
        found = saved_state.load(part, base, SLOT_BYTES, 0)
        assert found is not None and (found.cursor, found.rows) == (cut, len(done))
        second = EventReader(buffer, 0, CAPACITY, found.machine, found.cursor)
        second.advance(everything=True)
        assert done + rows_of(second.machine) == expected, f"killed after event {cut}"
        assert second.machine.steps == whole.machine.steps


def as_saved_before(part, base):
    """The state in a ring as the version before wrote it: with fewer totals, and less of a step."""
    head = saved_state._HEAD
    starts = [base + slot * SLOT_BYTES for slot in (0, 1)]
    start = max(starts, key=lambda each: head.unpack_from(part, each)[0])
    number, length, _ = head.unpack_from(part, start)
    begin = start + head.size
    plain = json.loads(bytes(part[begin : begin + length]))
    opened = plain["open"]
    for totals in (plain["empty"], opened["totals"], opened["snapshot"]):
        del totals[events.CLOSURE :]
    if opened["optimizer_end"] is not None:
        del opened["optimizer_end"][2][events.CLOSURE :]
    del opened["evaluation_end"], opened["is_exhausted"]
    text = json.dumps(plain).encode()
    head.pack_into(part, start, number, len(text), zlib.crc32(text))
    part[begin : begin + len(text)] = text


def test_the_state_of_the_version_before_is_gone_on_from():
    buffer, count = make_ring()
    base = CAPACITY * EVENT_BYTES
    whole = EventReader(buffer, 0, CAPACITY, StepMachine())
    whole.advance(everything=True)
    for cut in range(1, count, 7):
        part = bytearray(buffer)
        part[cut * EVENT_BYTES : count * EVENT_BYTES] = bytes((count - cut) * EVENT_BYTES)
        first = EventReader(part, 0, CAPACITY, StepMachine())
        first.advance(everything=False)
        assert saved_state.save(
            part, base, SLOT_BYTES, saved_state.Saved(first.machine, first.cursor, 0)
        )
        as_saved_before(part, base)
        found = saved_state.load(part, base, SLOT_BYTES, 0)
        assert found is not None and found.cursor == cut
        second = EventReader(buffer, 0, CAPACITY, found.machine, found.cursor)
        second.advance(everything=True)
        assert second.machine.steps == whole.machine.steps


def machine_with(steps):
    machine = StepMachine()
    machine.steps = steps
    return machine


def test_of_two_states_the_later_is_taken_and_the_earlier_where_that_is_damaged():
    buffer = bytearray(2 * SLOT_BYTES)
    for steps in (1, 2, 3):
        assert saved_state.save(
            buffer, 0, SLOT_BYTES, saved_state.Saved(machine_with(steps), steps, 0)
        )
    found = saved_state.load(buffer, 0, SLOT_BYTES, 0)
    assert found is not None and found.machine.steps == 3
    later = 0 if buffer[0] == 3 else SLOT_BYTES
    buffer[later + 100] ^= 1
    found = saved_state.load(buffer, 0, SLOT_BYTES, 0)
    assert found is not None and found.machine.steps == 2


def test_a_state_that_does_not_fit_leaves_the_one_before():
    buffer = bytearray(2 * SLOT_BYTES)
    assert saved_state.save(buffer, 0, SLOT_BYTES, saved_state.Saved(machine_with(1), 1, 0))
    large = machine_with(2)
    large.usual_optimizers = set(range(SLOT_BYTES))
    assert not saved_state.save(buffer, 0, SLOT_BYTES, saved_state.Saved(large, 2, 0))
    found = saved_state.load(buffer, 0, SLOT_BYTES, 0)
    assert found is not None and found.machine.steps == 1


@pytest.mark.parametrize("content", [b"\0", b"\xff", b"{"])
def test_what_is_no_state_is_none(content):
    assert saved_state.load(bytearray(content * 2 * SLOT_BYTES), 0, SLOT_BYTES, 0) is None
