"""Wait heavy: the step's body spends its time outside the model's work.

Judged by what no measurement explains: not input wait, copies, communication or compute. Stays
silent when a part of compute was not measured, because that part would look like waiting.
"""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.facts.times import StepTimes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent
from traceml.model.rank import Region

WARN_SHARE = 0.10
CRITICAL_SHARE = 0.20
LOOP_OVERHEAD_S = 0.0005  # zero_grad, the loss and a progress bar cost this in any Python loop
NOTICEABLE_S = 0.001  # a shorter wait matters only by its share, and is never critical


def check(facts: Facts) -> Finding | None:
    """Fires when a noticeable part of the step is neither work nor a measured wait."""
    times = facts.mean
    rest_s = unexplained_s(times)
    if rest_s is None or not times.step_s or rest_s < LOOP_OVERHEAD_S:
        return None
    rest_share = rest_s / times.step_s
    noticeable = rest_s >= NOTICEABLE_S
    if rest_share < (WARN_SHARE if noticeable else CRITICAL_SHARE):
        return None
    critical = noticeable and rest_share >= CRITICAL_SHARE
    return Finding(
        kind=Kind.WAIT_HEAVY,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        claim=(
            f"{percent(rest_share)} of a typical step ({duration(rest_s)} of "
            f"{duration(times.step_s)}) is neither data, copies nor the model's work."
        ),
        action=_next_step(facts),
        phase=Phase.RESIDUAL,
        share=rest_share,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (unexplained_s(rank.times) or 0.0) >= WARN_SHARE * (rank.times.step_s or 0.0)
        ),
        lost_s_per_step=rest_s,
        evidence={
            "wait_share": rest_share,
            "unexplained_ms": rest_s * 1e3,
            "residual_ms": None if times.residual_s is None else times.residual_s * 1e3,
            "wait_ms": None if times.wait_s is None else times.wait_s * 1e3,
            "step_time_ms": times.step_s * 1e3,
            "diagnosis_clock": facts.clock,
        },
    )


def unexplained_s(times: StepTimes) -> float | None:
    """What is left of the body after copies, compute and communication."""
    if times.residual_s is None:
        return None
    return times.residual_s - (times.communication_s or 0.0)


def _suspect(facts: Facts) -> Region | None:
    """The longest named region that fits into what is unexplained: a longer one holds phases."""
    rest_s = unexplained_s(facts.mean) or 0.0
    steps = max(1, facts.window.steps_taken * len(facts.ranks_used))
    return next((region for region in facts.regions if region.host_s / steps <= rest_s), None)


def _next_step(facts: Facts) -> str:
    region = _suspect(facts)
    if region is not None:
        calls_s = region.host_s / max(region.calls, 1)
        return (
            f"Look at the region '{region.name}' first ({duration(calls_s)} a call), "
            "then at logging, metrics and .item() calls in the loop."
        )
    if facts.clock == "gpu":
        return (
            "The GPU stood idle between its phases: look for .item(), .cpu(), printing and "
            "logging in every step."
        )
    if len(facts.ranks_used) > 1:
        return "Look at synchronisation between ranks, then at logging and metrics in every step."
    return (
        "Look at what the loop does besides the model: metrics, logging, the loss, copies; "
        "name a suspect with traceml.trace_time."
    )
