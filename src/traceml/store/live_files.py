"""The live findings on disk: the current ones, and a line for every change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceml.store.folder import write_atomically
from traceml.store.line_files import append_lines
from traceml.store.regular_files import read_regular

STATE = "live.json"
CHANGES = "live.jsonl"
MAX_BYTES = 1 << 20
"""About two thousand changes; beyond it the older half is dropped."""


class LiveFiles:
    """The two files of one run."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / STATE
        self._changes = folder / CHANGES

    def append(self, changes: Sequence[bytes]) -> None:
        """Appends a line for each change."""
        if not changes:
            return
        size = append_lines(self._changes, b"".join(change + b"\n" for change in changes))
        if size > MAX_BYTES:
            lines = read_regular(self._changes).splitlines(keepends=True)
            write_atomically(self._changes, b"".join(lines[len(lines) // 2 :]))

    def write(self, state: bytes) -> None:
        """Replaces the current findings."""
        write_atomically(self._state, state)
