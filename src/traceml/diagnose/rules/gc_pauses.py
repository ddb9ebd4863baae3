"""Garbage collection pauses: Python's collector stops the training loop.

*Meaning.* Python's garbage collector stops the training loop, for longer the more objects there
are.

*Evidence.* Time in collections, from `gc.callbacks`: `lost_ms`, `host_ms`, `step_time_ms`,
`steps_with` of `steps_seen`, `longest_ms`, `diagnosis_clock`.

*Thresholds.* 5 % of the step warns from 1 ms per step on, 20 % is critical from 3 ms on. On the
GPU's clock only what the GPU waited for counts: what fits into the rest of the step, or made
single steps late, or all of it where the queue is dry in 50 % of the steps; never the wait for a
batch, and no moment that another cause has claimed.

*What to do.* `gc.freeze()` once everything is set up, `gc.disable()`, and `gc.collect()` at
moments of your choosing; keep fewer Python objects alive.
"""

from __future__ import annotations

from traceml.diagnose.host_time import HostWork, finding_of, host_cause, spent_on
from traceml.diagnose.rule import Doc, Remedy, Symptom, Turn
from traceml.diagnose.what_if import without_host_time
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.GC_PAUSES


def host_work(facts: Facts) -> HostWork | None:
    """Returns the time of garbage collection in a step; `None` where there was none."""
    spent = spent_on(facts, "gc")
    if spent is None:
        return None
    return HostWork(
        words="garbage collection",
        spent=spent,
        detail=f"{spent.steps} were stopped by it, the longest for {spent.longest}",
        action=(
            "Call gc.freeze() once everything is set up, then gc.disable(), and gc.collect() "
            f"between epochs: no step is stopped for {spent.longest} then. Objects that pile up "
            "(lists of losses, samples kept as Python objects) make every collection longer."
        ),
    )


def check(facts: Facts) -> Finding | None:
    """Fires when collections take a noticeable share of the step."""
    return finding_of(host_work(facts), facts, KIND)


RULE = host_cause(
    KIND,
    check,
    host_work,
    turn=Turn.HOST_PAUSED,
    what_if=Remedy("without garbage collection", without_host_time("gc_ns")),
    doc=Doc(
        "info, warn, crit",
        "garbage collection stops the step",
        __doc__,
        symptoms=(Symptom.STUTTER,),
    ),
)
