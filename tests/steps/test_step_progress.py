"""How far a process is in its open step: its innermost open phase, and its collectives."""

from traceml.steps import saved_state
from traceml.steps.events import BACKWARD, COMMUNICATION, FORWARD
from traceml.steps.step_machine import StepMachine

SLOT_BYTES = 1 << 16


def machine_in_a_step() -> StepMachine:
    machine = StepMachine()
    machine.begin(FORWARD, 1_000, 0)
    return machine


def test_the_innermost_open_phase_is_known():
    machine = machine_in_a_step()
    assert machine.open_phase == FORWARD
    machine.begin(COMMUNICATION, 2_000, 0)
    assert machine.open_phase == COMMUNICATION
    machine.end(COMMUNICATION, 3_000, 0)
    machine.end(FORWARD, 4_000, 0)
    assert machine.open_phase is None


def test_collectives_are_counted_since_the_last_step():
    machine = machine_in_a_step()
    for at in (2_000, 3_000):
        machine.begin(COMMUNICATION, at, 0)
        machine.end(COMMUNICATION, at + 500, 0)
    assert machine.collectives == 2
    machine.close(5_000, 0, 0)
    assert machine.collectives == 0
    machine.begin(BACKWARD, 6_000, 0)
    assert machine.collectives == 0


def test_after_a_gap_the_count_is_not_known_until_the_next_step():
    machine = machine_in_a_step()
    machine.lose_events(5_000)
    machine.begin(COMMUNICATION, 6_000, 0)
    assert machine.collectives is None
    machine.close(7_000, 0, 0)
    assert machine.collectives == 0


def test_whoever_goes_on_reading_counts_on():
    machine = machine_in_a_step()
    machine.begin(COMMUNICATION, 2_000, 0)
    buffer = bytearray(2 * SLOT_BYTES)
    assert saved_state.save(buffer, 0, SLOT_BYTES, saved_state.Saved(machine, 7, 0))
    found = saved_state.load(buffer, 0, SLOT_BYTES, 0)
    assert found is not None
    assert (found.machine.collectives, found.machine.open_phase) == (1, COMMUNICATION)
