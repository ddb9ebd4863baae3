"""Normal system: the machine shows nothing to act on."""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NORMAL


def check(facts: Facts) -> Finding:
    """What to say when no system rule found anything."""
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.INFO,
        claim="The host showed nothing to act on.",
        action="Nothing to do.",
        evidence={"samples": facts.host.samples, "cpu_share": facts.host.cpu_share.mean},
    )
