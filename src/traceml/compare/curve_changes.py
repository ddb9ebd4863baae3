"""What changed between two results of a classifier: confusion matrices, ROC and PR curves.

They are known by their shape: a JSON object with `confusion_matrix` (and `labels`), with `fpr` and
`tpr`, or with `precision` and `recall`; or a table with these columns, or whose rows and columns
have the same names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from traceml.compare.artifact_details import CurveChange, NumberChange

MAX_CLASSES = 2000
MAX_KEPT_CLASSES = 16
"""Of a confusion matrix that the comparison holds as it is."""
MAX_POINTS = 200
"""Of a curve that the comparison holds, evenly chosen."""
_MATRIX_KEYS = ("confusion_matrix", "confusion", "matrix")
_LABEL_KEYS = ("labels", "classes", "class_names")


@dataclass(frozen=True, slots=True)
class Curve:
    """A result as numbers by name."""

    shape: str
    numbers: dict[str, float | None]
    points: tuple[tuple[float, float], ...] = ()
    """Of a curve, from left to right."""
    matrix: tuple[tuple[float, ...], ...] = ()
    labels: tuple[str, ...] = ()


def compare_curves(a: Curve, b: Curve) -> CurveChange | None:
    """Returns what changed; `None` where the two are not of the same shape."""
    if a.shape != b.shape:
        return None
    names = dict.fromkeys((*a.numbers, *b.numbers))
    return CurveChange(
        a.shape,
        tuple(NumberChange(name, a.numbers.get(name), b.numbers.get(name)) for name in names),
        lhs_points=a.points,
        rhs_points=b.points,
        lhs_matrix=a.matrix,
        rhs_matrix=b.matrix,
        labels=a.labels if a.labels == b.labels else (),
    )


def curve_of_json(document: object) -> Curve | None:
    """Returns the result that a JSON document holds; `None` where it is something else."""
    if not isinstance(document, Mapping):
        return None
    for key in _MATRIX_KEYS:
        matrix = _matrix(document.get(key))
        if matrix is not None:
            labels = next((document[name] for name in _LABEL_KEYS if name in document), None)
            return _confusion(matrix, labels)
    return _curve(document)


def curve_of_table(table: Sequence[Sequence[str]]) -> Curve | None:
    """Returns the result that a table holds; `None` where it is something else."""
    if len(table) < 2:
        return None
    head, rows = [name.strip().lower() for name in table[0]], table[1:]
    labels = [name.strip() for name in table[0][1:]]
    if len(labels) > 1 and [row[0].strip() for row in rows if row] == labels:
        matrix = _matrix([row[1:] for row in rows])
        return None if matrix is None else _confusion(matrix, labels)
    return _curve(
        {name: [row[place] for row in rows if place < len(row)] for place, name in enumerate(head)}
    )


def _curve(columns: Mapping[str, object]) -> Curve | None:
    for shape, across, up in (
        ("roc", "fpr", "tpr"),
        ("precision_recall", "recall", "precision"),
    ):
        x, y = _finite(columns.get(across)), _finite(columns.get(up))
        if x is not None and y is not None and len(x) == len(y) > 1:
            area = _roc_area(x, y) if shape == "roc" else _average_precision(x, y)
            numbers: dict[str, float | None] = {
                "area" if shape == "roc" else "average precision": area
            }
            return Curve(shape, numbers, _chosen(sorted(zip(x, y, strict=True))))
    return None


def _chosen(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Returns so many points as a picture can show, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return tuple(points)
    last = len(points) - 1
    return tuple(points[round(n * last / (MAX_POINTS - 1))] for n in range(MAX_POINTS))


def _roc_area(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns the area under a curve by trapezoids, whichever way it is written."""
    points = sorted(zip(x, y, strict=True))
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points))


def _average_precision(recall: Sequence[float], precision: Sequence[float]) -> float:
    """Returns the sum of each step of recall times the precision at its end.

    Not by trapezoids, which flatter a precision-recall curve.
    """
    points = sorted(zip(recall, precision, strict=True), key=lambda point: (point[0], -point[1]))
    area, before = 0.0, 0.0
    for across, up in points:
        area += (across - before) * up
        before = across
    return area


def _confusion(matrix: Sequence[Sequence[float]], labels: object) -> Curve:
    """Returns accuracy, and recall and precision of each class; rows are the true classes."""
    size = len(matrix)
    names = [str(number) for number in range(size)]
    if isinstance(labels, (list, tuple)) and len(labels) == size:
        names = [str(label) for label in labels]
    total = sum(map(sum, matrix))
    right = sum(matrix[place][place] for place in range(size))
    numbers: dict[str, float | None] = {"accuracy": right / total if total else None}
    for place, name in enumerate(names):
        true, said = sum(matrix[place]), sum(row[place] for row in matrix)
        numbers[f"recall of {name}"] = matrix[place][place] / true if true else None
        numbers[f"precision of {name}"] = matrix[place][place] / said if said else None
    if size > MAX_KEPT_CLASSES:
        return Curve("confusion_matrix", numbers)
    return Curve("confusion_matrix", numbers, (), tuple(map(tuple, matrix)), tuple(names))


def _matrix(found: object) -> list[list[float]] | None:
    """Returns a square matrix of counts or shares; `None` for anything else."""
    if not isinstance(found, (list, tuple)) or not 2 <= len(found) <= MAX_CLASSES:
        return None
    rows = [_finite(row) for row in found]
    known = [row for row in rows if row is not None]
    is_square = len(known) == len(found) and all(len(row) == len(found) for row in known)
    return known if is_square and all(cell >= 0 for row in known for cell in row) else None


def _finite(values: object) -> list[float] | None:
    """Returns a list of finite numbers; `None` for anything else."""
    if not isinstance(values, (list, tuple)):
        return None
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if all(map(math.isfinite, found)) else None
