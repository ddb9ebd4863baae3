"""Fragmentation: the GPU's allocator holds far more than tensors occupy.

*Meaning.* The GPU's allocator holds far more than tensors ever occupied at once. While the device
has room that is harmless; where it has none, it is what an allocation will miss.

*Evidence.* `reserved_bytes`, `allocated_bytes`, `idle_bytes`, `idle_share`, `pressure`.

*Thresholds.* At least 1 GiB, and 20 % of the device or 30 % of what is reserved. It warns where
80 % of the device is reserved, else it is a remark.

*What to do.* `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; batches padded to a few lengths.

*Silent* without a GPU.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts, RankFacts
from traceml.model.evidence import Evidence, as_share, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.FRAGMENTATION

CAPACITY_SHARE = 0.20  # of the device: enough for a larger batch
RESERVED_SHARE = 0.30  # of what is reserved; blocks rounded up and kept for reuse are a fifth
MIN_BYTES = 1 << 30  # a small model's allocator keeps most of what it has, and it is nothing
FULL_SHARE = 0.80  # of the device reserved: from there on the gap is what will be missing


def check(facts: Facts) -> Finding | None:
    """Fires when much of what the allocator holds is in nobody's use."""
    found = [
        (rank, idle)
        for rank in facts.ranks
        if (idle := _idle_bytes(rank)) is not None and _is_much(rank, idle)
    ]
    if not found:
        return None
    worst, idle_bytes = max(found, key=lambda one: (one[1], -one[0].rank.rank))
    reserved = worst.memory.peak_reserved_bytes or 0
    full = reserved / worst.rank.device_total_bytes if worst.rank.device_total_bytes else None
    idle_share = idle_bytes / reserved
    return Finding(
        kind=KIND,
        section=Section.STEP_MEMORY,
        severity=Severity.WARNING if full is not None and full >= FULL_SHARE else Severity.INFO,
        claim=(
            f"The allocator of rank {worst.rank.rank} holds {memory(reserved)}, of which tensors "
            f"never occupied {memory(idle_bytes)} ({percent(idle_share)})."
        ),
        action=(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; batches of equal shapes "
            f"(padded to a few lengths) would win back part of the {memory(idle_bytes)} too."
        ),
        share=idle_share,
        ranks=tuple(rank.rank.rank for rank, _ in found),
        evidence=Evidence(
            in_bytes("reserved_bytes", reserved),
            in_bytes("allocated_bytes", worst.memory.peak_allocated_bytes),
            in_bytes("idle_bytes", idle_bytes),
            as_share("idle_share", idle_share),
            as_share("pressure", full),
        ),
    )


def _idle_bytes(rank: RankFacts) -> int | None:
    reserved, allocated = rank.memory.peak_reserved_bytes, rank.memory.peak_allocated_bytes
    return None if reserved is None or allocated is None else reserved - allocated


def _is_much(rank: RankFacts, idle_bytes: int) -> bool:
    capacity = rank.rank.device_total_bytes
    of_device = capacity is not None and idle_bytes >= CAPACITY_SHARE * capacity
    of_reserved = idle_bytes >= RESERVED_SHARE * (rank.memory.peak_reserved_bytes or 0)
    return idle_bytes >= MIN_BYTES and (of_device or of_reserved)


RULE = Rule(
    kind=KIND,
    section=Section.STEP_MEMORY,
    check=check,
    doc=Doc(
        "info, warn",
        "the GPU's allocator holds far more than tensors use",
        __doc__,
        symptoms=(Symptom.MEMORY,),
    ),
)
