"""The files that scripts logged: of one run as a part of its page, of many side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from traceml.compare.artifact_changes import ArtifactChange
from traceml.compare.artifact_details import CurveChange, Details
from traceml.compare.many_runs import relabel_b
from traceml.figures.compared_run import ComparedRun, run_link
from traceml.figures.head import moment
from traceml.figures.page import GridCell, GridRow, Part, Picture, Row, Table, WideGrid
from traceml.figures.run_grids import NOT_GIVEN
from traceml.figures.words import cell, joined, line
from traceml.model.quantities import NOT_MEASURED, count, memory, significant
from traceml.summaries.record import ArtifactSummary, Summary
from traceml.text.artifacts import details_words

MAX_FILES = 200
MAX_IN_FOLDER = 20
HASH_LETTERS = 12
MAX_NOTE = 200
INDENT = "\u00a0\u00a0"


def logged_files_part(
    summary: Summary | None, run_name: str, pictures: Sequence[Picture] = ()
) -> Part | None:
    """Returns the logged files with kind, size, hash and when; `None` where there are none."""
    artifacts = {} if summary is None else summary.artifacts
    if not artifacts:
        return None
    rows = [
        row
        for name, found in list(artifacts.items())[:MAX_FILES]
        for row in _rows(name, found, run_name)
    ]
    hidden = len(artifacts) - MAX_FILES
    table = Table(
        id="artifact-table",
        title="Logged files",
        columns=("File", "Kind", "Size", "Logged", "SHA-256", "Path, versions and notes"),
        rows=tuple(rows),
        note=f"{count(hidden)} more are in the summary." if hidden > 0 else None,
    )
    return Part(
        id="artifacts",
        title="Logged files",
        tables=(table,),
        pictures=tuple(pictures),
        is_wide=True,
    )


def _rows(name: str, found: ArtifactSummary, run_name: str) -> Iterator[Row]:
    """Yields a file's row; behind that of a folder, rows of the files in it."""
    versions = f"version {count(found.version)}" if found.version > 1 else None
    yield Row(
        (
            cell(name),
            cell(found.kind) or NOT_MEASURED,
            memory(found.size_bytes),
            NOT_MEASURED if found.logged_unix_s is None else moment(found.logged_unix_s),
            _short(found.sha256),
            joined((cell(found.path), versions, cell(found.note))),
        ),
        link=file_link(run_name, name) if found.stored and not found.files else None,
    )
    for path, file in list(found.files.items())[:MAX_IN_FOLDER]:
        yield Row(
            (
                INDENT + cell(path),
                cell(file.kind) or NOT_MEASURED,
                memory(file.size_bytes),
                "",
                _short(file.sha256),
                "",
            ),
            link=file_link(run_name, f"{name}/{path}") if found.stored else None,
        )
    hidden = len(found.files) - MAX_IN_FOLDER
    if hidden > 0:
        yield Row((f"{INDENT}{count(hidden, 'more file')}", "", "", "", "", ""))


def _short(sha256: str | None) -> str:
    return cell((sha256 or "")[:HASH_LETTERS]) or NOT_MEASURED


def file_link(run_name: str, name: str) -> str:
    """Returns the address of a logged file, which is only ever downloaded."""
    return f"{run_link(run_name)}/file?name={quote(name, safe='', errors='replace')}"


Changes = Mapping[tuple[str, str], ArtifactChange]
"""Files that differ from the baseline's, by the letter of the run and the file's name."""


def file_grid(
    runs: Sequence[ComparedRun],
    files: Mapping[str, Sequence[ArtifactChange]],
    baseline: str,
) -> WideGrid | None:
    """Returns which files each run logged, and what differs from the baseline's; `None` where there
    are none. `files` are those that differ, by the letter of the run."""
    names = dict.fromkeys(name for run in runs for name in run.summary.artifacts)
    if not names:
        return None
    changes = {(label, found.name): found for label, listed in files.items() for found in listed}
    hidden = len(names) - MAX_FILES
    more = f" {count(hidden)} more are in the summaries." if hidden > 0 else ""
    return WideGrid(
        id="artifact-grid",
        title="Logged files",
        columns=tuple(run.column for run in runs),
        rows=tuple(_grid_row(name, runs, changes) for name in sorted(names)[:MAX_FILES]),
        note=f"Size, and what differs from {baseline}'s, or else the beginning of the hash. "
        f"The page of {baseline} and one other run has more.{more}",
    )


def _grid_row(name: str, runs: Sequence[ComparedRun], changes: Changes) -> GridRow:
    found = [run.summary.artifacts.get(name) for run in runs]
    kind = next((each.kind for each in found if each is not None and each.kind), None)
    hashes = {None if each is None else (each.sha256 or each.size_bytes) for each in found}
    return GridRow(
        cell(name) + (f" ({cell(kind)})" if kind else ""),
        tuple(
            _grid_cell(file, changes.get((run.label, name)), run.label)
            for run, file in zip(runs, found, strict=True)
        ),
        differs=len(hashes) > 1,
    )


def _grid_cell(
    found: ArtifactSummary | None, change: ArtifactChange | None, label: str
) -> GridCell:
    if found is None:
        return GridCell(NOT_GIVEN)
    if change is None or change.details is None:
        return GridCell(memory(found.size_bytes), note=_short(found.sha256))
    said = relabel_b(_difference(change.details), label)
    return GridCell(memory(found.size_bytes), note=line(said, MAX_NOTE))


def _difference(details: Details) -> str:
    """Returns what differs; of a classifier's result the number that stands for it."""
    if isinstance(details, CurveChange) and details.numbers:
        first = details.numbers[0]
        return f"{first.name} {significant(first.lhs)} → {significant(first.rhs)}"
    return details_words(details)
