"""Work between the steps (evaluation, checkpoints): normal, and a bottleneck only beyond the
training itself."""

from __future__ import annotations

from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, RuleRole, Turn, Where
from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.facts.pauses import Pauses, pauses
from traceml.model.evidence import Evidence, as_number, as_share, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, duration, percent

REMARK_SHARE = 0.10
"""Of the wall time: less is not worth a remark."""
MIN_TIMES = 2
"""Once is no rhythm: the first one compiles, fills caches and creates folders."""
MAX_FACTOR = 64
MIN_TOTAL_S = 1.0
"""Over the whole run: a smaller loss is not worth tuning."""


def work_between_steps(
    kind: Kind, name: str, words: str, verb: str, shorter: str, without: str, doc: Doc
) -> Rule:
    """Returns the rule for one kind of work between steps.

    `name` is what was measured (`evaluation`, `checkpoint`); `words` and `verb` begin the claim and
    the action, `shorter` says how to make each one shorter, `without` names what the what-if
    removes.
    """

    def check(facts: Facts) -> Finding | None:
        seen = times_between(facts, name)
        if seen is None:
            return None
        spent_s: float | None = getattr(facts.mean, f"{name}_s")
        action = f"{how_much_less(seen, facts.mean.cpu_step_s, verb)} {shorter}"
        return finding_of(facts, kind, words, spent_s, seen, action)

    def saved_s(job: Job, _: Finding) -> float:
        """Saves the work between the steps, gone from every rank."""
        return job.saved_s(job.table.field(f"{name}_ns"), job.own_wall_s())

    return Rule(
        kind=kind,
        section=Section.STEP_TIME,
        check=check,
        doc=doc,
        role=RuleRole.REMARK,
        explains=GPU_IDLE,
        where=Where.BETWEEN_STEPS,
        turn=Turn.BETWEEN_STEPS,
        what_if=Remedy(f"of wall time without {without}", saved_s, between=True),
    )


def times_between(facts: Facts, name: str) -> Pauses | None:
    """Returns how often and how long an `evaluation` or a `checkpoint` ran between two steps."""
    seen = None if facts.step_table is None else pauses(facts.step_table, f"{name}_ns")
    return seen if seen is not None and seen.steps else None


def how_often(seen: Pauses) -> str:
    """Returns in words after how many steps one came, and how long it took."""
    if seen.steps < MIN_TIMES:
        return f"once in {count(seen.steps_seen, 'step')}, for {duration(seen.longest_s)}"
    longest = duration(seen.longest_s)
    usual = duration(seen.usual_s)
    how_long = f"for {usual}" if usual == longest else f"for {usual}, at most {longest}"
    return f"{_rhythm(seen)}, {how_long}"


def _rhythm(seen: Pauses) -> str:
    every = seen.every_steps or seen.steps_seen / seen.steps
    return "after every step" if every < 1.5 else f"every {every:.0f} steps or so"


def how_much_less(seen: Pauses, step_s: float | None, verb: str) -> str:
    """Returns how much less often to do it, and the share of the time that it would then take."""
    if seen.steps < MIN_TIMES or not step_s:
        return "It happened once, and weighs less in a longer run."
    every = seen.every_steps or seen.steps_seen / seen.steps
    training_s = every * step_s
    factor = 2
    while factor < MAX_FACTOR and seen.usual_s > REMARK_SHARE * factor * training_s:
        factor *= 2
    left = seen.usual_s / (seen.usual_s + factor * training_s)
    rarer = "half as often" if factor == 2 else f"{factor} times less often"
    return (
        f"{verb} {rarer}, every {factor * every:.0f} steps: that leaves {percent(left)} of the "
        "wall time for it."
    )


def finding_of(
    facts: Facts, kind: Kind, words: str, spent_s: float | None, seen: Pauses, action: str
) -> Finding | None:
    """Returns what share of the wall time the work took; a warning only where training took less.

    A single occurrence is a remark. If the first one took longer than the others, only the usual
    duration is compared with training.
    """
    times = facts.mean
    if not spent_s or not times.wall_s or times.cpu_step_s is None:
        return None
    wall_share = spent_s / times.wall_s
    if wall_share < REMARK_SHARE:
        return None
    usual_s = min(spent_s, seen.usual_s * seen.steps / seen.steps_seen)
    in_all_s = usual_s * facts.window.steps_analyzed
    recurs = seen.steps >= MIN_TIMES and in_all_s >= MIN_TOTAL_S
    outweighs = recurs and usual_s > times.cpu_step_s
    compared = (
        f", more than the training itself ({duration(times.cpu_step_s)} per step)"
        if outweighs
        else ""
    )
    return Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=Severity.WARNING if outweighs else Severity.INFO,
        claim=(
            f"{words} took {percent(wall_share)} of the wall time, {duration(spent_s)} "
            f"per step{compared}: {how_often(seen)}."
        ),
        action=action,
        share=wall_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=spent_s,
        evidence=Evidence(
            as_share("wall_share", wall_share),
            in_ms("per_step_ms", spent_s),
            in_ms("wall_step_ms", times.wall_s),
            in_ms("step_time_cpu_ms", times.cpu_step_s),
            as_number("times", seen.steps),
            as_number("steps_seen", seen.steps_seen),
            in_ms("usual_ms", seen.usual_s),
            in_ms("longest_ms", seen.longest_s),
        ),
    )
