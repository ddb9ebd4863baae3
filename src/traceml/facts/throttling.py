"""How often something held a GPU's clock down, and how far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traceml.model.sample import GpuSample

HARMLESS = frozenset({"idle", "application clocks", "sync boost", "display clocks"})
"""Reasons that somebody chose, or that hold back only a GPU with nothing to do."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """One GPU's; empty where nothing held it back or the driver does not say."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """By reason: the share of the samples in which it held the clock down."""
    clock_share: float | None = None
    """The mean clock in those samples, of the highest there is."""


NOT_THROTTLED = Throttling()


def throttling(samples: Sequence[GpuSample]) -> Throttling:
    """What one GPU's samples say."""
    told = [gpu for gpu in samples if gpu.throttle_reasons is not None]
    held = [gpu for gpu in told if not HARMLESS.issuperset(gpu.throttle_reasons or ())]
    counts = Counter(
        reason for gpu in held for reason in gpu.throttle_reasons or () if reason not in HARMLESS
    )
    clocks = [
        gpu.sm_clock_mhz / gpu.sm_clock_max_mhz
        for gpu in held
        if gpu.sm_clock_mhz is not None and gpu.sm_clock_max_mhz
    ]
    return Throttling(
        shares={reason: seen / len(told) for reason, seen in counts.items()},
        clock_share=sum(clocks) / len(clocks) if clocks else None,
    )
