"""No stability data: nothing was trained, or neither a loss nor the end is known."""

from __future__ import annotations

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NO_DATA


def check(facts: Facts) -> Finding | None:
    """Fires when nothing can be said about the run's end or its loss."""
    known = facts.stability
    if known.failure is not None or known.loss is not None:
        return None
    if facts.window.steps_taken and known.is_over:
        return None
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.INFO,
        claim="Neither a loss nor the end of a training was seen.",
        action="Nothing to do.",
        evidence=Evidence(as_number("exit_status", known.exit_status)),
    )


RULE = Rule(kind=KIND, section=Section.STABILITY, check=check)
