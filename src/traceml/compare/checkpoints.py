"""What changed between two checkpoints: names, shapes, types, norms, and how far weights moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traceml.compare.artifact_details import (
    MAX_LISTED,
    CheckpointChange,
    Scalar,
    TensorChange,
    TensorState,
)
from traceml.compare.value_changes import compare_json

Numbers = npt.NDArray[np.float64]


class HasShape(Protocol):
    """A tensor's type and shape, as a file declares them."""

    @property
    def dtype(self) -> str:
        """Torch's name of the type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""


class Checkpoint(Protocol):
    """A file of tensors that can be read piece by piece."""

    @property
    def tensors(self) -> Mapping[str, HasShape]:
        """The tensors by name."""

    @property
    def values(self) -> Mapping[str, Scalar]:
        """What else is saved, by name."""

    def pieces(self, name: str) -> Iterator[Numbers] | None:
        """A tensor's numbers in order; `None` where they cannot be read."""


class _SquareSums(Struct):
    """Sums of squares over the elements of a tensor."""

    lhs: float = 0.0
    rhs: float = 0.0
    difference: float = 0.0
    lhs_not_finite: int = 0
    rhs_not_finite: int = 0
    is_same: bool = True
    is_known: bool = True


def compare_checkpoints(a: Checkpoint, b: Checkpoint) -> CheckpointChange:
    """Returns what differs, reading both piece by piece."""
    changes: list[TensorChange] = []
    same = retyped = moved = 0
    total = _SquareSums()
    for name in dict.fromkeys((*a.tensors, *b.tensors)):
        lhs, rhs = a.tensors.get(name), b.tensors.get(name)
        if lhs is None or rhs is None or lhs.shape != rhs.shape:
            changes.append(TensorChange(name, _state(a, name), _state(b, name)))
            continue
        sums = _compare(a, b, name)
        total.lhs += sums.lhs
        total.difference += sums.difference
        total.is_known &= sums.is_known
        retyped += lhs.dtype != rhs.dtype
        moved += sums.is_known and not sums.is_same
        if sums.is_same and sums.is_known and lhs.dtype == rhs.dtype:
            same += 1
        else:
            changes.append(_change(name, lhs, rhs, sums))
    return CheckpointChange(
        lhs_tensors=len(a.tensors),
        rhs_tensors=len(b.tensors),
        lhs_elements=sum(math.prod(each.shape) for each in a.tensors.values()),
        rhs_elements=sum(math.prod(each.shape) for each in b.tensors.values()),
        same=same,
        added=sum(change.lhs is None for change in changes),
        removed=sum(change.rhs is None for change in changes),
        reshaped=sum(_is_reshaped(change) for change in changes),
        retyped=retyped,
        moved=moved,
        relative_change=_ratio(total) if total.is_known else None,
        tensors=tuple(sorted(changes, key=_order)[:MAX_LISTED]),
        values=compare_json(dict(a.values), dict(b.values)).values,
    )


def _change(name: str, lhs: HasShape, rhs: HasShape, sums: _SquareSums) -> TensorChange:
    if not sums.is_known:
        return TensorChange(
            name, TensorState(lhs.dtype, lhs.shape), TensorState(rhs.dtype, rhs.shape)
        )
    return TensorChange(
        name,
        TensorState(lhs.dtype, lhs.shape, math.sqrt(sums.lhs), sums.lhs_not_finite),
        TensorState(rhs.dtype, rhs.shape, math.sqrt(sums.rhs), sums.rhs_not_finite),
        _ratio(sums),
    )


def _state(side: Checkpoint, name: str) -> TensorState | None:
    """Returns a tensor that cannot be compared with the other side's."""
    found = side.tensors.get(name)
    if found is None:
        return None
    pieces = side.pieces(name)
    if pieces is None:
        return TensorState(found.dtype, found.shape)
    squares, not_finite = 0.0, 0
    for piece in pieces:
        finite = piece[np.isfinite(piece)]
        squares += _sum_of_squares(finite)
        not_finite += piece.size - finite.size
    return TensorState(found.dtype, found.shape, math.sqrt(squares), not_finite)


def _compare(a: Checkpoint, b: Checkpoint, name: str) -> _SquareSums:
    lhs_pieces, rhs_pieces = a.pieces(name), b.pieces(name)
    if lhs_pieces is None or rhs_pieces is None:
        return _SquareSums(is_known=False)
    sums = _SquareSums()
    for lhs, rhs in zip(lhs_pieces, rhs_pieces, strict=True):
        _add(sums, lhs, rhs)
    return sums


def _add(sums: _SquareSums, lhs: Numbers, rhs: Numbers) -> None:
    """Adds a piece; elements that are not finite on a side are counted, and not in the sums."""
    sums.is_same = sums.is_same and _is_equal(lhs, rhs)
    squares = _sum_of_squares(lhs), _sum_of_squares(rhs)
    if not all(map(math.isfinite, squares)):
        lhs_finite, rhs_finite = np.isfinite(lhs), np.isfinite(rhs)
        sums.lhs_not_finite += int((~lhs_finite).sum())
        sums.rhs_not_finite += int((~rhs_finite).sum())
        squares = _sum_of_squares(lhs[lhs_finite]), _sum_of_squares(rhs[rhs_finite])
        both = lhs_finite & rhs_finite
        lhs, rhs = lhs[both], rhs[both]
    sums.lhs += squares[0]
    sums.rhs += squares[1]
    with np.errstate(over="ignore"):
        sums.difference += _sum_of_squares(rhs - lhs)


def _is_equal(lhs: Numbers, rhs: Numbers) -> bool:
    """Returns whether all elements are the same; one that is no number equals another such."""
    same = lhs == rhs
    return bool(same.all()) or bool((same | (np.isnan(lhs) & np.isnan(rhs))).all())


def _sum_of_squares(numbers: Numbers) -> float:
    """Returns it without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", numbers, numbers))


def _ratio(sums: _SquareSums) -> float | None:
    if not sums.lhs or not math.isfinite(sums.lhs) or not math.isfinite(sums.difference):
        return None
    return math.sqrt(sums.difference / sums.lhs)


def _is_reshaped(change: TensorChange) -> bool:
    lhs, rhs = change.lhs, change.rhs
    return lhs is not None and rhs is not None and lhs.shape != rhs.shape


def _order(change: TensorChange) -> tuple[int, float, str]:
    """Sorts missing tensors and other shapes first, then NaN that is new, then by change."""
    if change.lhs is None or change.rhs is None:
        return 0, 0.0, change.name
    if change.lhs.shape != change.rhs.shape:
        return 1, 0.0, change.name
    if change.rhs.not_finite > change.lhs.not_finite:
        return 2, 0.0, change.name
    ratio = change.relative_change
    return 3, -(math.inf if ratio is None else ratio), change.name
