"""Runs every rule, and puts their findings in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.finding_order import has_verdict, order_findings
from traceml.diagnose.nodes import ask, name_machines
from traceml.diagnose.one_off_stalls import with_stalls
from traceml.diagnose.time_account import settle
from traceml.diagnose.user_code import name_lines
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity, consequence

LEADERS = (Section.STABILITY, Section.STEP_TIME, Section.STEP_MEMORY)
"""The sections whose findings may become the primary diagnosis; earlier ones win ties."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, and the one to read first."""

    primary: Finding
    sections: Mapping[Section, tuple[Finding, ...]]
    """At least one finding per section, the most severe first."""


def diagnose(facts: Facts) -> Diagnosis:
    """Returns the diagnosis of a run: findings by section, and the primary one."""
    rules = all_rules()
    found = [finding for rule in rules.checks if (finding := ask(rule, facts)) is not None]
    found += [rules.fallback(each, facts) for each in Section if not has_verdict(each, found)]
    found = [name_machines(_told_of_steps(finding, facts), facts) for finding in found]
    told = order_findings(settle(facts, found))
    sections = {section: tuple(f for f in told if f.section is section) for section in Section}
    return Diagnosis(primary(sections), sections)


def _told_of_steps(finding: Finding, facts: Facts) -> Finding:
    """Returns a finding about the step, with the single steps and lines of code that it is
    about."""
    if finding.section is not Section.STEP_TIME:
        return finding
    return name_lines(facts, with_stalls(finding, facts))


def primary(sections: Mapping[Section, tuple[Finding, ...]]) -> Finding:
    """Returns the finding to read first: what ended the run, what will end it, what slows it, a
    remark.

    Among equals the more severe leads, then stability, then step time, then memory. System and
    process findings are context and never lead. Without any warning, the remark about the step
    leads; without any step, the reason why the run ended.
    """
    found = [finding for section in LEADERS for finding in sections[section]]
    first = min(found, key=reading_order)
    if first.severity is not Severity.INFO:
        return first
    ended = next((finding for finding in found if finding.kind is Kind.KILLED), None)
    step = sections[Section.STEP_TIME][0]
    return ended if ended is not None and step.kind is Kind.NO_DATA else step


def reading_order(finding: Finding) -> tuple[int, int]:
    """Returns the sort key: by consequence, then by severity."""
    return consequence(finding.kind, finding.severity), -finding.severity.weight
