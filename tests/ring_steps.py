"""Takes complete steps straight into a ring: quick, for tests where torch is not the point.

Imported by tests, and put before scripts that a test runs.
"""

import time

from traceml.model import layout
from traceml.trace.current import current
from traceml.trace.session import Session


def write_steps(session: Session, count: int) -> None:
    """Write steps as the tracer does; the ring is made for the first of them."""
    ring = session.open()
    if ring is None:
        return  # there is no room for one
    for _ in range(count):
        began = time.perf_counter_ns()
        known = {"start_ns": began, "wall_ns": 1000, "body_ns": 1000, "optimizer_steps": 1}
        nothing = {"I": 0, "d": 0.0}
        fields = layout.STEP[:-1]  # the ring adds the sequence
        ring.write_step(
            *(known.get(name, nothing.get(kind, layout.NOT_MEASURED)) for name, kind in fields)
        )


def take_steps(count: int) -> None:
    """Take steps in a script; under plain python, nothing."""
    session = current()
    if session is not None:
        write_steps(session, count)
