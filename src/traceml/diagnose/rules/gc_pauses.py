"""Garbage collection pauses: Python's collector stops the training loop.

On a GPU's clock only what the GPU stood still for counts.
"""

from __future__ import annotations

from traceml.diagnose.host_time import Part, finding_of, spent_on
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.GC_PAUSES


def part(facts: Facts) -> Part | None:
    """What garbage collection took of a step."""
    spent = spent_on(facts, "gc")
    if spent is None:
        return None
    return Part(
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
    return finding_of(part(facts), facts, KIND)
