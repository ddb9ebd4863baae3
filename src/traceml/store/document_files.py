"""Reads logged texts, JSON documents, JSON lines and tables, up to a size that is worth reading."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from traceml.model.errors import UnreadableArtifact
from traceml.model.printable import file_lines
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.regular_files import read_regular

MAX_BYTES = 16 << 20


def read_text(path: Path) -> str:
    """Returns a text; raises UnreadableArtifact where it is too long, or no text."""
    try:
        content = read_regular(path, max_bytes=MAX_BYTES)
    except OSError as error:
        raise UnreadableArtifact(f"it cannot be read: {error.strerror}") from None
    if b"\0" in content:
        raise UnreadableArtifact("it holds null bytes: it is no text")
    return content.decode("utf-8-sig", errors="replace")


def read_json(path: Path) -> Any:
    """Returns a document; raises UnreadableArtifact."""
    return _decoded(read_text(path), "it is no JSON")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one on each line; raises UnreadableArtifact."""
    found = []
    for number, line in enumerate(file_lines(read_text(path)), 1):
        if not line.strip():
            continue
        record = _decoded(line, f"line {number} is no JSON")
        if not isinstance(record, dict):
            raise UnreadableArtifact(f"line {number} is no JSON object")
        found.append(record)
    return found


def _decoded(text: str, otherwise: str) -> Any:
    try:
        return load_json(text.encode())
    except UNDECODABLE as error:
        raise UnreadableArtifact(f"{otherwise} ({error})") from None


def read_table(path: Path) -> list[list[str]]:
    """Returns the rows of a table, the names of its columns first; raises UnreadableArtifact."""
    lines = io.StringIO(read_text(path), newline="")
    head = lines.readline()
    lines.seek(0)
    separator = max(("\t", ",", ";"), key=head.count)
    if path.suffix.lower() == ".tsv":
        separator = "\t"
    try:
        return [row for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error as error:
        raise UnreadableArtifact(f"it is no table ({error})") from None
