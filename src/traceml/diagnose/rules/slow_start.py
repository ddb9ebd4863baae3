"""Slow start: a large part of the run passed before its first step.

*Meaning.* From the start of the run to its first training step a large part of its wall time
passed: importing, reading the dataset, building the model, loading a checkpoint. It belongs to no
step, so no other finding claims it.

*Evidence.* `start_up_s`, `start_up_share` (of the wall time), `wall_s`.

*Thresholds.* 25 % of the wall time, at least 30 s, in a run of at least 2 minutes that is over. A
warning where it took longer than all productive steps.

*What to do.* Index or cache the dataset once instead of reading it at every start, import what is
needed, keep compiled code in a cache, and load the checkpoint on the device it goes to.

*Silent* for short runs: a try is mostly start-up, and need not be anything else.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_share, in_s
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import duration, percent
from traceml.model.run_time import RunPart

KIND = Kind.declare("SLOW_START")

MIN_SHARE = 0.25  # of the wall time: less is usual
MIN_START_UP_S = 30.0  # importing torch and a model's code alone takes half of it
MIN_WALL_S = 120.0  # a shorter run is a try


def check(facts: Facts) -> Finding | None:
    """Fires when the time before the first step is much of a run that is over."""
    goodput = facts.goodput
    if goodput is None or not facts.stability.is_over or goodput.wall_s < MIN_WALL_S:
        return None
    start_up_s = goodput.parts_s[RunPart.START_UP]
    share = goodput.share_of(RunPart.START_UP)
    if share < MIN_SHARE or start_up_s < MIN_START_UP_S:
        return None
    outweighs = goodput.is_complete and start_up_s > goodput.parts_s[RunPart.STEPS]
    more = ", more than all training steps together" if outweighs else ""
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING if outweighs else Severity.INFO,
        claim=(
            f"{duration(start_up_s)} passed before the first step, {percent(share)} of the run's "
            f"{duration(goodput.wall_s)}{more}."
        ),
        action=(
            "See what the script does before its loop: cache the prepared dataset, import less, "
            "keep compiled code between runs."
        ),
        share=share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        is_between_steps=True,
        evidence=Evidence(
            in_s("start_up_s", start_up_s),
            as_share("start_up_share", share),
            in_s("wall_s", goodput.wall_s),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.REMARK,
    doc=Doc(
        "info, warn",
        "much of the run passed before its first step",
        __doc__,
        symptoms=(Symptom.LONG_BETWEEN_STEPS,),
    ),
)
