"""The small files of a run folder (manifest, summary, live state), read again only after a
change."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from traceml.figures.page import RunState
from traceml.model.environment import ENDING
from traceml.model.errors import RunNotFound, TraceMLError
from traceml.model.lineage import Command, Hardware, Lineage
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders
from traceml.store.line_files import LIVE_STATE
from traceml.store.regular_files import read_regular, stat_regular
from traceml.summaries.live_record import read_live
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary, has_failed

_Mark = tuple[int, int, int] | None
"""Identifies a file's version by inode, size and time; `None` where there is no file."""


class RunFiles:
    """One run folder; `refresh` reads what is new."""

    def __init__(self, folder: Path) -> None:
        """Raises RunNotFound where the folder is no run, UnreadableRecords where it is damaged."""
        self._folder = folder
        self._marks: dict[str, _Mark] = {}
        self.manifest: Manifest = Manifest(run_name=folder.name, started_unix_s=0.0)
        self.ending: Ending | None = None
        self.state: RunState = "lost"
        self.summary: Summary | None = None
        """Of the whole run where that is over, of its last steps before; `None`: no such yet."""
        self.notes: tuple[str, ...] = ()
        self._final: Summary | None = None
        self._live: Summary | None = None
        self.refresh()

    @property
    def is_foreign(self) -> bool:
        """Whether there is only a summary, and none of the records behind it."""
        return self._marks[folders.MANIFEST] is None

    @property
    def exit_status(self) -> int | None:
        """The training's exit status; `None` where nobody observed it."""
        if self.ending is not None:
            return self.ending.exit_status
        return self._final.exit_status if self.is_foreign and self._final is not None else None

    @property
    def is_recent(self) -> bool:
        """Whether the summary is of the last steps alone, and so are its metrics."""
        return self.summary is not None and self.summary is self._live

    def refresh(self) -> bool:
        """Reads what has changed; returns whether anything has. Raises as the constructor does."""
        is_live = self._is_going_on()  # first: what is written before the end is then there
        before = dict(self._marks), self.state
        if self._is_new(folders.SUMMARY):
            self._read_final()
        if self._is_new(folders.MANIFEST) or self.is_foreign:
            self._read_manifest()
        if self._is_new(ENDING):
            self.ending = folders.read_ending(self._folder)
        if self._is_new(LIVE_STATE):
            self._read_live()
        self.summary = self._chosen(is_live)
        self.state = self._state(is_live)
        return (self._marks, self.state) != before

    def _is_going_on(self) -> bool:
        try:
            return folders.is_going_on(self._folder)
        except OSError:
            return False

    def _is_new(self, name: str) -> bool:
        mark = _mark(self._folder / name)
        if name in self._marks and self._marks[name] == mark:
            return False
        self._marks[name] = mark
        return True

    def _read_manifest(self) -> None:
        if self._marks[folders.MANIFEST] is not None:
            manifest = folders.read_manifest(self._folder)
            # A run is called as its folder is, also where that was renamed or copied.
            name = self._folder.name
            known = name if folders.is_run_name(name) else manifest.run_name
            self.manifest = replace(manifest, run_name=known)
            return
        if self._marks[folders.SUMMARY] is None:
            raise RunNotFound(
                f"there is no run in {self._folder}: it holds neither {folders.MANIFEST} nor "
                f"{folders.SUMMARY}, or was deleted; choose another run"
            )
        _, _, written_ns = self._marks[folders.SUMMARY] or (0, 0, 0)
        self.manifest = _manifest_of(self._folder.name, self._final or Summary(), written_ns / 1e9)

    def _read_final(self) -> None:
        self._final, self.notes = None, ()
        if self._marks[folders.SUMMARY] is None:
            return
        try:
            self._final = read_summary(self._folder / folders.SUMMARY)
        except TraceMLError as error:
            self.notes = (str(error),)

    def _read_live(self) -> None:
        self._live = None
        try:
            state = read_live(read_regular(self._folder / LIVE_STATE))
        except OSError:
            return
        self._live = None if state is None else state.summary

    def _chosen(self, is_live: bool) -> Summary | None:
        """Returns the summary of the last steps while the run is in progress, else of the whole
        run."""
        if is_live or (self.ending is None and not self.is_foreign and self._is_live_newer()):
            return self._live or self._final
        return self._final or self._live

    def _is_live_newer(self) -> bool:
        """Returns whether the live state is newer than the summary, for a run whose end was not
        observed."""
        final, live = self._marks[folders.SUMMARY], self._marks[LIVE_STATE]
        return final is None or (live is not None and live[2] > final[2])

    def _state(self, is_live: bool) -> RunState:
        if is_live:
            return "live"
        if self.ending is None and not self.is_foreign:
            return "lost"
        return "failed" if has_failed(self._final, self.exit_status) else "finished"


def _manifest_of(name: str, summary: Summary, written_unix_s: float) -> Manifest:
    """Returns what a summary without any records says of its run, which was copied by itself or
    is another tool's."""
    lineage = summary.lineage or Lineage()
    command = lineage.command or Command()
    try:  # the file's own time is that of the copy
        ended = datetime.fromisoformat((summary.generated_at or "").replace("Z", "+00:00"))
        ended_unix_s = ended.replace(tzinfo=ended.tzinfo or timezone.utc).timestamp()
    except (ValueError, OverflowError):
        ended_unix_s = written_unix_s
    return Manifest(
        name,
        started_unix_s=ended_unix_s - (summary.duration_s or 0.0),
        command=command.words,
        working_folder=command.folder or "",
        hostname=(lineage.hardware or Hardware()).hostname or "",
    )


def _mark(path: Path) -> _Mark:
    found = stat_regular(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
