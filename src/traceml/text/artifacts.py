"""What changed in logged files, in words: a headline for each, and below it what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceml.compare.artifact_changes import ArtifactChange, ArtifactSide
from traceml.compare.artifact_details import (
    ArrayChange,
    CheckpointChange,
    ColumnChange,
    CurveChange,
    Details,
    ImageChange,
    JsonChange,
    NumberChange,
    SamplesChange,
    Scalar,
    TableChange,
    TensorChange,
    TensorState,
    TextChange,
    TextHunk,
    TextPart,
    ValueChange,
)
from traceml.model.printable import one_line
from traceml.model.quantities import NOT_MEASURED, count, memory, percent

MAX_LINES = 5
"""Below each file; `--artifacts` shows all that the comparison file lists."""
MAX_FILES = 20
NAME_WIDTH = 60
KIND_WIDTH = 20
VALUE_WIDTH = 60
WORDS_WIDTH = 160
AROUND_WIDTH = 24
"""Characters of what both texts have that are shown beside a change."""


def artifact_lines(
    changes: Sequence[ArtifactChange], shows_all: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Yields, for each file, its headline and the lines below it."""
    limit = len(changes) if shows_all else MAX_FILES
    for change in changes[:limit]:
        lines = list(_details(change.details)) if change.details else []
        shown = lines if shows_all else lines[:MAX_LINES]
        if len(lines) > len(shown):
            more = count(len(lines) - len(shown))
            shown = [*shown, f"… and {more} more; --artifacts lists them"]
        yield _headline(change), shown
    if len(changes) > limit:
        yield f"… and {count(len(changes) - limit, 'file')} more; --artifacts lists them", []


def _headline(change: ArtifactChange) -> str:
    named = f"{one_line(change.name, NAME_WIDTH)} ({one_line(change.kind, KIND_WIDTH)})"
    return f"{named}: {what_changed(change)}"


def what_changed(change: ArtifactChange) -> str:
    """Returns what became of a file, on one line."""
    if change.lhs is None or change.rhs is None:
        side, only = ("B", change.rhs) if change.lhs is None else ("A", change.lhs)
        return f"only in {side}, {_size(only)}"
    said = _change(change.lhs, change.rhs)
    if change.not_compared:
        return f"{said}; not compared: {change.not_compared}"
    return f"{said}; {details_words(change.details)}" if change.details else said


def _size(side: ArtifactSide | None) -> str:
    known = None if side is None else side.size_bytes
    return NOT_MEASURED if known is None else memory(known)


def _change(lhs: ArtifactSide, rhs: ArtifactSide) -> str:
    if lhs.size_bytes == rhs.size_bytes and lhs.size_bytes is not None:
        return f"{_size(lhs)}, other content"
    return f"{_size(lhs)} -> {_size(rhs)}"


def details_words(details: Details) -> str:
    """Returns what differs in two files, on one line."""
    if isinstance(details, CheckpointChange):
        return _checkpoint_summary(details)
    if isinstance(details, TextChange):
        return _text_summary(details)
    if isinstance(details, SamplesChange):
        return _samples_summary(details)
    if isinstance(details, JsonChange):
        return _json_summary(details)
    if isinstance(details, TableChange):
        return _table_summary(details)
    if isinstance(details, CurveChange):
        return _CURVES.get(details.shape, details.shape)
    if isinstance(details, ImageChange):
        return _image_summary(details)
    return _array_summary(details)


def _details(details: Details) -> Iterator[str]:
    if isinstance(details, CheckpointChange):
        yield from map(_tensor, details.tensors)
        yield from map(_value, details.values)
    elif isinstance(details, TextChange):
        yield from (f"line {_place(hunk)}: {_words(hunk.parts)}" for hunk in details.hunks)
    elif isinstance(details, SamplesChange):
        for sample in details.samples:
            yield f"{one_line(sample.prompt, NAME_WIDTH)}: {_words(sample.parts)}"
    elif isinstance(details, JsonChange):
        yield from map(_value, details.values)
    elif isinstance(details, TableChange):
        yield from map(_column, details.columns)
        yield from map(_value, details.cells)
    elif isinstance(details, CurveChange):
        yield from (_number(number) for number in details.numbers if number.lhs != number.rhs)
    elif isinstance(details, ImageChange) and details.picture:
        yield f"side by side, with the difference: {details.picture}"


