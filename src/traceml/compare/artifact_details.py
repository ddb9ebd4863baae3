"""How two logged files of one kind differ, as records: what the comparison file holds."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, structs

MAX_LISTED = 1000
"""Differences that are listed one by one, the largest first."""


Scalar: TypeAlias = str | int | float | bool | None


class ValueChange(Struct, frozen=True):
    """One value of a document or a table; `op` is `changed`, `added` or `removed`."""

    path: str
    op: str
    lhs: Scalar = None
    rhs: Scalar = None


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
    values: tuple[ValueChange, ...] = ()
    """What else is saved and differs: an epoch, a learning rate."""


class TextPart(Struct, frozen=True):
    """Words that both texts have (`same`), or only A's (`removed`) or B's (`added`)."""

    op: str
    text: str


class TextHunk(Struct, frozen=True):
    """A place where two texts differ; lines are counted from 1."""

    lhs_line: int
    rhs_line: int
    parts: tuple[TextPart, ...]


class TextChange(Struct, frozen=True, tag="text"):
    """Two texts, or two logs."""

    lhs_lines: int
    rhs_lines: int
    removed: int
    """Lines that only A has, or that have other words in B."""
    added: int
    normalised: bool = False
    """Whether times, numbers and addresses count as equal, as in logs."""
    in_order: bool = True
    """Whether the order of lines counts; it does not where too many lines differ."""
    hunks: tuple[TextHunk, ...] = ()


class SampleChange(Struct, frozen=True):
    """What was generated for one prompt."""

    prompt: str
    parts: tuple[TextPart, ...]


class SamplesChange(Struct, frozen=True, tag="samples"):
    """Two files of JSON lines with generated texts, paired by their prompts."""

    paired_by: str
    """The key of the prompt, or `line`."""
    paired: int
    same: int
    only_lhs: int
    only_rhs: int
    samples: tuple[SampleChange, ...] = ()
    """Those that differ."""


class JsonChange(Struct, frozen=True, tag="json"):
    """Two JSON documents, value by value."""

    same: int
    changed: int
    added: int
    removed: int
    values: tuple[ValueChange, ...] = ()


class ColumnChange(Struct, frozen=True):
    """A column of numbers that both tables have; `None` where it has no numbers."""

    name: str
    changed: int
    """Cells that differ, in rows that both tables have."""
    lhs_mean: float | None = None
    rhs_mean: float | None = None


class TableChange(Struct, frozen=True, tag="table"):
    """Two tables, whose rows are paired by a column of unique values, or by their number."""

    lhs_rows: int
    rhs_rows: int
    paired_by: str
    """The column, or `row`."""
    added_rows: int
    removed_rows: int
    added_columns: tuple[str, ...]
    removed_columns: tuple[str, ...]
    changed_cells: int
    columns: tuple[ColumnChange, ...] = ()
    """Those with other cells."""
    cells: tuple[ValueChange, ...] = ()


class NumberChange(Struct, frozen=True):
    """A number on both sides."""

    name: str
    lhs: float | None
    rhs: float | None


class CurveChange(Struct, frozen=True, tag="curve"):
    """Two results of a classifier: a confusion matrix, or a ROC or precision-recall curve."""

    shape: str
    """`confusion_matrix`, `roc` or `precision_recall`."""
    numbers: tuple[NumberChange, ...]
    """Accuracy, recall and precision of each class; or the area under the curve."""
    lhs_points: tuple[tuple[float, float], ...] = ()
    """Of a curve: its points from left to right, evenly chosen where there are very many."""
    rhs_points: tuple[tuple[float, float], ...] = ()
    lhs_matrix: tuple[tuple[float, ...], ...] = ()
    """Of a confusion matrix with few classes: rows are the true classes."""
    rhs_matrix: tuple[tuple[float, ...], ...] = ()
    labels: tuple[str, ...] = ()
    """The names of its classes, where both sides have the same."""


class ImageChange(Struct, frozen=True, tag="image"):
    """Two images; `None` where their sizes differ."""

    lhs_size: tuple[int, int]
    """Width and height in pixels."""
    rhs_size: tuple[int, int]
    changed_share: float | None = None
    """Of the pixels, in 0–1."""
    mean_difference: float | None = None
    """Of all values of red, green and blue, in 0–1."""
    max_difference: float | None = None
    picture: str | None = None
    """The file that shows A, B and their difference side by side."""

    def with_picture(self, picture: str) -> ImageChange:
        """Returns the same with the file that shows it."""
        return structs.replace(self, picture=picture)


class Projection(Struct, frozen=True):
    """Two sets of points on the first two principal components of both together."""

    explained: tuple[float, float]
    """The share of the variance on each component, in 0–1."""
    lhs: tuple[tuple[float, float], ...]
    rhs: tuple[tuple[float, float], ...]


class ArrayChange(Struct, frozen=True, tag="array"):
    """Two arrays of numbers; `None` where their shapes do not allow it, or a value is not
    finite."""

    lhs_shape: tuple[int, ...]
    rhs_shape: tuple[int, ...]
    lhs_dtype: str
    rhs_dtype: str
    relative_change: float | None = None
    """The norm of the difference, divided by A's norm."""
    cosine: float | None = None
    """The mean cosine between a row of A and the same row of B."""
    alignment: float | None = None
    """How alike the relations between rows are, in 0–1, whatever the rotation (linear CKA)."""
    projection: Projection | None = None


Details: TypeAlias = (
    CheckpointChange
    | TextChange
    | SamplesChange
    | JsonChange
    | TableChange
    | CurveChange
    | ImageChange
    | ArrayChange
)
"""What differs in two files of one kind."""
