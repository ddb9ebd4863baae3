"""Straggler: one rank is late for several reasons, or for one that was not measured."""

from __future__ import annotations

from traceml.diagnose.uneven import Late, find
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.STRAGGLER

MOST_PHASES = 3  # more than these together hold hardly anything


def check(facts: Facts) -> Finding | None:
    """Fires when no single cause covers the excess of the late ranks."""
    return find(facts, KIND, _next_step)


def _next_step(facts: Facts, late: Late) -> str:
    if late.phase is None:
        return (
            f"Mark what {late.names} spends its time on with traceml.trace_time: a phase that "
            "holds the difference could not be measured."
        )
    parts = sorted(late.worst.phases.items(), key=lambda item: -item[1].excess_s)
    listed = ", then ".join(
        f"{phase.value} ({duration(part.excess_s)} more)"
        for phase, part in parts[:MOST_PHASES]
        if part.excess_s > 0
    )
    return f"Take one cause of {late.names} at a time: {listed}."
