"""Restarted: a rank failed, and the launcher started all ranks again.

*Meaning.* The ranks of one run were started more than once because an attempt before had failed
(torchrun's `--max-restarts`, or a loop around the script). `attempts` in the summary has each with
its reason. The time from the last step of an attempt to the first step of the next is lost, and so
are the steps after the checkpoint that the next attempt went on from: they are done again. That
step is read from the optimizer's state, or from the file, that the attempt loaded before its first
step; one that loads nothing begins anew. A script that runs again after it ended well is no
restart.

*Evidence.* `restarts`, `lost_s`, `lost_share` (of the wall time, the steps done again included),
`redone_steps` (missing where what an attempt went on from is not known), `reason` (of the first
attempt that failed by itself, not because another process had gone), `rank`.

*Thresholds.* A warning from 10 % of the wall time on, and for a run that is still going on; else a
remark.

*What to do.* Fix the cause; there is none where the launcher only went on with another number of
ranks. Where much was done again, save more often; where starting takes the
time, load data and compile from a cache.
"""

from __future__ import annotations

from itertools import pairwise

from traceml.diagnose.failure_words import attempt_reason
from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.facts.attempts import Attempt, redone_count, restart_count
from traceml.facts.facts import Facts
from traceml.facts.goodput import Goodput
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_s
from traceml.model.failure import is_consequence
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, duration, percent
from traceml.model.run_time import RunPart

KIND = Kind.declare("RESTARTED")

WARN_SHARE = 0.10
"""Of the wall time: less than this is what restarts are for."""


def check(facts: Facts) -> Finding | None:
    """Fires when ranks were started again after a failure."""
    restarts, goodput = restart_count(facts.attempts), facts.goodput
    if not restarts or goodput is None:
        return None
    lost_s = goodput.parts_s[RunPart.RESTARTS] + goodput.parts_s[RunPart.REDONE]
    share = lost_s / goodput.wall_s if goodput.wall_s > 0 else 0.0
    failed = _root_cause(facts.attempts)
    reason = attempt_reason(failed)
    redone = redone_count(facts.attempts)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=(
            Severity.WARNING
            if share >= WARN_SHARE or not facts.stability.is_over
            else Severity.INFO
        ),
        claim=(
            f"The ranks were started again {_times(restarts)}: {_why(failed, reason)}. "
            f"{_cost(lost_s, share, redone)}"
        ),
        action=_action(goodput, redone, facts.attempts),
        share=share,
        ranks=()
        if failed.failure is None or failed.failure.rank is None
        else (failed.failure.rank,),
        nodes=_machine(facts, failed),
        evidence=Evidence(
            as_number("restarts", restarts),
            in_s("lost_s", lost_s),
            as_share("lost_share", share),
            as_number("redone_steps", redone),
            as_words("reason", reason),
            as_number("rank", None if failed.failure is None else failed.failure.rank),
        ),
    )


def _root_cause(attempts: tuple[Attempt, ...]) -> Attempt:
    """Returns the first attempt that a restart followed and that ended for a reason of its own.

    Later ones often fail because of the first: their ranks do not find each other any more.
    """
    ended = _restarted(attempts)
    failed = [each for each in ended if not each.is_regrouped] or ended
    return next((each for each in failed if _has_own_reason(each)), failed[-1])


def _restarted(attempts: tuple[Attempt, ...]) -> list[Attempt]:
    """Returns the attempts that a restart followed."""
    return [before for before, after in pairwise(attempts) if after.is_restart]


def _has_own_reason(attempt: Attempt) -> bool:
    """Returns whether it is known why an attempt ended, and that was not that another process had
    gone."""
    failure = attempt.failure
    if failure is None:
        return attempt.first_to_leave is not None
    report = failure.report
    return report is None or not is_consequence(report.error, report.message)


def _machine(facts: Facts, failed: Attempt) -> tuple[str, ...]:
    """Returns the machine whose rank failed, by what it was in that attempt."""
    if failed.failure is None or len(set(facts.node_names.values())) < 2:
        return ()
    rank, lost = failed.failure.rank, failed.failure.lost
    hosts = [each.rank.hostname for each in failed.processes if each.rank.rank == rank]
    return tuple(node.name for node in lost) or tuple(hosts[:1])


def _times(restarts: int) -> str:
    return "once" if restarts == 1 else f"{count(restarts)} times"


def _why(failed: Attempt, reason: str | None) -> str:
    after = f"after {count(failed.steps, 'step')}" if failed.steps else "before its first step"
    return f"attempt {failed.number} ended {after} ({reason or 'it is not known why'})"


def _cost(lost_s: float, share: float, redone: int | None) -> str:
    done_again = (
        "how many steps were done again is not known"
        if redone is None
        else f"{count(redone, 'step')} done again"
    )
    return f"That cost {duration(lost_s)}, {percent(share)} of the wall time, with {done_again}."


def _action(goodput: Goodput, redone: int | None, attempts: tuple[Attempt, ...]) -> str:
    has_failed = not all(each.is_regrouped for each in _restarted(attempts))
    fix = "Fix the cause" if has_failed else "Nothing failed"
    again_s = goodput.parts_s[RunPart.REDONE]
    if redone and again_s > goodput.parts_s[RunPart.RESTARTS]:
        return f"{fix}; save checkpoints more often, so that fewer steps are done again."
    if not has_failed:
        return "Nothing failed; each change of the number of ranks costs the time of a start."
    return "Fix the cause; the attempts and their reasons are listed in the summary."


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    role=RuleRole.REMARK,
    doc=Doc(
        "info, warn",
        "the launcher started the ranks again: why, and what it cost",
        __doc__,
        symptoms=(Symptom.DIED, Symptom.LONG_BETWEEN_STEPS),
    ),
)
