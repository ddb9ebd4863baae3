"""No data: not one complete step was recorded on all ranks."""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NO_DATA

REASON = "No complete training step was recorded."


def check(facts: Facts) -> Finding | None:
    """Fires when there is nothing to analyse, and says why."""
    if facts.window.steps_analyzed:
        return None
    aborted = sum(rank.steps_aborted for rank in facts.ranks)
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=facts.reason_without_steps or REASON,
        action=(
            "See why the step ended in an exception."
            if aborted
            else "Check that the training loop runs; where it is unusual, mark each step "
            "with `with traceml.trace_step(model):`."
        ),
        evidence={"steps_aborted": aborted, "ranks_seen": len(facts.ranks)},
    )
