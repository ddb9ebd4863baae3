"""The layers of the model as `final_summary.json` has them."""

from __future__ import annotations

from msgspec import Struct


class LayerSummary(Struct, frozen=True, gc=False):
    """One layer; times are milliseconds per step, bytes those of the rank that holds the most."""

    kind: str | None = None
    """Its class."""
    calls: float | None = None
    """Per step."""
    forward_ms: float | None = None
    backward_ms: float | None = None
    recompute_ms: float | None = None
    """Its own time, without the layers below it; `recompute_ms` is forward again during backward
    (activation checkpointing)."""
    own_low_ms: float | None = None
    own_high_ms: float | None = None
    """The 95 % interval of its own time in all phases."""
    total_ms: float | None = None
    """With every layer below its name."""
    parameters_bytes: int | None = None
    buffers_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    saved_bytes: int | None = None
    """Kept for the backward pass."""
    peak_bytes: int | None = None
    """The most that was allocated on the GPU while it was being called."""
    worst_rank: int | None = None
    worst_ms: float | None = None
    median_ms: float | None = None


class LayersSummary(Struct, frozen=True):
    """What the deep profile saw of the model's layers."""

    clock: str | None = None
    steps: int = 0
    """How many steps were looked at."""
    forward_ms: float | None = None
    backward_ms: float | None = None
    """How much of these phases lies in layers."""
    rest_forward_ms: float | None = None
    rest_backward_ms: float | None = None
    """How much of the phases of all steps does not: functions outside of any module, such as a
    loss."""
    layers: dict[str, LayerSummary] = {}
    """By dotted name, outer ones first; the model itself has the empty name."""
    notes: tuple[str, ...] = ()
