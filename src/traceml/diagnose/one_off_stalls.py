"""Reports time lost in a few single steps as such, instead of as a mean."""

from __future__ import annotations

from dataclasses import replace

from traceml.diagnose.thresholds import Threshold
from traceml.facts.facts import Facts
from traceml.facts.few_steps import FewSteps, few_steps
from traceml.model.evidence import Evidence, as_words, in_ms
from traceml.model.finding import Finding, Kind, Severity, StepSpan
from traceml.model.phase import Phase
from traceml.model.quantities import duration

DESCRIBES = frozenset({Kind.COMPUTE_BOUND, Kind.BALANCED})
"""Kinds that describe a mean step without a loss."""
WARN_S = 10.0
"""A single shorter stall is nothing to act on."""


def few_steps_of(facts: Facts, phase: Phase) -> FewSteps | None:
    """Returns the few steps that hold most of a phase; `None` where no few steps do."""
    return (
        None
        if facts.step_table is None
        else few_steps(facts.step_table, facts.step_table.phase(phase))
    )


def stalled(finding: Finding, few: FewSteps | None, warn: Threshold, cause: str) -> Finding | None:
    """Returns the finding as one about a few steps; `None` where the other steps lose time as well.

    Never critical, because it is not how the run goes. A single short stall is only a remark.
    `cause` says where the time went: "2.0 s of it `waiting for data`".
    """
    if few is None or warn.is_reached(few.other_lost_s, few.other_step_s):
        return None
    words = few.words
    matters = few.lost_s >= WARN_S or len(few.numbers) > 1
    return replace(
        finding,
        severity=Severity.WARNING if matters else Severity.INFO,
        claim=(
            f"{words[0].upper()}{words[1:]} took {duration(few.step_s)}, "
            f"{duration(few.lost_s)} of it {cause}; without {few.pronoun} a mean step takes "
            f"{duration(few.other_step_s)}."
        ),
        is_one_off=True,
        steps=StepSpan(min(few.numbers), max(few.numbers)),
        evidence=Evidence(
            *finding.evidence.pieces,
            as_words("stalled_steps", ", ".join(map(str, few.numbers))),
            in_ms("stalled_ms", few.lost_s),
            in_ms("other_steps_ms", few.other_step_s),
        ),
    )


def with_stalls(finding: Finding, facts: Facts) -> Finding:
    """Returns the finding with a sentence about the few steps that took half of all the time, if
    any."""
    if finding.kind not in DESCRIBES or facts.step_table is None:
        return finding
    step_s = facts.step_table.step()
    few = few_steps(facts.step_table, step_s, step_s)
    if few is None:
        return finding
    words = few.words
    stalls = (
        f"{words[0].upper()}{words[1:]} took {duration(few.step_s)}; without {few.pronoun} a mean "
        f"step takes {duration(few.other_step_s)}."
    )
    return replace(finding, claim=f"{finding.claim} {stalls}")
