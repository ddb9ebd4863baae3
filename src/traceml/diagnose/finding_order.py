"""Puts the findings of a section in order: each cause stands next to what it explains.

Severity comes first, always. Within one severity the consequence decides, then the time lost; a
cause stands directly behind what it explains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.nodes import listed_nodes
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

MOSTLY = 0.5
"""Of a finding's cost: a cause that accounts for this share of it is read first."""

SAID_EARLY = frozenset({Kind.NO_DATA, Kind.WARMUP, Kind.INCOMPLETE_DATA})
"""With very few steps only these kinds are reported; any share would be a guess."""


def by_severity(found: Iterable[Finding]) -> list[Finding]:
    """Returns the findings by severity and cost, before causes move to what they explain."""
    return sorted(found, key=_order)


def order_findings(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns all findings of a run in the order in which to read them."""
    said = _without_guesses(by_severity(found))
    stepped_back = [_step_back(finding, said) for finding in said]
    told = _behind_their_leaders(sorted(stepped_back, key=_order))
    return tuple(_advised(finding, told) for finding in told)


def _advised(finding: Finding, told: Sequence[Finding]) -> Finding:
    """Returns COMPUTE_BOUND and COMM_BOUND with the action of their first cause, which is more
    specific; COMM_BOUND also names the machine that it waits for."""
    link = next((each for each in told if each.kind is Kind.SLOW_LINK), None)
    if link is not None and finding.kind is Kind.COMM_BOUND:
        claim = f"{finding.claim} They wait for the link of {listed_nodes(link.nodes)}."
        return replace(finding, claim=claim, action=link.action, nodes=link.nodes)
    cause = next((each for each in told if each.kind in COMPUTE_CAUSES), None)
    if cause is None or finding.kind is not Kind.COMPUTE_BOUND:
        return finding
    return replace(finding, action=cause.action)


def has_verdict(section: Section, found: Iterable[Finding]) -> bool:
    """Returns whether any finding is more than a remark about this section."""
    return any(finding.section is section and not _is_remark(finding) for finding in found)


def _is_remark(finding: Finding) -> bool:
    is_quiet = finding.severity is Severity.INFO or _is_usual(finding)
    return is_quiet and all_rules().of(finding.kind).role in (RuleRole.CAUSE, RuleRole.REMARK)


def _is_usual(finding: Finding) -> bool:
    """Returns whether the finding is a small loss that a healthy step may have."""
    share = finding.share
    return share is not None and share < all_rules().of(finding.kind).usual_below


def _order(finding: Finding) -> tuple[int, int, bool, float, str, str]:
    """Returns the sort key: severity, consequence, verdicts before remarks, then the time lost.

    The name comes last, so that the order is reproducible.
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
    """Returns the findings without claims about the step where there are too few steps."""
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
    """Returns the finding, made no more severe than what it explains or what explains it."""
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
    """Returns the finding behind which this one stands: what it explains, or the rank to blame.

    Waiting for the device leaves the GPU without work and makes the host look slow: if that wait is
    most of the lost time, HOST_BOUND stands behind HOST_SYNC. A cause that is most of the step
    stands before everything that it explains.
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
    """Returns whether the cause slows everything else in the step, such as missing CPU time."""
    usual = all_rules().of(cause.kind).usual_below
    is_most = bool(usual) and cause.share is not None and cause.share > usual
    return is_most and cause.severity is Severity.CRITICAL


def _may_lead(other: Finding, cause: Finding) -> bool:
    """Returns whether this cause may stand behind the other finding; not if that is about time
    between steps."""
    if other.section is not cause.section or other.is_between_steps:
        return False
    return other.kind is not Kind.HOST_BOUND or not _outweighs_host(cause, other)


def _outweighs_host(cause: Finding, host_bound: Finding) -> bool:
    """Returns whether waiting for the device is most of what a slow host seems to cost."""
    waited_s, lost_s = cause.lost_s_per_step, host_bound.lost_s_per_step
    if cause.kind is not Kind.HOST_SYNC or waited_s is None or lost_s is None:
        return False
    return waited_s >= MOSTLY * lost_s


def _first(kinds: Collection[Kind], said: Sequence[Finding], least: Severity) -> Finding | None:
    """Returns the first finding, in reading order, that has one of these kinds."""
    return next(
        (
            finding
            for finding in said
            if finding.kind in kinds and finding.severity.weight >= least.weight
        ),
        None,
    )


def _behind_their_leaders(ordered: Sequence[Finding]) -> list[Finding]:
    """Returns the findings with each follower directly behind its leader of equal severity."""
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