# Checkpoints


def _checkpoint_summary(found: CheckpointChange) -> str:
    parts = [
        f"{count(number)} {word}"
        for number, word in (
            (found.moved, "changed"),
            (found.added, "only in B"),
            (found.removed, "only in A"),
            (found.reshaped, "of another shape"),
            (found.retyped, "of another type"),
            (found.same, "the same"),
        )
        if number
    ]
    whole = found.relative_change
    moved = f"; all together by {_share(whole)}" if whole and found.moved > 1 else ""
    if found.values:
        moved += f"; {count(len(found.values), 'other value')} differ"
    return (
        f"of {count(max(found.lhs_tensors, found.rhs_tensors), 'tensor')} {', '.join(parts)}{moved}"
    )


def _tensor(change: TensorChange) -> str:
    name = one_line(change.name, NAME_WIDTH)
    lhs, rhs = change.lhs, change.rhs
    if lhs is None or rhs is None:
        only = f"only in {'B' if lhs is None else 'A'}"
        return f"{name}: {only}, {tensor_form(lhs or rhs)}"
    parts = []
    if (lhs.dtype, lhs.shape) != (rhs.dtype, rhs.shape):
        parts.append(f"{tensor_form(lhs)} -> {tensor_form(rhs)}")
    if rhs.not_finite or lhs.not_finite:
        parts.append(f"{count(lhs.not_finite)} -> {count(rhs.not_finite)} elements NaN or infinite")
    if change.relative_change is not None:
        parts.append(f"changed by {_share(change.relative_change)}")
    if lhs.norm is not None and rhs.norm is not None:
        parts.append(f"norm {lhs.norm:.4g} -> {rhs.norm:.4g}")
    return f"{name}: {', '.join(parts) or 'its elements cannot be read here'}"


def tensor_form(state: TensorState | None) -> str:
    """Returns a tensor's type and shape; empty where there is none."""
    return "" if state is None else f"{state.dtype} {list(state.shape)}"


def _share(value: float) -> str:
    return percent(value) if value >= 0.001 else f"{value:.1e} of its norm"


# Texts and samples


def _text_summary(found: TextChange) -> str:
    lines = f"{count(found.removed)} of {count(found.lhs_lines, 'line')} removed or changed"
    said = f"{lines}, {count(found.added)} of {count(found.rhs_lines)} new"
    if found.normalised:
        said += "; times and numbers count as equal"
    return said if found.in_order else f"{said}; too many differ to compare them in order"


def _samples_summary(found: SamplesChange) -> str:
    said = f"{count(found.paired - found.same)} of {count(found.paired, 'sample')} differ"
    said += f", paired by {found.paired_by}"
    if found.only_lhs or found.only_rhs:
        said += f"; {count(found.only_lhs)} only in A, {count(found.only_rhs)} only in B"
    return said


def _place(hunk: TextHunk) -> str:
    same = hunk.lhs_line == hunk.rhs_line
    return f"{hunk.lhs_line}" if same else f"{hunk.lhs_line} (B: {hunk.rhs_line})"


def _words(parts: Sequence[TextPart]) -> str:
    """Returns a word diff on one line: `[-only A-]{+only B+}`, and a few words around."""
    said = []
    for number, part in enumerate(parts):
        text = " ".join(part.text.split("\n"))
        if part.op == "removed":
            said.append(f"[-{one_line(text, WORDS_WIDTH)}-]")
        elif part.op == "added":
            said.append(f"{{+{one_line(text, WORDS_WIDTH)}+}}")
        else:
            said.append(_around(text, number == 0, number == len(parts) - 1))
    return "".join(said).strip()


