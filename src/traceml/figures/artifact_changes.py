"""Logged files on a page: what differs in them, by kind, as tables, charts, words and pictures."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from traceml.compare.artifact_changes import ArtifactChange
from traceml.compare.artifact_details import (
    ArrayChange,
    CheckpointChange,
    CurveChange,
    Details,
    JsonChange,
    SamplesChange,
    TableChange,
    TensorChange,
    TensorState,
    TextChange,
    TextPart,
    ValueChange,
)
from traceml.figures.colours import A, B
from traceml.figures.page import (
    Axis,
    Diff,
    DiffLine,
    DiffOp,
    DiffPart,
    Figure,
    GridCell,
    GridColumn,
    GridRow,
    Lines,
    Part,
    Picture,
    Point,
    Points,
    Row,
    Series,
    Table,
    WideGrid,
)
from traceml.figures.units import rounded
from traceml.figures.words import cell, line, output_line
from traceml.model.quantities import NOT_MEASURED, count, percent, significant, written
from traceml.text.artifacts import scalar_words, tensor_form, what_changed

MAX_FILES = 40
"""Files whose differences are drawn; of more, the table says that they differ."""
MAX_ROWS = 60
MAX_VALUES = 20
MAX_HUNKS = 60
MAX_CLASSES = 16
"""Of a confusion matrix that is drawn; of more, the table has accuracy, recall and precision."""
MAX_PART_CHARS = 600
AROUND_CHARS = 80
"""Of what both texts have, on either side of a change."""
MAX_POINTS = 400
"""Of each side of a projection."""
_OPS: dict[str, DiffOp] = {"same": "same", "added": "added", "removed": "removed"}


@dataclass(slots=True)
class _Drawn:
    """What the part on logged files is made of."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    diffs: list[Diff] = field(default_factory=list)
    grids: list[WideGrid] = field(default_factory=list)


def artifacts_parts(
    changes: Sequence[ArtifactChange], pictures: Sequence[Picture] = ()
) -> Iterator[Part]:
    """Yields the logged files that differ between two runs, and then how; nothing where none does.

    `pictures` show A, B and their difference side by side.
    """
    if not changes:
        return
    yield Part(
        id="artifacts",
        title="Logged files that differ",
        tables=(_overview(changes),),
        pictures=tuple(pictures),
        is_wide=True,
    )
    drawn = _Drawn()
    for change in changes[:MAX_FILES]:
        if change.details is not None:
            _draw(change, change.details, drawn)
    if drawn.figures or drawn.tables or drawn.diffs or drawn.grids:
        yield Part(
            id="artifact-details",
            title="What differs in logged files",
            figures=tuple(drawn.figures),
            tables=tuple(drawn.tables),
            diffs=tuple(drawn.diffs),
            grids=tuple(drawn.grids),
            is_wide=True,
        )


def _overview(changes: Sequence[ArtifactChange]) -> Table:
    rows = []
    for change in changes[:MAX_ROWS]:
        name = cell(change.name)
        rows.append(Row((f"{name} ({cell(change.kind)})", line(what_changed(change)))))
    hidden = len(changes) - len(rows)
    return Table(
        id="artifact-changes",
        title="Logged files that differ",
        columns=("File", "What changed"),
        rows=tuple(rows),
        note=f"{count(hidden)} more, in the JSON file." if hidden > 0 else None,
    )


def _draw(change: ArtifactChange, details: Details, drawn: _Drawn) -> None:
    """Adds what shows a file's difference best."""
    name = cell(change.name)
    key = f"{zlib.crc32(change.name.encode(errors='replace')):08x}"
    if isinstance(details, CheckpointChange):
        drawn.tables += [*_tensors(key, name, details), *_values(key, name, details.values)]
    elif isinstance(details, TextChange):
        drawn.diffs += _texts(key, name, details)
    elif isinstance(details, SamplesChange):
        drawn.diffs += _samples(key, name, details)
    elif isinstance(details, JsonChange):
        drawn.tables += _values(key, name, details.values)
    elif isinstance(details, TableChange):
        drawn.tables += [*_columns(key, name, details), *_values(key, name, details.cells)]
    elif isinstance(details, CurveChange):
        drawn.figures += _curve(key, name, details)
        drawn.grids += _matrix(key, name, details)
        drawn.tables += _numbers(key, name, details)
    elif isinstance(details, ArrayChange):
        drawn.figures += _projection(key, name, details)


