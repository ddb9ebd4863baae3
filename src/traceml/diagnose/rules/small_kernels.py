"""Small kernels: the GPU always has a kernel, but the kernels fill only a part of it.

*Meaning.* A kernel is nearly always resident, but the kernels have too few blocks to give every
multiprocessor work.

*Evidence.* As TENSOR_CORES_IDLE.

*Thresholds.* A kernel was resident 70 % of the time or more, and in that time at most 50 % of the
SMs had work.

*What to do.* A larger batch where memory is left, small operations batched or fused. Launching
faster (CUDA graphs) does not help.

*Silent* without the counters, and where `HOST_BOUND` holds.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.compute_causes import cause, compute_cause, counted_use
from traceml.diagnose.rule import Doc, Symptom
from traceml.diagnose.rules import host_bound
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import percent

KIND = Kind.SMALL_KERNELS

MIN_BUSY = 0.70  # a GPU without a kernel for longer has another problem
MAX_SM = 0.50  # of the time with a kernel; healthy loops keep 88 % and more of the SMs at work


def check(facts: Facts) -> Finding | None:
    """Fires when a kernel is nearly always resident and half of the GPU has nothing to do."""
    use = counted_use(facts)
    if use is None or use.sm_share is None or use.busy_share is None:
        return None
    if use.busy_share < MIN_BUSY or use.sm_share > MAX_SM * use.busy_share:
        return None
    if host_bound.check(facts) is not None:
        return None
    occupancy = "" if use.occupancy is None else f" (occupancy {percent(use.occupancy)})"
    return cause(
        facts,
        KIND,
        claim=(
            f"The kernels are too small to fill the GPU: one is resident "
            f"{percent(use.busy_share)} of the time, but only {percent(use.sm_share)} of the "
            f"multiprocessors have work{occupancy}."
        ),
        action=_next_step(facts),
        share=use.sm_share,
    )


def _next_step(facts: Facts) -> str:
    compiling = settings_advice.compiling(facts.settings)
    ways = (
        settings_advice.larger_batch(facts),
        "several small operations batched into one",
        f"operations fused by {compiling}" if compiling else "",
    )
    return (
        f"Give each kernel more to do: {settings_advice.listed(ways, 'or')}. Launching faster, as "
        "CUDA graphs do, does not help."
    )


RULE = compute_cause(
    KIND,
    check,
    Doc(
        severities="info",
        says="the kernels are too small to fill the GPU",
        text=__doc__,
        symptoms=(Symptom.SLOW_BUSY_GPU,),
    ),
)
