"""Logging heavy: printing, logging and writing metrics delay the step.

*Meaning.* Printing, logging and writing metrics take a noticeable part of the step.

*Evidence.* `lost_ms`, `host_ms`, `step_time_ms`, `steps_with` of `steps_seen`, `longest_ms`,
`diagnosis_clock`.

*Thresholds.* 5 % of the step warns from 1 ms per step on, 20 % is critical from 3 ms on. On the
GPU's clock only what the GPU waited for counts: what fits into the rest of the step, or made
single steps late, or all of it where the queue is dry in 50 % of the steps; never the wait for a
batch, and no moment that another cause has claimed.

*What to do.* Log less often (the action says what a tenth would cost), or hand the writing to a
thread.
"""

from __future__ import annotations

from traceml.diagnose.host_time import HostWork, finding_of, host_cause, spent_on
from traceml.diagnose.rule import Doc, Remedy, Symptom, Turn
from traceml.diagnose.what_if import without_host_time
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.LOGGING_HEAVY

LESS_OFTEN = 10  # times: still a dense curve, and the cost falls below anybody's notice


def host_work(facts: Facts) -> HostWork | None:
    """Returns the time of logging in a step; `None` where there was none."""
    spent = spent_on(facts, "logging")
    if spent is None:
        return None
    return HostWork(
        words="logging",
        spent=spent,
        detail=f"{spent.steps} wrote something, the longest for {spent.longest}",
        action=(
            f"Log {LESS_OFTEN} times less often: {duration(spent.host_s)} per step become "
            f"{duration(spent.host_s / LESS_OFTEN)}; or hand the writing to a thread "
            "(logging.handlers.QueueHandler)."
        ),
    )


def check(facts: Facts) -> Finding | None:
    """Fires when logging takes a noticeable share of the step."""
    return finding_of(host_work(facts), facts, KIND)


RULE = host_cause(
    KIND,
    check,
    host_work,
    turn=Turn.HOST_PAUSED,
    what_if=Remedy("without logging", without_host_time("logging_ns")),
    doc=Doc(
        "info, warn, crit",
        "printing and logging hold the step up",
        __doc__,
        symptoms=(Symptom.IDLE_GPU,),
    ),
)