def _tensors(key: str, name: str, found: CheckpointChange) -> Iterator[Table]:
    if not found.tensors:
        return
    rows = tuple(_tensor(tensor) for tensor in found.tensors[:MAX_ROWS])
    hidden = len(found.tensors) - len(rows)
    yield Table(
        id=f"tensors-{key}",
        title=f"Tensors of {name}",
        columns=("Tensor", "Type and shape", "Relative change", "Norm in A", "Norm in B"),
        rows=rows,
        note=f"{count(hidden)} more tensors differ." if hidden > 0 else None,
    )


def _tensor(change: TensorChange) -> Row:
    lhs, rhs = change.lhs, change.rhs
    form = tensor_form(rhs or lhs)
    if lhs is None or rhs is None:
        moved = f"only in {'B' if lhs is None else 'A'}"
    elif (lhs.dtype, lhs.shape) != (rhs.dtype, rhs.shape):
        form, moved = f"{tensor_form(lhs)} → {tensor_form(rhs)}", "another form"
    else:
        moved = percent(change.relative_change)
    return Row((cell(change.name), cell(form), moved, _norm(lhs), _norm(rhs)))


def _norm(state: TensorState | None) -> str:
    if state is None or state.norm is None:
        return NOT_MEASURED
    lost = f", {count(state.not_finite)} not finite" if state.not_finite else ""
    return f"{significant(state.norm)}{lost}"


def _values(key: str, name: str, changes: Sequence[ValueChange]) -> Iterator[Table]:
    if not changes:
        return
    rows = tuple(
        Row(
            (
                cell(change.path),
                "" if change.op == "added" else cell(scalar_words(change.lhs)),
                "" if change.op == "removed" else cell(scalar_words(change.rhs)),
            )
        )
        for change in changes[:MAX_VALUES]
    )
    hidden = len(changes) - len(rows)
    note = f"{count(hidden)} more values differ." if hidden > 0 else None
    yield Table(f"values-{key}", f"Values in {name}", ("", "A", "B"), rows, note)


def _columns(key: str, name: str, found: TableChange) -> Iterator[Table]:
    if not found.columns:
        return
    rows = tuple(
        Row(
            (
                cell(column.name),
                count(column.changed),
                significant(column.lhs_mean),
                significant(column.rhs_mean),
            )
        )
        for column in found.columns[:MAX_ROWS]
    )
    columns = ("Column", "Cells changed", "Mean in A", "Mean in B")
    yield Table(f"columns-{key}", f"Columns of {name}", columns, rows)


_CURVES = {
    "confusion_matrix": "Confusion matrix",
    "roc": "ROC curve",
    "precision_recall": "Precision-recall curve",
}


def _curve(key: str, name: str, found: CurveChange) -> Iterator[Lines]:
    """Yields a ROC or precision-recall curve, with that of the other run."""
    sides = (("A", A, found.lhs_points), ("B", B, found.rhs_points))
    series = tuple(
        Series(
            side,
            colour,
            rounded(np.array([y for _, y in points])),
            at=tuple(value or 0.0 for value in rounded(np.array([x for x, _ in points]))),
        )
        for side, colour, points in sides
        if points
    )
    if len(series) < 2:
        return
    is_roc = found.shape == "roc"
    yield Lines(
        id=f"curve-{key}",
        title=f"{_CURVES.get(found.shape, found.shape)}: {name}",
        x=Axis("false positive rate" if is_roc else "recall", low=0.0, high=1.0),
        y=Axis("true positive rate" if is_roc else "precision", low=0.0, high=1.0),
        at=series[0].at or (),
        series=series,
    )


def _matrix(key: str, name: str, found: CurveChange) -> Iterator[WideGrid]:
    """Yields both confusion matrices in one, where both have the same few classes."""
    lhs, rhs, labels = found.lhs_matrix, found.rhs_matrix, found.labels
    if not lhs or len(lhs) != len(rhs) or len(labels) != len(lhs) or len(lhs) > MAX_CLASSES:
        return
    yield WideGrid(
        id=f"matrix-{key}",
        title=f"Confusion matrix: {name}",
        columns=tuple(GridColumn(line(label, 40), "") for label in labels),
        rows=tuple(
            GridRow(
                line(label, 40),
                tuple(
                    GridCell(f"{a:g} → {b:g}" if a != b else f"{a:g}")
                    for a, b in zip(left, right, strict=True)
                ),
            )
            for label, left, right in zip(labels, lhs, rhs, strict=True)
        ),
        note="Rows are the true classes, columns the predicted ones; A → B where they differ.",
    )