def _around(text: str, is_first: bool, is_last: bool) -> str:
    """Returns the ends of what both have: the beginning of it matters behind a change."""
    if len(text) <= 2 * AROUND_WIDTH:
        return text
    before = "" if is_first else text[:AROUND_WIDTH]
    behind = "" if is_last else text[-AROUND_WIDTH:]
    return f"{before}…{behind}"


# Documents, tables and curves


def _json_summary(found: JsonChange) -> str:
    return (
        f"{count(found.changed, 'value')} changed, {count(found.added)} only in B, "
        f"{count(found.removed)} only in A, {count(found.same)} the same"
    )


def _table_summary(found: TableChange) -> str:
    parts = [f"{count(found.changed_cells, 'cell')} changed, rows paired by {found.paired_by}"]
    if found.added_rows or found.removed_rows:
        parts.append(
            f"{count(found.removed_rows, 'row')} only in A, {count(found.added_rows)} only in B"
        )
    for side, names in (("A", found.removed_columns), ("B", found.added_columns)):
        if names:
            listed = ", ".join(one_line(name, 30) for name in names[:MAX_LINES])
            parts.append(f"columns only in {side}: {listed}")
    return "; ".join(parts)


def _value(change: ValueChange) -> str:
    path = one_line(change.path, NAME_WIDTH)
    if change.op == "added":
        return f"{path}: only in B, {scalar_words(change.rhs)}"
    if change.op == "removed":
        return f"{path}: only in A, {scalar_words(change.lhs)}"
    return f"{path}: {scalar_words(change.lhs)} -> {scalar_words(change.rhs)}"


def scalar_words(value: Scalar) -> str:
    """Returns a value as a document has it, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return one_line(str(value), VALUE_WIDTH)


def _column(column: ColumnChange) -> str:
    said = f"column {one_line(column.name, NAME_WIDTH)}: {count(column.changed, 'cell')} changed"
    if column.lhs_mean is None or column.rhs_mean is None:
        return said
    return f"{said}, mean {column.lhs_mean:.6g} -> {column.rhs_mean:.6g}"


_CURVES = {
    "confusion_matrix": "a confusion matrix",
    "roc": "a ROC curve",
    "precision_recall": "a precision-recall curve",
}


def _number(change: NumberChange) -> str:
    def shown(value: float | None) -> str:
        return NOT_MEASURED if value is None else f"{value:.4g}"

    said = f"{one_line(change.name, NAME_WIDTH)}: {shown(change.lhs)} -> {shown(change.rhs)}"
    if change.lhs is None or change.rhs is None:
        return said
    return f"{said} ({change.rhs - change.lhs:+.4g})"


# Images and arrays


def _image_summary(found: ImageChange) -> str:
    if found.changed_share is None or found.mean_difference is None:
        lhs, rhs = ("{} × {} pixels".format(*size) for size in (found.lhs_size, found.rhs_size))
        return f"{lhs} -> {rhs}"
    if not found.changed_share:
        return "the same pixels"
    differ = f"{percent(found.changed_share)} of the pixels differ"
    mean, largest = percent(found.mean_difference), percent(found.max_difference)
    return f"{differ}, by {mean} on average, {largest} at most"


def _array_summary(found: ArrayChange) -> str:
    lhs = f"{found.lhs_dtype} {list(found.lhs_shape)}"
    rhs = f"{found.rhs_dtype} {list(found.rhs_shape)}"
    parts = [lhs if lhs == rhs else f"{lhs} -> {rhs}"]
    if found.relative_change is not None:
        parts.append(f"changed by {_share(found.relative_change)}")
    if found.cosine is not None:
        parts.append(f"cosine of the same row {found.cosine:.3f}")
    if found.alignment is not None:
        parts.append(f"alignment (CKA) {found.alignment:.3f}")
    if found.projection is not None:
        explained = percent(sum(found.projection.explained))
        parts.append(f"two principal components of both hold {explained} of the variance")
    return "; ".join(parts)
