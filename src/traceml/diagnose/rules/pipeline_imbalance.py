"""Pipeline imbalance: one stage of the pipeline works longer than the others, which wait for it.

*Meaning.* The ranks of a pipeline hold different layers, so that a stage which takes longer is no
[straggler](#straggler): it has more to do. The pipeline runs at the pace of its longest stage, and
the others wait for it in every micro-batch.

*Measured.* Each stage's work is its typical rank's step without waiting for others. Which ranks
are a stage is read from `torch.distributed.pipelining`, from a dimension of the device mesh that is
called `pp`, or from Megatron's or DeepSpeed's groups. Where no rank says its stage, ranks whose
models have other numbers of modules and parameters are compared in the same way. With `m`
micro-batches a step takes one pass through all stages and `m − 1` more turns of the longest one;
so balancing saves `(m − 1)/m` of what the longest works beyond the mean.

*Evidence.* `stage`, `longest_ms`, `mean_ms` and `shortest_ms` (work per step), `waits_share` (of
the step, of a mean rank), `stages`, `micro_batches`, `longest_share` (of the steps in which this
stage is the longest), `lost_ms`, `step_time_ms`, `diagnosis_clock`.

*Thresholds.* 10 % of the step warns from 1 ms on, 20 % is critical from 3 ms on, where the same
stage is the longest in at least 75 % of the steps.

*What to do.* Move layers from that stage to the shortest; the first stage also holds the
embedding, the last one the head and the loss.

*Silent* where the ranks form no pipeline, and where their waiting was not measured.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import named
from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, Symptom, Turn, Where, lost
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.facts.facts import Facts
from traceml.facts.pipeline import Pipeline, StageWork
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent

KIND = Kind.declare("PIPELINE_IMBALANCE")

WARN = Threshold(0.10, 0.001)  # as for a late rank: what the others wait for it
CRITICAL = Threshold(0.20, 0.003)
SAME_STAGE = 0.75  # of the steps: where the longest stage changes, moving layers helps nobody


def check(facts: Facts) -> Finding | None:
    """Fires when one stage has so much more work that the others wait for it noticeably."""
    pipeline, step_s = facts.pipeline, facts.mean.step_s
    if pipeline is None or not step_s or pipeline.longest_share < SAME_STAGE:
        return None
    lost_s = pipeline.imbalance_s
    severity = severity_of(lost_s, step_s, WARN, (CRITICAL,))
    if severity is None:
        return None
    longest = pipeline.longest
    shortest = min(pipeline.stages, key=lambda stage: stage.own_s)
    waits_share = _waits_s(pipeline) / step_s
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=severity,
        claim=(
            f"{_title(longest)} {_work(longest)} "
            f"{duration(longest.own_s)} per step, a mean rank {duration(pipeline.mean_s)}: the "
            f"others wait, a mean rank {percent(waits_share)} of the step. These ranks have more "
            "to do than the others, so they are not called late."
        ),
        action=(
            f"Move layers from {_name(longest)} to {_name(shortest)}, which {_work(shortest)} "
            f"{duration(shortest.own_s)}, {_until(pipeline)}."
        ),
        phase=Phase.COMMUNICATION,
        share=lost_s / step_s,
        skew=longest.own_s / pipeline.mean_s - 1 if pipeline.mean_s > 0 else None,
        ranks=longest.ranks,
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_number("stage", longest.stages[0] if pipeline.is_named else None),
            in_ms("longest_ms", longest.own_s),
            in_ms("mean_ms", pipeline.mean_s),
            in_ms("shortest_ms", shortest.own_s),
            as_share("waits_share", waits_share),
            as_number("stages", len(pipeline.stages)),
            as_number("micro_batches", pipeline.micro_batches),
            as_share("longest_share", pipeline.longest_share),
            in_ms("lost_ms", lost_s),
            in_ms("step_time_ms", step_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _name(stage: StageWork) -> str:
    return stage.label if stage.stages else f"the model on {named(stage.ranks)}"


def _title(stage: StageWork) -> str:
    name = _name(stage)
    return f"{name[0].upper()}{name[1:]}{' of the pipeline' if stage.stages else ''}"


def _until(pipeline: Pipeline) -> str:
    if not pipeline.is_named:
        return "if these are stages of one pipeline: they have different modules or parameters"
    return (
        "until the stages take equally long; the first stage also holds the embedding, the last "
        "one the head and the loss"
    )


def _work(stage: StageWork) -> str:
    return "work" if stage.is_several else "works"


def _waits_s(pipeline: Pipeline) -> float:
    return sum(stage.waits_s for stage in pipeline.stages) / len(pipeline.stages)


def _imbalance_share(facts: Facts, _: Finding) -> float | None:
    step_s = facts.mean.step_s
    return None if facts.pipeline is None or not step_s else facts.pipeline.imbalance_s / step_s


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    explains=(*GPU_IDLE, Kind.UNEVEN_GPU_UTILIZATION),
    where=Where.FOR_A_RANK,
    turn=Turn.LATE_RANK,
    what_if=Remedy("if the stages of the pipeline were equally long", lost),
    measure=_imbalance_share,
    doc=Doc(
        "warn, crit",
        "one stage of the pipeline works longer than the others",
        __doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
