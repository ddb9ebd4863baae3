"""How two logged files of one kind differ, as records: what the comparison file holds."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

MAX_LISTED = 1000
"""Differences that are listed one by one, the largest first."""


class TensorState(Struct, frozen=True):
    """A tensor in one of the two checkpoints."""

    dtype: str
    shape: tuple[int, ...]
    norm: float | None = None
    """The root of the sum of squares of its finite elements; `None` where it was not read."""
    not_finite: int = 0
    """Elements that are infinite or no number."""


class TensorChange(Struct, frozen=True):
    """A tensor that differs; `None` on the side that does not have it."""

    name: str
    lhs: TensorState | None = None
    rhs: TensorState | None = None
    relative_change: float | None = None
    """The norm of the difference, divided by A's norm; `None` where shapes differ, A is all zero,
    or the elements were not read."""


class CheckpointChange(Struct, frozen=True, tag="checkpoint"):
    """Two checkpoints."""

    lhs_tensors: int
    rhs_tensors: int
    lhs_elements: int
    rhs_elements: int
    same: int
    """Tensors with the same type, shape and elements."""
    added: int
    """Tensors that only B has."""
    removed: int
    """Tensors that only A has."""
    reshaped: int
    retyped: int
    """Tensors of the same shape and another type."""
    moved: int
    """Tensors whose elements differ."""
    relative_change: float | None
    """Of all tensors with the same shape together."""
    tensors: tuple[TensorChange, ...]
    """Those that differ: missing ones, other shapes, then by their relative change; at most
    `MAX_LISTED`."""


Details: TypeAlias = CheckpointChange
"""What differs in two files of one kind."""
