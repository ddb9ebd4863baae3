"""Balanced memory: it is neither nearly full nor uneven nor growing."""

from __future__ import annotations

from traceml.diagnose.rule import Rule, RuleRole
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory

KIND = Kind.BALANCED


def check(facts: Facts) -> Finding:
    """Returns the finding for memory about which no rule found anything."""
    reserved = [
        rank.memory.peak_reserved_bytes
        for rank in facts.ranks
        if rank.memory.peak_reserved_bytes is not None
    ]
    resident = [
        rank.memory.peak_rss_bytes for rank in facts.ranks if rank.memory.peak_rss_bytes is not None
    ]
    name, place = ("peak_reserved_bytes", "GPU") if reserved else ("peak_rss_bytes", "host")
    peak = max(reserved or resident, default=None)
    return Finding(
        kind=KIND,
        section=Section.STEP_MEMORY,
        severity=Severity.INFO,
        claim=f"No memory problem was seen; the {place} memory of a rank peaked at {memory(peak)}.",
        action="Nothing to do.",
        evidence=Evidence(in_bytes(name, peak)),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_MEMORY,
    check=check,
    role=RuleRole.FALLBACK,
)
