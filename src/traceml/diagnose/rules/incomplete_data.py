"""Incomplete data: ranks are missing, or the ranks share far fewer steps than they took.

*Meaning.* What was analysed is only a part of the job: ranks are missing, or the ranks share far
fewer steps than they took. Nothing else is hidden by it.

*Evidence.* `ranks_used`, `world_size`, `steps_shared`, `steps_taken`; `ranks` are those missing.

Of a job that went on with another number of ranks, only the attempts that are analysed count:
those of the set of ranks that shares the most steps. Which these are, the summary says.

*Thresholds.* A rank of a node that was seen is missing, or fewer than 50 % of the steps are
complete on every rank: a warning. Only ranks of other nodes are missing: a remark.

*What to do.* See which rank ended early, skipped steps, or ran without the tracer.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, percent

KIND = Kind.INCOMPLETE_DATA

SHARED_SHARE = 0.5  # of the steps taken: with fewer, what was analysed need not be typical


def check(facts: Facts) -> Finding | None:
    """Fires when what was analysed is only a part of the job."""
    used, window = facts.ranks_used, facts.window
    if not used:
        return None
    world_size = _world_size(facts)
    missing = _missing(facts, world_size)
    shared = window.steps_analyzed + window.warmup_steps
    taken = window.steps_in_attempts
    few = len(used) > 1 and shared < SHARED_SHARE * taken
    if not missing and not few:
        return None
    said = []
    if missing:
        said.append(f"Only {len(used)} of {count(world_size, 'rank')} took steps that were seen")
    if few:
        said.append(
            f"{count(shared, 'step')} of {count(taken)} "
            f"({percent(shared / taken)}) were complete on every rank"
        )
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING if few or _is_missing_here(facts) else Severity.INFO,
        claim="; ".join(said) + ".",
        action=_next_step(missing),
        ranks=missing,
        evidence=Evidence(
            as_number("ranks_used", len(used)),
            as_number("world_size", world_size),
            as_number("steps_shared", shared),
            as_number("steps_taken", taken),
        ),
    )


def _world_size(facts: Facts) -> int:
    """Returns how many ranks the job had in the attempts that are analysed."""
    attempts = facts.window.attempts
    if attempts is not None:
        return attempts.world_size
    return max(rank.rank.world_size for rank in facts.ranks_used)


def _missing(facts: Facts, world_size: int) -> tuple[int, ...]:
    """Returns the ranks of the job that recorded nothing."""
    seen = {rank.rank.rank for rank in facts.ranks_used}
    return tuple(rank for rank in range(world_size) if rank not in seen)


def _is_missing_here(facts: Facts) -> bool:
    """Returns whether a recorded node lacks a rank; ranks of other nodes may be recorded there."""
    expected = {rank.rank.node_rank: rank.rank.local_world_size for rank in facts.ranks_used}
    return sum(expected.values()) > len(facts.ranks_used)


def _next_step(missing: tuple[int, ...]) -> str:
    if missing:
        named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        return (
            f"See what became of rank {named}: a rank that ended early or was started without "
            "the tracer cannot be compared with the others."
        )
    return "See which rank ended early or skipped steps; only shared steps can be compared."


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.REMARK,
    doc=Doc(
        "info, warn",
        "ranks, or most of the steps, are missing",
        __doc__,
        symptoms=(Symptom.NO_VERDICT,),
    ),
)