def _numbers(key: str, name: str, found: CurveChange) -> Iterator[Table]:
    rows = tuple(
        Row(
            (
                cell(each.name),
                significant(each.lhs),
                significant(each.rhs),
                _delta(each.lhs, each.rhs),
            )
        )
        for each in found.numbers[:MAX_ROWS]
    )
    title = f"{_CURVES.get(found.shape, found.shape)}: {name}"
    yield Table(f"numbers-{key}", title, ("", "A", "B", "Delta"), rows)


def _delta(lhs: float | None, rhs: float | None) -> str:
    if lhs is None or rhs is None:
        return NOT_MEASURED
    return "same" if lhs == rhs else written(rhs - lhs, "+.4g")


def _projection(key: str, name: str, found: ArrayChange) -> Iterator[Points]:
    projected = found.projection
    if projected is None:
        return
    points = tuple(
        Point(x, y, colour, note=f"{side}: row {number + 1}", is_filled=colour == B)
        for side, colour, rows in (("A", A, projected.lhs), ("B", B, projected.rhs))
        for number, (x, y) in enumerate(_finite_points(rows))
    )
    first, second = (percent(share) for share in projected.explained)
    yield Points(
        id=f"projection-{key}",
        title=f"{name}, projected",
        x=Axis(f"first component, {first} of the variance"),
        y=Axis(f"second component, {second}"),
        points=points,
        key=(Series("A", A, ()), Series("B", B, ())),
        caption="Both arrays on the two principal components of both together, a point per row.",
    )


def _finite_points(
    rows: Sequence[tuple[float, float]],
) -> list[tuple[float, float]]:
    """Returns so many points as a picture can show, with as many digits as it needs."""
    every = max(1, -(-len(rows) // MAX_POINTS))
    values = rounded(np.array(rows[::every], np.float64).reshape(-1))
    pairs = zip(values[::2], values[1::2], strict=True)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _texts(key: str, name: str, found: TextChange) -> Iterator[Diff]:
    lines: list[DiffLine] = []
    for hunk in found.hunks[:MAX_HUNKS]:
        place = f"line {hunk.lhs_line}"
        if hunk.lhs_line != hunk.rhs_line:
            place += f" (B: {hunk.rhs_line})"
        lines += [DiffLine("head", place), DiffLine("same", parts=_words(hunk.parts))]
    if lines:
        yield Diff(f"text-{key}", name, tuple(lines), _more(len(found.hunks), "place"))


def _samples(key: str, name: str, found: SamplesChange) -> Iterator[Diff]:
    lines: list[DiffLine] = []
    for sample in found.samples[:MAX_HUNKS]:
        lines += [
            DiffLine("head", line(sample.prompt)),
            DiffLine("same", parts=_words(sample.parts)),
        ]
    if lines:
        yield Diff(f"samples-{key}", name, tuple(lines), _more(len(found.samples), "sample"))


def _more(found: int, noun: str) -> str | None:
    hidden = found - MAX_HUNKS
    return f"{count(hidden, f'more {noun}')} differ." if hidden > 0 else None


def _words(parts: Sequence[TextPart]) -> tuple[DiffPart, ...]:
    return tuple(
        DiffPart(_OPS.get(part.op, "same"), _shortened(part, number == 0, number == len(parts) - 1))
        for number, part in enumerate(parts)
    )


def _shortened(part: TextPart, is_first: bool, is_last: bool) -> str:
    """Returns the words of a part; of long ones that both have, those beside the change."""
    text = "\n".join(output_line(each) for each in part.text.split("\n"))
    if part.op != "same":
        return text if len(text) <= MAX_PART_CHARS else f"{text[:MAX_PART_CHARS]}…"
    if len(text) <= 2 * AROUND_CHARS:
        return text
    before = "" if is_first else text[:AROUND_CHARS]
    behind = "" if is_last else text[-AROUND_CHARS:]
    return f"{before}…{behind}"
