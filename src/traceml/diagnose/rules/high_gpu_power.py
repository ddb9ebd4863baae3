"""High GPU power: a GPU draws what it is allowed to.

*Meaning.* A GPU draws what it is allowed to: that is what full work looks like.

*Evidence.* `gpu`, `power_w`, `power_share`, `clock_share`.

*Thresholds.* 95 % of the enforced limit on average. A remark.

*What to do.* Nothing, unless the limit is below the board's default (`nvidia-smi -q -d POWER`).

*Silent* where the run uses only some of the machine's GPUs.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share, in_watts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.HIGH_GPU_POWER

LIMIT_SHARE = 0.95  # of the enforced limit, on average: the clock is held down to keep it


def check(facts: Facts) -> Finding | None:
    """Fires when a GPU of the run worked at its power limit."""
    drawn = [
        (gpu.power_share.mean, gpu)
        for gpu in facts.gpus_used or ()
        if gpu.power_share.mean is not None
    ]
    if not drawn:
        return None
    share, gpu = max(drawn, key=lambda one: (one[0], -one[1].index))
    if share < LIMIT_SHARE:
        return None
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.INFO,
        claim=f"GPU {gpu.index} drew {gpu.power_w.mean:.0f} W, {percent(share)} of its limit.",
        action="Nothing, unless nvidia-smi -q -d POWER shows a limit below the board's default.",
        share=share,
        evidence=Evidence(
            as_number("gpu", gpu.index),
            in_watts("power_w", gpu.power_w.mean),
            as_share("power_share", share),
            as_share("clock_share", gpu.clock_share.mean),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc("info", "a GPU draws what it may", __doc__, symptoms=(Symptom.SLOW_BUSY_GPU,)),
)
