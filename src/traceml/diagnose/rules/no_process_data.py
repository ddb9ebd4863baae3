"""No process data: no rank's process was ever sampled."""

from __future__ import annotations

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.NO_DATA


def check(facts: Facts) -> Finding | None:
    """Fires when there is no sample of any rank."""
    if facts.processes:
        return None
    return Finding(
        kind=KIND,
        section=Section.PROCESS,
        severity=Severity.INFO,
        claim="No training process was sampled.",
        action="Processes are sampled once a second: let the run take a few seconds of steps.",
    )


RULE = Rule(kind=KIND, section=Section.PROCESS, check=check)
