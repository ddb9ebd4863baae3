"""Compute straggler: one rank's forward, backward or optimizer takes longer than elsewhere.

*Meaning.* A rank's forward, backward or optimizer takes longer than elsewhere. A delay in one
rank's backward is found although the all-reduce makes every rank's backward equally long.

*Evidence.* As for [STRAGGLER](#straggler); `phase` names the largest of the three.

*Thresholds.* As for [STRAGGLER](#straggler).

*What to do.* Look at that phase on that rank: longer sequences, larger batches, branches and
hooks that run there alone; a GPU with lower clocks, or cores that others use.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import Late, straggler_rule
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Kind

KIND = Kind.COMPUTE_STRAGGLER


def _next_step(facts: Facts, late: Late) -> str:
    phase = late.phase.value if late.phase is not None else "compute"
    return (
        f"Look at the {phase} of {late.names} first: longer sequences or larger batches, "
        f"branches and hooks that run there alone, {_device(facts)}."
    )


def _device(facts: Facts) -> str:
    on_host = all(rank.rank.device.startswith("cpu") for rank in facts.ranks_used)
    return (
        "fewer cores or other jobs on them"
        if on_host
        else "lower clocks, heat or other jobs on the GPU (nvidia-smi -q -d PERFORMANCE)"
    )


RULE = straggler_rule(
    KIND,
    _next_step,
    Doc(
        severities="warn, crit",
        says="a rank's forward, backward or optimizer makes it late",
        text=__doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
