"""Puts the findings of a section in order: what explains another follows it or leads it.

Severity decides first, always. Within one severity the consequence decides, then the time lost, and
an explanation stands directly behind what it explains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.rule import RuleRole
from traceml.model.finding import (
    COMPUTE_CAUSES,
    Finding,
    Kind,
    Section,
    Severity,
    consequence,
)

STRAGGLERS = frozenset(
    {
        Kind.INPUT_STRAGGLER,
        Kind.COMPUTE_STRAGGLER,
        Kind.H2D_STRAGGLER,
        Kind.WAIT_STRAGGLER,
        Kind.STRAGGLER,
    }
)

MOSTLY = 0.5  # of what a finding costs: a cause that holds so much of it is the one to read first

SAID_EARLY = frozenset({Kind.NO_DATA, Kind.WARMUP, Kind.INCOMPLETE_DATA})
"""With next to no steps only these are true; any share would be a guess."""


def by_severity(found: Iterable[Finding]) -> list[Finding]:
    """The findings by severity and cost, before what explains another moves to its side."""
    return sorted(found, key=_order)


def order_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """All findings of a run in the order in which to read them."""
    said = _without_guesses(by_severity(found))
    stepped_back = [_step_back(finding, said) for finding in said]
    told = _behind_their_leaders(sorted(stepped_back, key=_order))
    return tuple(_advised(finding, told) for finding in told)


def _advised(finding: Finding, told: Sequence[Finding]) -> Finding:
    """COMPUTE_BOUND with the advice of its first cause, which knows more and may contradict it."""
    cause = next((each for each in told if each.kind in COMPUTE_CAUSES), None)
    if cause is None or finding.kind is not Kind.COMPUTE_BOUND:
        return finding
    return replace(finding, action=cause.action)


def has_verdict(section: Section, found: Iterable[Finding]) -> bool:
    """Whether anything found so far is more than a remark about this section."""
    return any(finding.section is section and not _is_remark(finding) for finding in found)


def _is_remark(finding: Finding) -> bool:
    is_quiet = finding.severity is Severity.INFO or _is_usual(finding)
    return is_quiet and all_rules().of(finding.kind).role in (RuleRole.CAUSE, RuleRole.REMARK)


def _is_usual(finding: Finding) -> bool:
    """Whether it is bad luck that a step with nothing else wrong may have."""
    share = finding.share
    return share is not None and share < all_rules().of(finding.kind).usual_below


def _order(finding: Finding) -> tuple[int, int, bool, float, str, str]:
    """Severity, what it means for the run, verdicts before remarks, the time that could be won.

    Names come last, to be repeatable.
    """
    return (
        -finding.severity.weight,
        consequence(finding.kind, finding.severity),
        _is_remark(finding),
        -(finding.lost_s_per_step or 0.0),
        finding.kind.value,
        finding.claim,
    )


def _without_guesses(said: Sequence[Finding]) -> list[Finding]:
    """Without claims about the step where there are too few steps for any."""
    early = any(
        finding.section is Section.STEP_TIME and finding.kind in (Kind.NO_DATA, Kind.WARMUP)
        for finding in said
    )
    return [
        finding
        for finding in said
        if not early or finding.section is not Section.STEP_TIME or finding.kind in SAID_EARLY
    ]


def _step_back(finding: Finding, said: Sequence[Finding]) -> Finding:
    """No louder than the trouble that this finding explains or that explains it."""
    if all_rules().of(finding.kind).role is RuleRole.CONTEXT:
        reasons = all_rules().explained_by(finding.kind)
        reason = _first(reasons, said, least=Severity.WARNING)
        if reason is None:
            return finding
        claim = f"{finding.claim} {reason.kind.status} explains it."
        return replace(finding, severity=Severity.INFO, claim=claim)
    leader = leader_of(finding, said)
    if leader is None or (leader.severity is Severity.INFO and not _is_usual(finding)):
        return finding
    quieter = min(finding.severity, leader.severity, key=lambda severity: severity.weight)
    return replace(finding, severity=quieter)


def leader_of(finding: Finding, said: Sequence[Finding]) -> Finding | None:
    """The finding behind which this one stands: what it explains, or the rank to blame for it.

    A wait that leaves the GPU without work makes the host look slow: where most of the lost time
    is that wait's, HOST_BOUND stands behind HOST_SYNC and not before it. A cause that is most of
    the step stands before all that it explains.
    """
    for other in said:
        if finding.kind in all_rules().of(other.kind).explains and _is_most_of_the_step(other):
            return other
    if finding.kind is Kind.HOST_BOUND:
        return next((other for other in said if _outweighs_host(other, finding)), None)
    rule = all_rules().of(finding.kind)
    if _is_most_of_the_step(finding):
        return None
    for other in said:
        if other.kind in rule.explains and _may_lead(other, finding):
            return other
    for other in said:
        only_its_rank = finding.ranks and set(finding.ranks) <= set(other.ranks)
        if only_its_rank and other.kind in rule.yields_to:
            return other
    return None


def _is_most_of_the_step(cause: Finding) -> bool:
    """Whether everything else in the step is longer for this cause: the CPU that it did not get."""
    usual = all_rules().of(cause.kind).usual_below
    is_most = bool(usual) and cause.share is not None and cause.share > usual
    return is_most and cause.severity is Severity.CRITICAL


def _may_lead(other: Finding, cause: Finding) -> bool:
    """Whether this cause may stand behind the other finding: not where that is between steps."""
    if other.section is not cause.section or other.is_between_steps:
        return False
    return other.kind is not Kind.HOST_BOUND or not _outweighs_host(cause, other)


def _outweighs_host(cause: Finding, host_bound: Finding) -> bool:
    """Whether waiting for the device is most of what a slow host seems to cost."""
    waited_s, lost_s = cause.lost_s_per_step, host_bound.lost_s_per_step
    if cause.kind is not Kind.HOST_SYNC or waited_s is None or lost_s is None:
        return False
    return waited_s >= MOSTLY * lost_s


def _first(kinds: Collection[Kind], said: Sequence[Finding], least: Severity) -> Finding | None:
    """The first finding in reading order that is of one of these kinds."""
    return next(
        (
            finding
            for finding in said
            if finding.kind in kinds and finding.severity.weight >= least.weight
        ),
        None,
    )


def _behind_their_leaders(ordered: Sequence[Finding]) -> list[Finding]:
    """The same findings with each follower moved directly behind its leader of equal severity."""
    leaders = [
        leader if leader is not None and leader.severity is finding.severity else None
        for finding in ordered
        for leader in [leader_of(finding, ordered)]
    ]
    told: list[Finding] = []

    def tell(leader: Finding | None) -> None:
        for finding, behind in zip(ordered, leaders, strict=True):
            if behind is leader:
                told.append(finding)
                tell(finding)

    tell(None)
    return told
