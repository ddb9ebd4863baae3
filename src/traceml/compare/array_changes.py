"""What changed between two arrays, such as embeddings of the same examples from two runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceml.compare.artifact_details import ArrayChange, Projection

MAX_POINTS = 1000
"""Of each side in the projection, evenly chosen."""
MAX_ROWS = 20_000
"""From which similarities are computed, evenly chosen."""
MAX_COLUMNS = 2048
"""Wider arrays are not projected: that takes time which grows with the cube."""

Numbers = npt.NDArray[np.float64]


def compare_arrays(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> ArrayChange:
    """Returns how far numbers moved, and of two-dimensional arrays how alike their rows are."""
    known = ArrayChange(
        lhs_shape=a.shape, rhs_shape=b.shape, lhs_dtype=str(a.dtype), rhs_dtype=str(b.dtype)
    )
    if not (_is_numeric(a) and _is_numeric(b)) or not a.size or not b.size:
        return known
    is_same_shape = a.shape == b.shape
    lhs, rhs = (_chosen(array, MAX_ROWS) for array in (a, b))
    finite = bool(np.isfinite(lhs).all() and np.isfinite(rhs).all())
    are_embeddings = a.ndim == b.ndim == 2 and max(a.shape[1], b.shape[1]) <= MAX_COLUMNS
    are_rows_paired = finite and are_embeddings and a.shape[0] == b.shape[0]
    return ArrayChange(
        lhs_shape=a.shape,
        rhs_shape=b.shape,
        lhs_dtype=str(a.dtype),
        rhs_dtype=str(b.dtype),
        relative_change=_relative_change(lhs, rhs) if is_same_shape and finite else None,
        cosine=_cosine(lhs, rhs) if are_rows_paired and is_same_shape else None,
        alignment=_alignment(lhs, rhs) if are_rows_paired else None,
        projection=(
            _projection(lhs, rhs)
            if finite and are_embeddings and a.shape[1] == b.shape[1] > 1
            else None
        ),
    )


def _is_numeric(array: npt.NDArray[np.generic]) -> bool:
    return array.dtype.kind in "fiub"


def _chosen(array: npt.NDArray[np.generic], limit: int) -> Numbers:
    """Returns so many rows at most, evenly chosen."""
    rows = array if array.ndim else array.reshape(1)
    if len(rows) > limit:
        rows = rows[np.linspace(0, len(rows) - 1, limit).astype(int)]
    return np.asarray(rows, dtype=np.float64)


def _relative_change(a: Numbers, b: Numbers) -> float | None:
    norm = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / norm if norm else None


def _cosine(a: Numbers, b: Numbers) -> float | None:
    """Returns the mean cosine between the two vectors of each row; zero vectors are left out."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    known = norms > 0
    if not known.any():
        return None
    return float((np.einsum("ij,ij->i", a, b)[known] / norms[known]).mean())


def _alignment(a: Numbers, b: Numbers) -> float | None:
    """Returns the linear CKA: how alike the rows' relations are, in 0–1, whatever the rotation."""
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    scale = float(np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))
    return float(np.linalg.norm(a.T @ b) ** 2) / scale if scale else None


def _projection(a: Numbers, b: Numbers) -> Projection | None:
    """Returns both on the first two principal components of both together."""
    both = np.concatenate([a, b])
    centre = both.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((both - centre).T))
    total = float(values.sum())
    if total <= 0:
        return None
    axes = vectors[:, ::-1][:, :2]
    # A component's sign is arbitrary: its largest entry is made positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    lhs, rhs = ((_chosen(side, MAX_POINTS) - centre) @ axes for side in (a, b))
    first, second = values[::-1][:2] / total
    return Projection(
        explained=(float(first), float(second)),
        lhs=tuple((float(x), float(y)) for x, y in lhs),
        rhs=tuple((float(x), float(y)) for x, y in rhs),
    )
