"""Names the user's functions and lines in which the time of a finding goes.

The agent samples the training thread's stack while something is wrong. A place's share of a phase's
samples is its share of that phase's time. With few samples the claim says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.rule import CodeScope, RestPart, RuleRole
from traceml.diagnose.time_account import outside_steps_s, unexplained_s
from traceml.facts.facts import Facts
from traceml.facts.user_time import CodePlace, PhaseCode
from traceml.model.evidence import Evidence, Piece, as_number, as_share, as_words
from traceml.model.finding import Finding
from traceml.model.phase import BETWEEN, COMPUTE, Phase
from traceml.model.quantities import count, duration

MAIN_SHARE = 0.20
"""Of the phase: a place with less is not where to look first."""
MAX_NAMED = 2
FEW_LOOKS = 30
"""Samples in the phase: below this, the claim says from how few."""
WORTH_LOOKING = 0.05
"""Of the step: a residual, or time between steps, of which the code is worth knowing."""
WORTH_LOOKING_S = 0.0005
BLOCKED_SHARE = 0.30
"""Of a step: with more blocked time than this, the training thread waits rather than computes."""


def wants_looks(facts: Facts, found: Sequence[Finding]) -> bool:
    """Returns whether the training thread's stack is worth sampling."""
    rules = [all_rules().of(finding.kind) for finding in found]
    codes = {rule.code for rule in rules if rule.role is not RuleRole.FALLBACK}
    if codes & {CodeScope.WHOLE_STEP, CodeScope.REST, CodeScope.LATE_PHASE}:
        return True
    if CodeScope.FETCHES in codes and not facts.loader.workers:
        return True
    if facts.clock == "cpu" and (blocked_share(facts) or 0.0) >= BLOCKED_SHARE:
        return True
    times = facts.mean
    parts_s = [times.residual_s, outside_steps_s(times)]  # the residual with what is unmeasured
    least_s = max(WORTH_LOOKING * (times.step_s or 0.0), WORTH_LOOKING_S)
    return any(part_s is not None and part_s >= least_s for part_s in parts_s)


def blocked_share(facts: Facts) -> float | None:
    """Returns the share of a step in which no training thread ran or was ready to; `None`: not
    known.

    Waiting for batches made elsewhere and for other ranks is left out: it is measured as such.
    """
    shares = []
    for rank in facts.ranks_used:
        thread, wall_s = facts.threads.get(rank.rank.rank), rank.times.wall_s
        if thread is None or not wall_s:
            return None
        known_s = (rank.times.input_s or 0.0) if facts.loader.workers else 0.0
        known_s += (rank.times.communication_s or 0.0) + (rank.times.checkpoint_s or 0.0)
        shares.append((wall_s - thread.cpu_s - thread.wait_s - known_s) / wall_s)
    return max(0.0, sum(shares) / len(shares)) if shares else None


def name_lines(facts: Facts, finding: Finding) -> Finding:
    """Returns the finding with the lines in which its time goes, where they are known."""
    code, whole_s = _code_of(facts, finding)
    if code is None or not whole_s:
        return finding
    named = main_places(code)
    evidence = Evidence(*finding.evidence.pieces, *_evidence(facts, code, named))
    untold = [place for place in named if place.name not in finding.claim]
    if not untold:
        return replace(finding, evidence=evidence)
    first, *others = untold
    words = f"{duration(first.share * whole_s)} of {duration(whole_s)} is in {first.name}"
    words += "".join(f", {duration(each.share * whole_s)} in {each.name}" for each in others)
    claim = f"{finding.claim} {words}{_few(code)}."
    return replace(finding, claim=claim, evidence=evidence)


def rest_parts(facts: Facts, rest_s: float) -> list[RestPart]:
    """Returns the places that hold much of the residual."""
    code = facts.user_time.phases.get(Phase.RESIDUAL.value)
    if code is None:
        return []
    return [
        RestPart(
            place.name,
            place.share * rest_s,
            f"Look at {place.name} first: it takes {duration(place.share * rest_s)} of "
            f"{duration(rest_s)}{_few(code)}; make it cheaper, do it less often, or beside the "
            "training thread.",
        )
        for place in main_places(code)
    ]


def main_places(code: PhaseCode) -> tuple[CodePlace, ...]:
    """Returns the places in which much of a phase goes."""
    return tuple(place for place in code.places if place.share >= MAIN_SHARE)[:MAX_NAMED]


def _code_of(facts: Facts, finding: Finding) -> tuple[PhaseCode | None, float | None]:
    """Returns the samples that show where a finding's time goes, and that time per step."""
    seen, code = facts.user_time, all_rules().of(finding.kind).code
    if finding.is_between_steps:
        return seen.phases.get(BETWEEN), outside_steps_s(facts.mean)
    if code is CodeScope.WHOLE_STEP:
        return seen.all_phases, facts.mean.cpu_step_s
    if code is CodeScope.REST:
        return seen.phases.get(Phase.RESIDUAL.value), facts.mean.residual_s
    if code is CodeScope.FETCHES and not facts.loader.workers:
        return seen.phases.get(Phase.INPUT.value), facts.mean.cpu_input_s
    if code is CodeScope.LATE_PHASE:
        return _code_of_late(facts, finding)
    is_waiting = facts.clock == "cpu" and (blocked_share(facts) or 0.0) >= BLOCKED_SHARE
    is_waiting = is_waiting or finding.evidence.get("waiting_share") is not None
    phase = finding.phase
    if code is CodeScope.WAITING_PHASE and phase in COMPUTE and is_waiting:
        return seen.phases.get(phase.value), facts.mean_s(phase)
    return None, None


def _code_of_late(facts: Facts, finding: Finding) -> tuple[PhaseCode | None, float | None]:
    """Returns the samples of the slowest rank, in the phase that makes it late."""
    rank, phase = finding.evidence.get("rank"), finding.phase
    times = next((each.times for each in facts.ranks_used if each.rank.rank == rank), None)
    if phase is None or times is None or not isinstance(rank, int):
        return None, None
    whole_s = unexplained_s(times) if phase is Phase.RESIDUAL else times.phase(phase)
    return facts.user_time.by_rank.get(rank, {}).get(phase.value), whole_s


def host_s(facts: Facts, phase: str) -> float | None:
    """Returns a phase's mean seconds per step, as the finding about it counts them."""
    if phase == BETWEEN:
        return outside_steps_s(facts.mean)
    if phase == Phase.RESIDUAL.value:
        return facts.mean.residual_s
    if phase == Phase.INPUT.value:
        return facts.mean.cpu_input_s
    return facts.mean_s(Phase(phase))


def _few(code: PhaseCode) -> str:
    return f" (from only {count(code.looks, 'stack sample')})" if code.looks < FEW_LOOKS else ""


def _evidence(facts: Facts, code: PhaseCode, named: Sequence[CodePlace]) -> list[Piece]:
    seen = facts.user_time
    pieces = [
        as_number("code_looks", code.looks),
        as_number("code_looks_torn", seen.torn),
        as_words("code_looks_by", seen.way),
    ]
    for number, place in enumerate(named, start=1):
        pieces += [
            as_words(f"code_{number}", place.name),
            as_share(f"code_{number}_share", place.share),
            as_share(f"code_{number}_share_low", place.low),
            as_share(f"code_{number}_share_high", place.high),
        ]
    return pieces
