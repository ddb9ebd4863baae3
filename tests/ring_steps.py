"""Takes complete steps straight into a ring: quick, for tests where torch is not the point.

Imported by tests, and put before scripts that a test runs.
"""

from traceml.steps.events import ENTER_STEP, EXIT_STEP, step_ended
from traceml.trace.current import current
from traceml.trace.recorder import Recorder
from traceml.trace.session import Session


def write_steps(session: Session, count: int) -> None:
    """Note explicit steps as the tracer does; the ring is made for the first of them."""
    if session.open() is not None:  # else there is no room for one
        note_steps(session.recorder, count)


def note_steps(recorder: Recorder, count: int) -> None:
    """Note the events of explicit steps."""
    for _ in range(count):
        recorder.note(ENTER_STEP)
        recorder.ends += 1
        recorder.note(EXIT_STEP, step_ended(recorder.ends, False))


def take_steps(count: int) -> None:
    """Take steps in a script; under plain python, nothing."""
    session = current()
    if session is not None:
        write_steps(session, count)
