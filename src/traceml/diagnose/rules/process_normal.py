"""Normal processes: the training processes show nothing to act on."""

from __future__ import annotations

from traceml.diagnose.rule import Rule, RuleRole
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NORMAL


def check(facts: Facts) -> Finding:
    """Returns the finding for processes about which no rule found anything."""
    return Finding(
        kind=KIND,
        section=Section.PROCESS,
        severity=Severity.INFO,
        claim="The training processes showed nothing to act on.",
        action="Nothing to do.",
        evidence=Evidence(as_number("processes", len(facts.processes))),
    )


RULE = Rule(
    kind=KIND,
    section=Section.PROCESS,
    check=check,
    role=RuleRole.FALLBACK,
)
