"""No system data: the host was never sampled."""

from __future__ import annotations

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NO_DATA


def check(facts: Facts) -> Finding | None:
    """Fires when there is no sample."""
    if facts.host.samples:
        return None
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.INFO,
        claim="The host was not sampled.",
        action="The host is sampled once a second: let the run take a few seconds.",
    )


RULE = Rule(kind=KIND, section=Section.SYSTEM, check=check)
