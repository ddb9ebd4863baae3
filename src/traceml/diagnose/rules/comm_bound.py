"""Comm bound: the ranks wait for their data to travel.

Judged by what the last rank to arrive still waits, step by step: nobody was late for it, so that is
transfer. What the others wait before is a straggler's doing and counts there. Silent where
communication was not measured, and with one rank.
"""

from __future__ import annotations

import math

from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration, memory, percent
from traceml.store.records import DdpStatistics

KIND = Kind.COMM_BOUND

WARN_SHARE = 0.10  # below this, a faster network would not be noticed
CRITICAL_SHARE = 0.20
NOTICEABLE_S = 0.001  # a collective takes this long on any network that is not a GPU's own
CRITICAL_S = 0.003  # a toy's steps are short beside any collective
MOST_MICRO_BATCHES = 16  # accumulating more changes the training itself
SMALL_BYTES = 1 << 20  # so much travels in a millisecond over any network people train on
PIECES = 4  # buckets, of which all but the last can travel while backward goes on


def check(facts: Facts) -> Finding | None:
    """Fires when a noticeable part of the step is exposed transfer between ranks."""
    transfer_s, step_s = exposed_transfer_s(facts), facts.mean.step_s
    if transfer_s is None or not step_s:
        return None
    transfer_share = transfer_s / step_s
    crowded = _is_crowded(facts)
    if transfer_share < (CRITICAL_SHARE if crowded else WARN_SHARE) or transfer_s < NOTICEABLE_S:
        return None
    critical = transfer_share >= CRITICAL_SHARE and transfer_s >= CRITICAL_S and not crowded
    hidden_s = facts.hidden_communication_s
    beside = "" if not hidden_s else f"; {duration(hidden_s)} more is hidden behind backward"
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        claim=(
            f"Every rank waits {percent(transfer_share)} of a mean step "
            f"({duration(transfer_s)} of {duration(step_s)}) for data to travel between the "
            f"ranks{beside}."
        ),
        action=_next_step(facts.ddp, transfer_s, max(step_s - transfer_s, 1e-9)),
        phase=Phase.COMMUNICATION,
        share=transfer_share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=transfer_s,
        evidence={
            "communication_share": transfer_share,
            "transfer_ms": transfer_s * 1e3,
            "exposed_ms": (facts.mean.communication_s or 0.0) * 1e3,
            "hidden_ms": None if hidden_s is None else hidden_s * 1e3,
            "gradient_bytes": None if facts.ddp is None else facts.ddp.gradient_bytes,
            "step_time_ms": step_s * 1e3,
            "diagnosis_clock": facts.clock,
        },
    )


def exposed_transfer_s(facts: Facts) -> float | None:
    """What every rank waits in a mean step; `None` where there is nothing to wait for or to see."""
    job = facts.job
    if job is None or not job.communication_measured or len(facts.ranks_used) < 2:
        return None
    return job.transfer_s()


def _is_crowded(facts: Facts) -> bool:
    """With more ranks than cores, a collective also waits for the other ranks' turns to run."""
    if facts.clock != "cpu" or facts.host.cores is None:
        return False
    return max(rank.rank.local_world_size for rank in facts.ranks_used) > facts.host.cores


def _next_step(ddp: DdpStatistics | None, transfer_s: float, rest_s: float) -> str:
    needed = max(2, math.ceil(transfer_s * (1 - WARN_SHARE) / (WARN_SHARE * rest_s)))
    asked = min(needed, MOST_MICRO_BATCHES)
    after = transfer_s / (asked * rest_s + transfer_s)
    effect = f"which brings the wait down to {percent(after)}"
    if ddp is None:
        return (
            "Start collectives with async_op=True and wait for them where their result is needed, "
            "join small tensors into one call, or communicate only every "
            f"{asked} steps, {effect}. With FSDP, wrap larger blocks, so that fewer and larger "
            "gathers run ahead of the compute."
        )
    return (
        f"Accumulate gradients over {asked} micro-batches under no_sync(), {effect}, or make the "
        f"batch as much larger. {_smaller(ddp)}"
    ).strip()


def _smaller(ddp: DdpStatistics) -> str:
    """What else makes the transfer itself shorter, or hides it."""
    size = memory(ddp.gradient_bytes)
    if ddp.gradient_bytes < SMALL_BYTES:
        return f"With {size} of gradients it is not their size that takes the time."
    if ddp.buckets == 1:
        cap = max(1, ddp.gradient_bytes // PIECES >> 20)
        return (
            f"All {size} of gradients travel in one bucket when backward is over: with "
            f"bucket_cap_mb={cap} most of them travel during it."
        )
    if ddp.has_hook:
        return ""
    return f"bf16_compress_hook halves the {size} of gradients on their way."
