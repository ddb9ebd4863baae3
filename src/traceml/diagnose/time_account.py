"""The account of a step's time: what each stage holds, and how much of it each finding may claim.

A mean step is input wait, copies, forward, backward, optimizer, communication and the residual; the
time between steps is a stage too. A finding claims no more time than its stages hold, and no two
findings claim the same time: they claim in the order of their evidence, directly measured waits
first. A finding that explains another one (its cause) claims from that finding's time instead, and
is marked as a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.finding_order import by_severity, leader_of
from traceml.diagnose.rule import Turn, Where
from traceml.facts.facts import Facts
from traceml.facts.times import StepTimes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import BETWEEN, COMPUTE, Phase
from traceml.model.quantities import duration

NOTHING = 0.001
"""Of a claim: a smaller difference is rounding."""


class Outside(str, Enum):
    """Where time can go that is in no phase of a step."""

    BETWEEN = BETWEEN


Stage = Phase | Outside
STAGES: tuple[Stage, ...] = (*Phase, *Outside)
"""Where time can go: the phases of a step, and the time between two steps."""


def unexplained_s(times: StepTimes) -> float | None:
    """Returns the residual of the body; `None` where unmeasured compute may be in it."""
    return None if times.wait_s is None else times.residual_s


def rest_s(times: StepTimes) -> float:
    """Returns the residual of the body, with copies, communication and compute that were not
    measured."""
    return times.residual_s or 0.0


def outside_steps_s(times: StepTimes) -> float | None:
    """Returns the time between steps that is neither evaluation nor a checkpoint; `None` where not
    measured."""
    if times.between_s is None:
        return None
    return max(0.0, times.between_s - (times.evaluation_s or 0.0) - (times.checkpoint_s or 0.0))


def held_s(times: StepTimes) -> dict[Stage, float]:
    """Returns the seconds of each stage in a mean step."""
    held: dict[Stage, float] = {phase: times.phase(phase) or 0.0 for phase in Phase}
    return held | {Outside.BETWEEN: times.between_s or 0.0}


def is_largest(facts: Facts, phase: Phase) -> bool:
    """Returns whether no other part of the step is as long as this phase; compute counts as one
    part."""
    held = held_s(facts.mean)
    own = held.pop(phase)
    compute_s = sum(held.pop(stage) for stage in COMPUTE)
    del held[Outside.BETWEEN]
    return own > max(compute_s, *held.values())


def stages_of(finding: Finding) -> tuple[Stage, ...]:
    """Returns the stages in which a finding's lost time lies, the likeliest first."""
    where, phase = all_rules().of(finding.kind).where, finding.phase
    if finding.is_between_steps or where is Where.BETWEEN_STEPS:
        return (Outside.BETWEEN,)
    if where is Where.ON_THE_HOST and phase is None:
        return COMPUTE if _is_accounted(finding) else (Phase.RESIDUAL, *COMPUTE)
    own = () if phase is None else (phase,)
    if where is Where.FOR_A_RANK:  # the others wait for it where gradients are exchanged
        is_hidden = finding.evidence.get("waiting") == "inferred"
        waiting = Phase.BACKWARD if is_hidden else Phase.COMMUNICATION
        return _once((waiting, *own, *Phase))
    if where is Where.ANYWHERE:
        return _once((*own, *Phase))
    return own or tuple(Phase)


def _is_accounted(finding: Finding) -> bool:
    """Returns whether a finding about launching has only the idle time of that, by the account of
    the GPU's idle time; else it has all idle time for which no reason was found."""
    return finding.kind is Kind.HOST_BOUND and finding.evidence.get("launching_ms") is not None


