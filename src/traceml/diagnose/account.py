"""The account of a step's time: what each place holds, and who may claim how much of it.

A mean step is input wait, copies, forward, backward, optimizer, communication and the rest; what
lies between steps is a place too. A finding loses no more time than its places hold, and no two
findings lose the same time: they draw on the account in order of their evidence, waits that were
measured as such first, and what is gone cannot be claimed again. What stands behind another finding
(its cause, say) draws on that one's time instead, and is marked as a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from traceml.diagnose.catalogue import catalogue
from traceml.diagnose.explain import in_order, leader_of
from traceml.diagnose.rule import Turn, Where
from traceml.facts.facts import Facts, phase_s
from traceml.facts.times import StepTimes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import BETWEEN, COMPUTE, Phase
from traceml.model.quantities import duration

NOTHING = 0.001  # of a claim: a difference so small is rounding


class Outside(str, Enum):
    """Where time can go that is in no phase of a step."""

    BETWEEN = BETWEEN


Place = Phase | Outside
PLACES: tuple[Place, ...] = (*Phase, *Outside)
"""Where time can go: the phases of a step, and what lies between two steps."""


def unexplained_s(times: StepTimes) -> float | None:
    """The rest of the body, where nothing of compute hides in it; else `None`."""
    return None if times.wait_s is None else times.residual_s


def rest_s(times: StepTimes) -> float:
    """The rest of the body: what was not measured of copies, communication and compute is in it."""
    return times.residual_s or 0.0


def outside_steps_s(times: StepTimes) -> float | None:
    """What passes between steps and is neither evaluation nor a checkpoint."""
    if times.between_s is None:
        return None
    return max(0.0, times.between_s - (times.evaluation_s or 0.0) - (times.checkpoint_s or 0.0))


def held_s(times: StepTimes) -> dict[Place, float]:
    """What each place holds in a mean step."""
    held: dict[Place, float] = {phase: phase_s(times, phase) or 0.0 for phase in Phase}
    return held | {Outside.BETWEEN: times.between_s or 0.0}


def is_largest(facts: Facts, phase: Phase) -> bool:
    """Whether no other part of the step is as long as this one; compute counts as one part."""
    held = held_s(facts.mean)
    own = held.pop(phase)
    compute_s = sum(held.pop(place) for place in COMPUTE)
    del held[Outside.BETWEEN]
    return own > max(compute_s, *held.values())


def places_of(finding: Finding) -> tuple[Place, ...]:
    """Where a finding's lost time lies, the likeliest place first."""
    where, phase = catalogue().of(finding.kind).where, finding.phase
    if finding.is_between_steps or where is Where.BETWEEN_STEPS:
        return (Outside.BETWEEN,)
    if where is Where.ON_THE_HOST and phase is None:
        return (Phase.RESIDUAL, *COMPUTE)
    own = () if phase is None else (phase,)
    if where is Where.FOR_A_RANK:  # the others wait for it where gradients are exchanged
        is_hidden = finding.evidence.get("waiting") == "inferred"
        waiting = Phase.BACKWARD if is_hidden else Phase.COMMUNICATION
        return _once((waiting, *own, *Phase))
    if where is Where.ANYWHERE:
        return _once((*own, *Phase))
    return own or tuple(Phase)


