"""What changed in logged files, in words: a headline for each, and below it what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceml.compare.artifact_changes import ArtifactChange, ArtifactSide
from traceml.compare.artifact_details import (
    CheckpointChange,
    Details,
    TensorChange,
    TensorState,
)
from traceml.model.printable import one_line
from traceml.model.quantities import NOT_MEASURED, count, memory, percent

MAX_LINES = 5
"""Below each file; `--artifacts` shows all that the comparison file lists."""
MAX_FILES = 20
NAME_WIDTH = 60


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
    name = one_line(change.name, NAME_WIDTH)
    if change.lhs is None or change.rhs is None:
        side, only = ("B", change.rhs) if change.lhs is None else ("A", change.lhs)
        return f"{name} ({change.kind}): only in {side}, {_size(only)}"
    said = f"{name} ({change.kind}): {_change(change.lhs, change.rhs)}"
    if change.not_compared:
        return f"{said}; not compared: {change.not_compared}"
    return f"{said}; {_summary(change.details)}" if change.details else said


def _size(side: ArtifactSide | None) -> str:
    known = None if side is None else side.size_bytes
    return NOT_MEASURED if known is None else memory(known)


def _change(lhs: ArtifactSide, rhs: ArtifactSide) -> str:
    if lhs.size_bytes == rhs.size_bytes and lhs.size_bytes is not None:
        return f"{_size(lhs)}, other content"
    return f"{_size(lhs)} -> {_size(rhs)}"


def _summary(details: Details) -> str:
    return _checkpoint_summary(details)


def _details(details: Details) -> Iterator[str]:
    yield from map(_tensor, details.tensors)


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
    return (
        f"of {count(max(found.lhs_tensors, found.rhs_tensors), 'tensor')} {', '.join(parts)}{moved}"
    )


def _tensor(change: TensorChange) -> str:
    name = one_line(change.name, NAME_WIDTH)
    lhs, rhs = change.lhs, change.rhs
    if lhs is None or rhs is None:
        only = f"only in {'B' if lhs is None else 'A'}"
        return f"{name}: {only}, {_form(lhs or rhs)}"
    parts = []
    if (lhs.dtype, lhs.shape) != (rhs.dtype, rhs.shape):
        parts.append(f"{_form(lhs)} -> {_form(rhs)}")
    if rhs.not_finite or lhs.not_finite:
        parts.append(f"{count(lhs.not_finite)} -> {count(rhs.not_finite)} elements NaN or infinite")
    if change.relative_change is not None:
        parts.append(f"changed by {_share(change.relative_change)}")
    if lhs.norm is not None and rhs.norm is not None:
        parts.append(f"norm {lhs.norm:.4g} -> {rhs.norm:.4g}")
    return f"{name}: {', '.join(parts) or 'its elements cannot be read here'}"


def _form(state: TensorState | None) -> str:
    return "" if state is None else f"{state.dtype} {list(state.shape)}"


def _share(value: float) -> str:
    return percent(value) if value >= 0.001 else f"{value:.1e} of its norm"
