"""Wait straggler: one rank does something besides data, copies and compute.

Stays silent when a part of compute was not measured: that part would look like it.
"""

from __future__ import annotations

from traceml.diagnose.uneven import Late, find, inside_rest
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.WAIT_STRAGGLER

REMEDIES = {
    "gc_s": "call gc.freeze() and gc.disable(), and gc.collect() at the same step on every rank",
    "logging_s": "log every so many steps, or from another thread",
    "compile_s": "mark the shapes that vary as dynamic, or pad them",
}
"""By what the rest was spent on."""


def check(facts: Facts) -> Finding | None:
    """Fires when the excess of the late ranks lies in the rest of their step."""
    return find(facts, KIND, _next_step)


def _next_step(facts: Facts, late: Late) -> str:
    inside = inside_rest(late)
    if inside is not None:
        name, words, part = inside
        return f"{late.names.capitalize()}: {duration(part.rank_s)} of {words}; {REMEDIES[name]}."
    return (
        f"Look at what the loop does on {late.names} alone: logging, printing, metrics, saving "
        "under `if rank == 0`, locks; name a suspect with traceml.trace_time."
    )
