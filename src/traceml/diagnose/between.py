"""Work between the steps: normal as such, and a bottleneck only beyond the training itself."""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.facts.pauses import Pauses, pauses
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import duration, percent

REMARK_SHARE = 0.10  # of the wall time: less would not be missed
LEAST_TOTAL_S = 1.0  # over the whole run: nobody tunes a run that lost less to it


def times_between(facts: Facts, name: str) -> Pauses | None:
    """How often and how long there was an `evaluation` or a `checkpoint` between two steps."""
    seen = None if facts.parts is None else pauses(facts.parts, f"{name}_ns")
    return seen if seen is not None and seen.steps else None


def how_often(seen: Pauses) -> str:
    """After how many steps there was one, and how long at most, in words."""
    every = seen.steps_seen / seen.steps
    rhythm = "every step" if every < 1.5 else f"every {every:.0f} steps or so"
    return f"after {rhythm}, for up to {duration(seen.longest_s)}"


def less_often(seen: Pauses) -> str:
    """The advice to do it less often; what happened once cannot."""
    if seen.steps < 2:
        return ""
    every = max(1, round(seen.steps_seen / seen.steps))
    return f"less often than every {'step' if every == 1 else f'{every} steps'}, "


def finding_of(
    facts: Facts, kind: Kind, words: str, spent_s: float | None, detail: str, action: str
) -> Finding | None:
    """Says what share of the wall time went there; warns only where training took less."""
    times = facts.mean
    if not spent_s or not times.wall_s or times.cpu_step_s is None:
        return None
    wall_share = spent_s / times.wall_s
    if wall_share < REMARK_SHARE:
        return None
    in_all_s = spent_s * facts.window.steps_analyzed
    outweighs = spent_s > times.cpu_step_s and in_all_s >= LEAST_TOTAL_S
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
            f"per step{compared}: {detail}."
        ),
        action=action,
        share=wall_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=spent_s,
        evidence={
            "wall_share": wall_share,
            "per_step_ms": spent_s * 1e3,
            "wall_step_ms": times.wall_s * 1e3,
            "step_time_cpu_ms": times.cpu_step_s * 1e3,
        },
    )
