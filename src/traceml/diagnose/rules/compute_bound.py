"""Compute bound: the model's own work is where the time goes.

That is how a healthy job looks, so it is never more than a remark. Judged by the measured parts
of compute: what was not measured could only add to them.
"""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import COMPUTE, Phase
from traceml.model.quantities import duration, percent

KIND = Kind.COMPUTE_BOUND

SHARE = 0.80  # with at most a fifth elsewhere, nothing but the model can speed the step up much
ROOM_SHARE = 0.5  # a device filled less than half has room for a larger batch


def check(facts: Facts) -> Finding | None:
    """Fires when forward, backward and optimizer fill the step."""
    times = facts.mean
    if times.compute_at_least_s is None or not times.step_s:
        return None
    compute_share = times.compute_at_least_s / times.step_s
    if compute_share < SHARE:
        return None
    parts: dict[Phase | None, float] = {
        phase: part for phase in COMPUTE if (part := facts.typical(phase)) is not None
    }
    replayed_s = times.compute_at_least_s - sum(parts.values())
    if len(parts) < len(COMPUTE):
        parts[None] = replayed_s  # of CUDA graphs: one launch cannot be told apart
    largest = max(parts, key=lambda phase: parts[phase])
    name = "the replay of CUDA graphs" if largest is None else largest.value
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=(
            f"Compute takes {percent(compute_share)} of a typical step; "
            f"{name} is the largest part "
            f"({duration(parts[largest])}, {percent(parts[largest] / times.step_s)})."
        ),
        action=_next_step(facts, largest),
        phase=largest,
        share=compute_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        evidence={
            "compute_share": compute_share,
            "compute_ms": times.compute_at_least_s * 1e3,
            "step_time_ms": times.step_s * 1e3,
            "largest_phase": "cuda_graph" if largest is None else largest.value,
            "largest_phase_ms": parts[largest] * 1e3,
            "diagnosis_clock": facts.clock,
        },
    )


def _next_step(facts: Facts, largest: Phase | None) -> str:
    if largest is Phase.OPTIMIZER:
        return "Try a fused optimizer (fused=True) or a larger batch, so that it runs less often."
    on_host = all(rank.rank.device.startswith("cpu") for rank in facts.ranks_used)
    if on_host:
        return "The CPU's arithmetic is the limit: try a GPU, bfloat16 or a smaller model."
    filled = [
        rank.memory.peak_reserved_bytes / rank.rank.device_total_bytes
        for rank in facts.ranks_used
        if rank.memory.peak_reserved_bytes is not None and rank.rank.device_total_bytes
    ]
    room = (
        f" Memory is {percent(max(filled))} used: a larger batch fits."
        if filled and max(filled) < ROOM_SHARE
        else ""
    )
    if largest is None:
        return f"To go faster, try bfloat16 autocast, or fuse kernels with torch.compile.{room}"
    return f"To go faster, try bfloat16 autocast and torch.compile.{room}"
