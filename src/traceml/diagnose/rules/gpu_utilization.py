"""GPU utilization: the GPUs have no work for a good part of the time.

A GPU is in use while any kernel is resident, so this is the most that can be true. Only the time in
which steps ran counts. Silent on runs without a GPU and where too little was sampled then.
"""

from __future__ import annotations

from statistics import fmean

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, percent

KIND = Kind.LOW_GPU_UTILIZATION

LOW_SHARE = 0.30
MODERATE_SHARE = 0.70  # the gaps of a healthy loop, between steps and for logging, stay below 30 %


def check(facts: Facts) -> Finding | None:
    """Fires when the GPUs that the run trains on were mostly or partly without work."""
    gpus = facts.gpus_used or facts.host.by_gpu
    known = sorted((gpu.busy_share, gpu.use.samples) for gpu in gpus if gpu.busy_share is not None)
    # Where nobody says which GPUs are ours, ours did no more than the busiest did.
    ours = known[-facts.gpus_needed :] if facts.gpus_needed else []
    if not ours:
        return None
    used = fmean(share for share, _ in ours)
    if used >= MODERATE_SHARE:
        return None
    low = used < LOW_SHARE
    which = "GPU was" if len(ours) == 1 else f"{count(len(ours), 'GPU')} were"
    at_most = "at most " if facts.gpus_used is None else ""
    return Finding(
        kind=Kind.LOW_GPU_UTILIZATION if low else Kind.MODERATE_GPU_UTILIZATION,
        section=Section.SYSTEM,
        severity=Severity.WARNING if low else Severity.INFO,
        claim=f"The {which} in use {at_most}{percent(used)} of the time in which steps ran.",
        action=(
            f"The GPU had no work in the other {percent(1 - used)}: the step-time diagnosis says "
            "why, where the reason is known."
        ),
        share=used,
        evidence=Evidence(
            as_share("gpu_utilization", used),
            as_share("gpu_utilization_worst", ours[0][0]),
            as_number("gpus", len(ours)),
            as_number("samples", sum(samples for _, samples in ours)),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    is_worse_when_low=True,
    role=RuleRole.CONTEXT,
    doc=Doc(
        severities="info, warn",
        says="the GPUs mostly have no work",
        text="""
*Meaning.* For most of the time no kernel was resident on the GPUs that the run trains on. The
reason is in the step-time section; where a finding there explains it, this is a remark.

*Evidence.* `gpu_utilization`, `gpu_utilization_worst`, `gpus`, `samples`.

*Thresholds.* Below 30 % of the time in which steps ran ([how it is measured](#gpu-counters)).
Where it is not known which of the machine's GPUs are the run's, the busiest ones count: the run's
own did no more than they, so the claim says "at most".

*What to do.* Read the step-time diagnosis.
""",
        symptoms=(Symptom.IDLE_GPU,),
    ),
    also={
        Kind.MODERATE_GPU_UTILIZATION: Doc(
            severities="info",
            says="the GPUs partly have no work",
            text="""
*Meaning.* As LOW_GPU_UTILIZATION, for a good part of the time.

*Evidence.* As LOW_GPU_UTILIZATION.

*Thresholds.* 30 % to 70 %. A remark.

*What to do.* Read the step-time diagnosis.
""",
            symptoms=(Symptom.IDLE_GPU,),
        ),
    },
)
