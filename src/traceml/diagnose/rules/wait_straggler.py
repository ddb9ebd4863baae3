"""Wait straggler: one rank spends more time outside data loading, copies and compute.

*Meaning.* A rank does something that is neither data, copies, compute nor communication: logging,
metrics or saving on rank 0 alone, garbage collection, locks.

*Evidence.* As for [STRAGGLER](#straggler), with `worst_ms` and `median_ms` of the rest.

*Thresholds.* As for [STRAGGLER](#straggler). Garbage collection, logging or compiling is named
where it covers 80 % of the excess; they are measured by the host, so not where the rest is taken
on the GPU's clock.

*What to do.* Where the reason was measured, the action names it and its remedy; else look at what
the loop does on that rank alone, and name a suspect with `traceml.trace_time`.

*Silent* when a part of compute was not measured, which would look like it: then it is a
`STRAGGLER`.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import Late, inside_rest, straggler_rule
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Kind
from traceml.model.quantities import duration

KIND = Kind.WAIT_STRAGGLER

REMEDIES = {
    "gc_s": "call gc.freeze() and gc.disable(), and gc.collect() at the same step on every rank",
    "logging_s": "log less often, or from another thread",
    "compile_s": "mark the shapes that vary as dynamic, or pad them",
}
"""By the activity that takes the time."""


def _next_step(facts: Facts, late: Late) -> str:
    inside = inside_rest(late)
    if inside is not None:
        name, words, part = inside
        names = late.names[0].upper() + late.names[1:]
        return f"{names}: {duration(part.rank_s)} of {words}; {REMEDIES[name]}."
    return (
        f"Look at what the loop does on {late.names} alone: logging, printing, metrics, saving "
        "under `if rank == 0`, locks; name a suspect with traceml.trace_time."
    )


RULE = straggler_rule(
    KIND,
    _next_step,
    Doc(
        severities="warn, crit",
        says="a rank is late because of work outside data loading, copies and compute",
        text=__doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
