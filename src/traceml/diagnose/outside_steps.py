"""Time between steps that is neither evaluation nor a checkpoint.

With an explicit `trace_step` it is what the loop does outside of it: a generator that makes the
next batch, for example. Without one it is what follows an evaluation, up to the next batch. It
belongs to no step, so it is compared with the wall time. Never critical: a script may leave it out
on purpose.
"""

from __future__ import annotations

from traceml.diagnose.one_off_stalls import stalled
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.diagnose.time_account import outside_steps_s
from traceml.facts.facts import Facts
from traceml.facts.few_steps import few_steps
from traceml.model.evidence import Evidence, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.quantities import duration, percent
from traceml.model.rank import REGIONS_OUTSIDE_STEPS

WARN = Threshold(0.20, 0.003)  # of the wall time; printing and bookkeeping between steps cost less
NEARLY_ALL = 0.9
OUTSIDE_TRACE_STEP = (
    "If the next batch is made there, fetch it inside trace_step or use a DataLoader, whose waits "
    "are measured as such; name other suspects with traceml.trace_time."
)
AFTER_EVALUATION = (
    "See what the script does between the evaluation's last batch and the next training batch "
    "(metrics, plots, uploads, building the next trainer); name suspects with traceml.trace_time."
)
MAIN_PART = 0.30
"""Of that time: a region that holds less does not explain it."""


def finding_of(facts: Facts, kind: Kind) -> Finding | None:
    """Returns the finding that a noticeable part of the wall time passes outside the steps."""
    outside_s, wall_s = outside_steps_s(facts.mean), facts.mean.wall_s
    if not outside_s or not wall_s:
        return None
    found = severity_of(outside_s, wall_s, WARN, (), is_largest=outside_s > wall_s / 2)
    if found is None:
        return None
    name, region_s = _main_region(facts, outside_s)
    is_around_evaluation = _is_around_evaluation(facts)
    where = "around an evaluation" if is_around_evaluation else "outside trace_step"
    named = f": the region '{name}' is {percent(region_s / outside_s)} of it" if name else ""
    finding = Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=found,
        claim=(
            f"{percent(outside_s / wall_s)} of the wall time ({duration(outside_s)} of "
            f"{duration(wall_s)} per step) passes between steps, {where}, and is "
            f"neither evaluation nor a checkpoint{named}."
        ),
        action=AFTER_EVALUATION if is_around_evaluation else OUTSIDE_TRACE_STEP,
        share=outside_s / wall_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=outside_s,
        is_between_steps=True,
        evidence=Evidence(
            as_share("outside_share", outside_s / wall_s),
            in_ms("outside_steps_ms", outside_s),
            in_ms("wall_step_ms", wall_s),
            as_words("main_part", f"the region '{name}'" if name else None),
            in_ms("main_part_ms", region_s if name else None),
        ),
    )
    if facts.step_table is None:
        return finding
    few = few_steps(facts.step_table, facts.step_table.outside(), facts.step_table.field("wall_ns"))
    return stalled(finding, few, WARN, f"before it began, {where}") or finding


def _is_around_evaluation(facts: Facts) -> bool:
    """Returns whether nearly all of that time lies in steps that follow an evaluation."""
    if facts.step_table is None:
        return False
    outside_s, evaluation_s = facts.step_table.outside(), facts.step_table.field("evaluation_ns")
    near_s = outside_s[evaluation_s > 0].sum()
    return bool(near_s > 0 and near_s >= NEARLY_ALL * outside_s.sum())


def _main_region(facts: Facts, outside_s: float) -> tuple[str, float]:
    """Returns the longest named region that could explain the time; regions inside steps count
    too."""
    steps = max(1, facts.window.steps_taken * len(facts.ranks_used))
    for region in facts.regions:  # the longest first
        is_known = region.name in REGIONS_OUTSIDE_STEPS  # and measured as evaluation or checkpoints
        if not is_known and MAIN_PART * outside_s <= region.host_s / steps <= outside_s:
            return region.name, region.host_s / steps
    return "", 0.0
