"""No memory data: neither the GPU's allocator nor the host's memory was read."""

from __future__ import annotations

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.facts.memory import NO_MEMORY
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NO_DATA


def check(facts: Facts) -> Finding | None:
    """Fires when no rank's memory is known."""
    if any(rank.memory != NO_MEMORY for rank in facts.ranks):
        return None
    return Finding(
        kind=KIND,
        section=Section.STEP_MEMORY,
        severity=Severity.INFO,
        claim="No rank's memory was read.",
        action="Memory is read once a second: let the run take a few seconds of steps.",
    )


RULE = Rule(kind=KIND, section=Section.STEP_MEMORY, check=check)
