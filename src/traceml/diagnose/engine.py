"""Asks every rule, and puts what they found in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traceml.diagnose.rules import (
    balanced,
    compute_bound,
    input_bound,
    memory_balanced,
    no_data,
    no_memory_data,
    no_process_data,
    no_system_data,
    process_normal,
    system_normal,
    wait_heavy,
)
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Section, Severity

Rule = Callable[[Facts], "Finding | None"]

RULES: tuple[Rule, ...] = (
    compute_bound.check,
    input_bound.check,
    no_data.check,
    no_memory_data.check,
    no_process_data.check,
    no_system_data.check,
    wait_heavy.check,
)

CALM: Mapping[Section, Callable[[Facts], Finding]] = {
    Section.STEP_TIME: balanced.check,
    Section.STEP_MEMORY: memory_balanced.check,
    Section.SYSTEM: system_normal.check,
    Section.PROCESS: process_normal.check,
}
"""What to say of a section in which no rule found anything."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, and the one to read first."""

    primary: Finding
    sections: Mapping[Section, tuple[Finding, ...]]
    """At least one finding each, the worst first."""


def diagnose(facts: Facts) -> Diagnosis:
    """What is to be said about a run, section by section."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    sections = {
        section: tuple(sorted((f for f in found if f.section is section), key=_order))
        or (calm(facts),)
        for section, calm in CALM.items()
    }
    return Diagnosis(_primary(sections), sections)


def _order(finding: Finding) -> tuple[int, float, str]:
    """Severity first, then the time that could be won; the name only to be repeatable."""
    return -finding.severity.weight, -(finding.lost_s_per_step or 0.0), finding.kind.value


def _primary(sections: Mapping[Section, tuple[Finding, ...]]) -> Finding:
    """Step time leads, unless nothing is wrong with it and memory is about to run out."""
    step_time, memory = sections[Section.STEP_TIME][0], sections[Section.STEP_MEMORY][0]
    memory_leads = step_time.severity is Severity.INFO and memory.severity is Severity.CRITICAL
    return memory if memory_leads else step_time
