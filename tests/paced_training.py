"""A training whose mean step time is the same on an idle and on a busy machine.

Each step ends at a time that was set before the first one, so that a late step is made up for by
the next. It records its steps without torch.
"""

from __future__ import annotations

from processes import STEPS

_LOOP = """
import sys
import time

STEP_S = {step_s!r}


def train(steps):
    session = current()
    session.open()
    ends_s = time.perf_counter()
    for _ in range(steps):
        session.recorder.note(ENTER_STEP)
        ends_s += STEP_S
        time.sleep(max(0.0, ends_s - time.perf_counter()))
        session.recorder.ends += 1
        session.recorder.note(EXIT_STEP, step_ended(session.recorder.ends, False))


train(int(sys.argv[1]))
"""


def paced_training(step_s: float) -> str:
    """The script; its argument is the number of steps."""
    return STEPS + _LOOP.format(step_s=step_s)
