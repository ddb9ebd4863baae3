"""The part of a run's page on the files that its script logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from traceml.figures.compared_run import run_link
from traceml.figures.head import moment
from traceml.figures.page import Part, Picture, Row, Table
from traceml.figures.words import cell, joined
from traceml.model.quantities import NOT_MEASURED, count, memory
from traceml.summaries.record import ArtifactSummary, Summary

MAX_FILES = 200
MAX_IN_FOLDER = 20
HASH_LETTERS = 12
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
