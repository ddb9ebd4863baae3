"""GPU shared: other processes compute on a GPU of the run.

*Meaning.* Kernels of processes that are not the run's ran on a GPU of the run. They take turns with
the run's own kernels and copies, so that all of these take longer, and the GPU's counters and its
utilisation are of all of them together.

*Evidence.* By NVML's account of each process, over the samples of the worst GPU: `gpu`,
`other_busy_share` of the time, `other_busy_share_peak`.

*Thresholds.* Others compute in 10 % of the time.

*What to do.* `nvidia-smi pmon` lists them.

*Silent* where the driver does not name the run's own processes, as in most containers, and about
processes that have the GPU open and compute nothing. What the GPU's counters saw while others
computed is no evidence for anything: the rules that need them are silent, too.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom, Where
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.declare("GPU_SHARED")

WARN_SHARE = 0.10  # of the time: less slows a run by less than its own steps differ


def check(facts: Facts) -> Finding | None:
    """Fires when others kept a GPU of the run busy for a noticeable part of the time."""
    shared = [
        (gpu.other_busy_share.mean, gpu)
        for gpu in facts.gpus_used or ()
        if gpu.other_busy_share.mean is not None and gpu.other_busy_share.mean >= WARN_SHARE
    ]
    if not shared or not facts.ranks_used:
        return None
    share, gpu = max(shared, key=lambda one: (one[0], -one[1].index))
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING,
        claim=(
            f"Other processes computed on GPU {gpu.index} {percent(share)} of the time: kernels "
            "and copies of this run take longer meanwhile, and the GPU's counters do not tell "
            "whose work they see."
        ),
        action=(
            "nvidia-smi pmon lists the processes: see that the run has the GPU to itself, or "
            "measure it again when it has."
        ),
        share=share,
        evidence=Evidence(
            as_number("gpu", gpu.index),
            as_share("other_busy_share", share),
            as_share("other_busy_share_peak", gpu.other_busy_share.peak),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    asks_each_node=True,
    role=RuleRole.CAUSE,
    explains=(
        Kind.COMPUTE_BOUND,
        Kind.H2D_BOUND,
        Kind.COMPUTE_STRAGGLER,
        Kind.H2D_STRAGGLER,
        Kind.SLOWDOWN,
    ),
    where=Where.ANYWHERE,
    doc=Doc(
        "warn",
        "other processes compute on a GPU of the run",
        __doc__,
        symptoms=(Symptom.SLOW_BUSY_GPU,),
    ),
)
