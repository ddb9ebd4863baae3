"""Recompiling: torch.compile compiles again and again after warm-up.

*Meaning.* `torch.compile` compiles again after warm-up, mostly because shapes change.

*Evidence.* `lost_ms`, `host_ms`, `step_time_ms`, `steps_with` of `steps_seen`, `longest_ms`,
`diagnosis_clock`.

*Thresholds.* Two steps or more that compiled after warm-up (one is the epoch's last, smaller
batch), and 5 % of the step warns from 1 ms per step on, 20 % is critical from 3 ms on. Compiling
takes so long that no queue of a GPU hides it.

*What to do.* `TORCH_LOGS=recompiles` names the reason; `torch.compile(dynamic=True)`,
`mark_dynamic`, or batches padded to a few sizes.
"""

from __future__ import annotations

from traceml.diagnose.host_time import HostWork, finding_of, host_cause, spent_on
from traceml.diagnose.rule import Doc, Remedy, Symptom, Turn
from traceml.diagnose.what_if import without_host_time
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.RECOMPILING

MIN_STEPS = 2  # one more compilation is the epoch's last, smaller batch, or an evaluation


def host_work(facts: Facts) -> HostWork | None:
    """Returns the time of compiling in a step; it takes longer than any queue of a GPU could
    hide."""
    spent = spent_on(facts, "compile")
    if spent is None:
        return None
    return HostWork(
        words="compiling",
        spent=spent,
        detail=(
            f"torch.compile compiled again in {spent.steps} after warm-up, "
            f"for up to {spent.longest}"
        ),
        action=(
            "torch.compile compiles once more for what it has not seen yet, such as a smaller last "
            "batch or an evaluation: act only if that happens again and again "
            "(TORCH_LOGS=recompiles names the reason)."
            if spent.pauses.steps < MIN_STEPS
            else "Find what changes with TORCH_LOGS=recompiles; for shapes use "
            "torch.compile(dynamic=True), torch._dynamo.mark_dynamic, or pad batches to a few "
            "sizes (drop_last=True for the last one)."
        ),
    )


def check(facts: Facts) -> Finding | None:
    """Fires when compiling again and again after warm-up takes a noticeable share of the step."""
    work = host_work(facts)
    is_once = work is not None and work.spent.pauses.steps < MIN_STEPS
    return None if is_once else finding_of(work, facts, KIND)


RULE = host_cause(
    KIND,
    check,
    host_work,
    turn=Turn.HOST_STOPPED,
    what_if=Remedy("without compiling again", without_host_time("compile_ns")),
    doc=Doc(
        "info, warn, crit",
        "`torch.compile` compiles again and again",
        __doc__,
        symptoms=(Symptom.STUTTER,),
    ),
)
