"""Pipeline bubbles: the stages wait while the pipeline fills and drains in every step.

*Meaning.* The last stage cannot begin before the first micro-batch has passed all others, and the
first has nothing left to do while the last gradients come back. With few micro-batches per step
these bubbles are a large part of it, however well the stages are balanced.

*Measured.* With `p` stages and `m` micro-batches a mean stage waits `(p − 1)/m` of its work; a
`v`-th of that where each rank holds `v` stages and interleaves them.
Counted is that or what the stages were seen to wait, whichever is less, without what they wait for
a stage that is longer ([PIPELINE_IMBALANCE](#pipeline_imbalance)).

*Evidence.* `bubble_share`, `bubble_ms`, `waits_ms` (all waiting of a mean stage), `stages`,
`micro_batches`, `step_time_ms`, `diagnosis_clock`.

*Thresholds.* 10 % of the step warns from 1 ms on, 30 % is critical from 3 ms on. Half of it is
claimed as lost: that much twice as many micro-batches save, and a pipeline without any bubble has
not been built.

*What to do.* Split the batch into more micro-batches, as long as each keeps the GPU busy; or use an
interleaved or zero-bubble schedule.

*Silent* where the ranks form no pipeline, where the micro-batches were not counted, and where the
waiting was not measured.
"""

from __future__ import annotations

from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, Symptom, Turn, lost
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent

KIND = Kind.declare("PIPELINE_BUBBLES")

WARN = Threshold(0.10, 0.001)
CRITICAL = Threshold(0.30, 0.003)  # four stages with nine micro-batches have less
SAVED_BY_TWICE = 0.5  # of the bubbles, by twice as many micro-batches


def check(facts: Facts) -> Finding | None:
    """Fires when filling and draining the pipeline takes a noticeable part of the step."""
    pipeline, step_s, bubble_s = facts.pipeline, facts.mean.step_s, _bubble_s(facts)
    if pipeline is None or pipeline.micro_batches is None or bubble_s is None or not step_s:
        return None
    severity = severity_of(bubble_s, step_s, WARN, (CRITICAL,))
    if severity is None:
        return None
    stages = sum(len(each.stages) for each in pipeline.stages)
    micro_batches = pipeline.micro_batches
    schedule = "a" if pipeline.is_interleaved else "an interleaved or"
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=severity,
        claim=(
            f"A mean rank waits {percent(bubble_s / step_s)} of the step ({duration(bubble_s)} of "
            f"{duration(step_s)}) for the pipeline to fill and drain: {stages} stages share "
            f"{micro_batches} micro-batches."
        ),
        action=(
            f"Split the batch into {2 * micro_batches} micro-batches instead of {micro_batches}, "
            f"which halves that, as long as each keeps the device busy; or use {schedule} "
            "zero-bubble schedule."
        ),
        phase=Phase.COMMUNICATION,
        share=bubble_s / step_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=SAVED_BY_TWICE * bubble_s,
        evidence=Evidence(
            as_share("bubble_share", bubble_s / step_s),
            in_ms("bubble_ms", bubble_s),
            in_ms("waits_ms", facts.mean.communication_s),
            as_number("stages", stages),
            as_number("micro_batches", micro_batches),
            in_ms("step_time_ms", step_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _bubble_s(facts: Facts) -> float | None:
    """Returns how long a mean stage waits for the pipeline to fill and drain; `None` without a
    pipeline or its micro-batches."""
    pipeline, waits_s = facts.pipeline, facts.mean.communication_s
    if pipeline is None or pipeline.filling_s is None or waits_s is None:
        return None
    return min(pipeline.filling_s, max(0.0, waits_s - pipeline.imbalance_s))


def _bubble_share(facts: Facts, _: Finding) -> float | None:
    bubble_s, step_s = _bubble_s(facts), facts.mean.step_s
    return None if bubble_s is None or not step_s else bubble_s / step_s


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=GPU_IDLE,
    turn=Turn.PHASE,
    what_if=Remedy("with twice as many micro-batches per step", lost),
    measure=_bubble_share,
    doc=Doc(
        "warn, crit",
        "the stages wait while the pipeline fills and drains",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
