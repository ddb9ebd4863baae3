"""The runs under a logs folder, the newest first; cheap to update."""

from __future__ import annotations

import os
import time
from pathlib import Path

from traceml.api.run_files import RunFiles
from traceml.figures.head import RunStanding
from traceml.figures.page import RunRow, RunsPage
from traceml.figures.run_page import run_row
from traceml.model.errors import RunNotFound, TraceMLError
from traceml.model.printable import printable
from traceml.store.folder import MANIFEST, is_right_in, is_run_name


class RunList:
    """All runs of a folder; files that have not changed are not read again."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._runs: dict[str, RunFiles] = {}
        self._rows: dict[str, RunRow] = {}

    def page(self) -> RunsPage:
        """Returns the current runs; a folder that cannot be read becomes a note."""
        notes: list[str] = []
        found: dict[str, float] = {}
        for name in self._names(notes):
            try:
                self._refresh(name)
            except RunNotFound:
                continue  # no run, or none any more
            except (TraceMLError, OSError) as error:
                notes.append(str(error))
                continue
            found[name] = self._runs[name].manifest.started_unix_s
            notes += self._runs[name].notes
        self._forget_all_but(found)
        newest = sorted(found, key=lambda name: (-found[name], name))
        return RunsPage(
            folder=printable(str(self._logs)),
            runs=tuple(self._rows[name] for name in newest),
            notes=tuple(printable(note) for note in notes),
        )

    def _names(self, notes: list[str]) -> list[str]:
        try:
            with os.scandir(self._logs) as entries:
                folders = [each for each in entries if _is_folder(each)]
        except OSError as error:
            notes.append(
                f"{self._logs} cannot be read ({error.strerror}); expected the folder of the "
                "runs; pass it as --logs-dir"
            )
            return []
        reached = [each.name for each in folders if self._is_reached(each)]
        notes += [
            f"{self._logs / name} is not listed: a run has another kind of name, or it is a link "
            f"that leads out of {self._logs}; rename it, or move what it leads to"
            for name in sorted({each.name for each in folders} - set(reached))
            if (self._logs / name / MANIFEST).is_file()
        ]
        return reached

    def _is_reached(self, entry: os.DirEntry[str]) -> bool:
        """Returns whether the entry is inside the logs folder; only links need a second check."""
        if entry.is_symlink():
            return is_right_in(self._logs, entry.name)
        return is_run_name(entry.name)

    def _refresh(self, name: str) -> None:
        files = self._runs.get(name)
        if files is None:
            files, has_changed = RunFiles(self._logs / name), True
        else:
            has_changed = files.refresh()
        if has_changed or files.state == "live":
            self._runs[name] = files
            self._rows[name] = run_row(name, files.summary, _standing(files))

    def _forget_all_but(self, found: dict[str, float]) -> None:
        for name in self._runs.keys() - found.keys():
            del self._runs[name], self._rows[name]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle, or where we may not look
        return False


def _standing(files: RunFiles) -> RunStanding:
    return RunStanding(
        manifest=files.manifest,
        state=files.state,
        exit_status=files.exit_status,
        now_unix_s=time.time(),
        output=None,
        notes=files.notes,
    )
