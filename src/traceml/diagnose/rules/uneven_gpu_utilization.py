"""Uneven GPU utilization: some GPUs of the run have work while others wait.

*Meaning.* Some GPUs of the run have work while others wait.

*Evidence.* `least_used_gpu`, `least_utilization`, `most_used_gpu`, `most_utilization`.

*Thresholds.* 20 points between the most and the least used GPU is a remark, 40 points warns.

*What to do.* Compare what the two ranks get to do; a straggler finding says which phase it is.

*Silent* where it is not known which of the machine's GPUs are the run's.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.UNEVEN_GPU_UTILIZATION

GAP = 0.20  # between the most and the least used; ranks that wait for each other stay closer
WARN_GAP = 0.40  # one GPU does much of the others' work


def check(facts: Facts) -> Finding | None:
    """Fires when the most and the least used GPU lie far apart."""
    used = [
        (gpu.busy_share, gpu.index) for gpu in facts.gpus_used or () if gpu.busy_share is not None
    ]
    if len(used) < 2:
        return None
    (least, idle), (most, busy) = min(used), max(used)
    gap = most - least
    if gap < GAP:
        return None
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.WARNING if gap >= WARN_GAP else Severity.INFO,
        claim=(
            f"GPU {idle} was in use {percent(least)} of the time in which steps ran, "
            f"GPU {busy} {percent(most)}."
        ),
        action=f"Compare what the rank on GPU {idle} gets to do, and when, with GPU {busy}.",
        skew=gap,
        evidence=Evidence(
            as_number("least_used_gpu", idle),
            as_share("least_utilization", least),
            as_number("most_used_gpu", busy),
            as_share("most_utilization", most),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    role=RuleRole.CONTEXT,
    doc=Doc(
        "info, warn", "some GPUs work while others wait", __doc__, symptoms=(Symptom.BAD_SCALING,)
    ),
)