def settle(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """The same findings, each with the lost time that is its own or a part of its leader's."""
    said = in_order(found)
    ledger = _Ledger.of(facts.mean)
    settled: dict[int, Finding] = {}
    for finding in sorted(said, key=lambda finding: _turn(finding, said)):
        if finding.section is Section.STEP_TIME and finding.lost_s_per_step:
            leader = ledger.holder(finding, leader_of(finding, said))
            settled[id(finding)] = ledger.settle(finding, leader)
    return [settled.get(id(finding), finding) for finding in found]


def _turn(finding: Finding, said: Sequence[Finding]) -> tuple[int, Turn, int, str]:
    """What explains another finding is settled after it, and what explains that after both.

    Of equals the one whose place comes first in the step; names come last, to be repeatable.
    """
    leaders, leader = 0, leader_of(finding, said)
    while leader is not None and leaders < len(said):
        leaders, leader = leaders + 1, leader_of(leader, said)
    turn = catalogue().of(finding.kind).turn
    return leaders, turn, PLACES.index(places_of(finding)[0]), finding.kind.value


@dataclass(slots=True)
class _Ledger:
    """What is still free, while one finding after the other draws on it."""

    held: Mapping[Place, float]
    free: dict[Place, float]
    step_left_s: float
    claims: list[_Claim] = field(default_factory=list)

    @staticmethod
    def of(times: StepTimes) -> _Ledger:
        """The account of a mean step before anything is claimed."""
        return _Ledger(held_s(times), held_s(times), times.step_s or 0.0)

    def holder(self, finding: Finding, leader: Finding | None) -> _Claim | None:
        """The claim that this finding's time is a part of, if there is one.

        A slowdown that lies in one phase is a part of what is said about that phase. HOST_BOUND
        is inferred: it gets what the causes behind it and beside it leave, and no part of theirs.
        """
        if finding.kind is Kind.SLOWDOWN and finding.phase is not None:
            place = (finding.phase,)
            return next((claim for claim in self.claims if claim.places == place), None)
        if leader is None or Kind.HOST_BOUND in (finding.kind, leader.kind):
            return None
        return next((claim for claim in self.claims if claim.finding is leader), None)

    def settle(self, finding: Finding, holder: _Claim | None) -> Finding:
        """Draw on the holder's time where there is one, else on the account."""
        wanted_s, places = finding.lost_s_per_step or 0.0, places_of(finding)
        room_s = sum(self.held[place] for place in places)
        if holder is not None:
            room_s = holder.drawn_s
            drawn_s = min(wanted_s, holder.left_s)
            holder.left_s -= drawn_s
        elif finding.kind is Kind.HOST_BOUND:
            drawn_s = self._draw_in_place(wanted_s, places)
        else:
            drawn_s = self._draw(wanted_s, places)
        self.claims.append(_Claim(finding, places, drawn_s, left_s=drawn_s))
        part_of = None if holder is None else holder.finding.kind
        elsewhere_s = min(wanted_s, room_s) - drawn_s
        return _reduced(replace(finding, part_of=part_of), drawn_s, elsewhere_s)

    def _draw(self, wanted_s: float, places: Sequence[Place]) -> float:
        """Take what is free of these places, in their order; returns how much that was."""
        drawn_s = 0.0
        for place in places:
            limits = [wanted_s - drawn_s, self.free[place]]
            if place is not Outside.BETWEEN:
                limits.append(self.step_left_s)
            part_s = max(0.0, min(limits))
            self.free[place] -= part_s
            if place is not Outside.BETWEEN:
                self.step_left_s -= part_s
            drawn_s += part_s
        return drawn_s

    def _draw_in_place(self, wanted_s: float, places: Sequence[Place]) -> float:
        """Like `_draw`, but counts what others hold of a place as a part of what is wanted.

        An idle GPU is inferred: what another finding has explained is not looked for elsewhere.
        """
        drawn_s = 0.0
        for place in places:
            part_s = min(wanted_s, self.held[place])
            wanted_s -= part_s
            told_s = self.held[place] - self.free[place]
            drawn_s += self._draw(max(0.0, part_s - told_s), (place,))
        return drawn_s


def _reduced(finding: Finding, drawn_s: float, elsewhere_s: float) -> Finding:
    """The finding with the time that it drew; where that is less than it claims, it says why.

    `elsewhere_s` is what other findings have drawn of the time that this one is about.
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
    """What one finding holds, and how much of it nobody behind it has drawn on yet."""

    finding: Finding
    """As it was found: leaders are known by identity."""
    places: tuple[Place, ...]
    drawn_s: float
    left_s: float


def _once(places: Sequence[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(places))