def settle(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """Returns the findings with the lost time that each may claim, or its part of its leader's."""
    said = by_severity(found)
    ledger = _Ledger.of(facts.mean)
    settled: dict[int, Finding] = {}
    for finding in sorted(said, key=lambda finding: _turn(finding, said)):
        if finding.section is Section.STEP_TIME and finding.lost_s_per_step:
            leader = ledger.holder(finding, leader_of(finding, said))
            settled[id(finding)] = ledger.settle(finding, leader)
    return [settled.get(id(finding), finding) for finding in found]


def _turn(finding: Finding, said: Sequence[Finding]) -> tuple[int, Turn, int, str]:
    """Returns the sort key: a finding is settled after what it explains.

    Among equals, the one whose stage comes first in the step; the name last, so that the order is
    reproducible.
    """
    leaders, leader = 0, leader_of(finding, said)
    while leader is not None and leaders < len(said):
        leaders, leader = leaders + 1, leader_of(leader, said)
    turn = all_rules().of(finding.kind).turn
    return leaders, turn, STAGES.index(stages_of(finding)[0]), finding.kind.value


@dataclass(slots=True)
class _Ledger:
    """The time that is still unclaimed, while one finding after another claims its own."""

    held: Mapping[Stage, float]
    free: dict[Stage, float]
    step_left_s: float
    claims: list[_Claim] = field(default_factory=list)

    @staticmethod
    def of(times: StepTimes) -> _Ledger:
        """Returns the account of a mean step before anything is claimed."""
        return _Ledger(held_s(times), held_s(times), times.step_s or 0.0)

    def holder(self, finding: Finding, leader: Finding | None) -> _Claim | None:
        """Returns the claim that this finding's time is a part of, if there is one.

        A slowdown in one phase is part of what is said about that phase. HOST_BOUND is inferred: it
        gets what its causes leave, and no part of theirs.
        """
        if finding.kind is Kind.SLOWDOWN and finding.phase is not None:
            stages = (finding.phase,)
            return next((claim for claim in self.claims if claim.stages == stages), None)
        if leader is None or Kind.HOST_BOUND in (finding.kind, leader.kind):
            return None
        return next((claim for claim in self.claims if claim.finding is leader), None)

    def settle(self, finding: Finding, holder: _Claim | None) -> Finding:
        """Claims from the holder's time where there is one, else from the account."""
        wanted_s, stages = finding.lost_s_per_step or 0.0, stages_of(finding)
        room_s = sum(self.held[stage] for stage in stages)
        if holder is not None:
            room_s = holder.drawn_s
            drawn_s = min(wanted_s, holder.left_s)
            holder.left_s -= drawn_s
        elif finding.kind is Kind.HOST_BOUND and not _is_accounted(finding):
            drawn_s = self._draw_in_place(wanted_s, stages)
        else:
            drawn_s = self._draw(wanted_s, stages)
        self.claims.append(_Claim(finding, stages, drawn_s, left_s=drawn_s))
        part_of = None if holder is None else holder.finding.kind
        elsewhere_s = min(wanted_s, room_s) - drawn_s
        return _reduced(replace(finding, part_of=part_of), drawn_s, elsewhere_s)

    def _draw(self, wanted_s: float, stages: Sequence[Stage]) -> float:
        """Claims free time of these stages, in their order; returns how much was free."""
        drawn_s = 0.0
        for stage in stages:
            limits = [wanted_s - drawn_s, self.free[stage]]
            if stage is not Outside.BETWEEN:
                limits.append(self.step_left_s)
            part_s = max(0.0, min(limits))
            self.free[stage] -= part_s
            if stage is not Outside.BETWEEN:
                self.step_left_s -= part_s
            drawn_s += part_s
        return drawn_s

    def _draw_in_place(self, wanted_s: float, stages: Sequence[Stage]) -> float:
        """Claims like `_draw`, but counts what others have claimed of a stage towards what is
        wanted.

        GPU idle time is inferred: what another finding explains is not looked for in another stage.
        """
        drawn_s = 0.0
        for stage in stages:
            part_s = min(wanted_s, self.held[stage])
            wanted_s -= part_s
            told_s = self.held[stage] - self.free[stage]
            drawn_s += self._draw(max(0.0, part_s - told_s), (stage,))
        return drawn_s


def _reduced(finding: Finding, drawn_s: float, elsewhere_s: float) -> Finding:
    """Returns the finding with the time that it claimed; if that is less than it wanted, it says
    why.

    `elsewhere_s` is what other findings have claimed of the time that this one is about.
    """
    wanted_s = finding.lost_s_per_step or 0.0
    if drawn_s >= (1 - NOTHING) * wanted_s:
        return finding  # as the rule said it, to the last digit
    if drawn_s <= NOTHING * wanted_s:
        return replace(finding, lost_s_per_step=0.0, severity=Severity.INFO)
    if elsewhere_s > NOTHING * wanted_s:
        reason = (
            f"{duration(drawn_s)} per step is counted here, {duration(elsewhere_s)} with other "
            "findings."
        )
    elif finding.part_of is not None:
        reason = f"Only {duration(drawn_s)} per step of it is part of {finding.part_of.status}."
    else:
        reason = f"A mean step has only {duration(drawn_s)} of it."
    return replace(finding, lost_s_per_step=drawn_s, claim=f"{finding.claim} {reason}")


@dataclass(slots=True)
class _Claim:
    """The time one finding claimed, and how much of it its causes have not claimed yet."""

    finding: Finding
    """The finding as the rule made it: leaders are identified by object."""
    stages: tuple[Stage, ...]
    drawn_s: float
    left_s: float


def _once(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    return tuple(dict.fromkeys(stages))
