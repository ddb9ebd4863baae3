"""Finds the runs in a logs folder, and the versions of their files: what has changed is read
again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceml.model.printable import printable
from traceml.store.folder import MANIFEST, SUMMARY, is_right_in, is_run_name, run_of_machines
from traceml.store.node_folders import leads_to_node
from traceml.store.regular_files import stat_regular

UNSETTLED_S = 2.0
"""A folder that changed so recently may change again within the same tick of its clock."""

MAX_UNLISTED = 20
"""Folders that are named; of more only the number is said."""

FileVersion = tuple[int, ...]
"""Identifies the versions of a run's files by inode, size and time."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """What there is in a logs folder."""

    versions: dict[str, FileVersion] = field(default_factory=dict)
    """The runs by name, with the versions of their files."""
    notes: tuple[str, ...] = ()
    """Which runs cannot be listed, and why."""


def scan_runs(logs: Path) -> FoundRuns:
    """Returns the runs in a logs folder; a folder that cannot be read has none, and says why."""
    try:
        root = os.open(logs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return FoundRuns(notes=(_unreadable(logs, error),))
    try:
        with os.scandir(logs) as entries:
            found = [*entries]
        may_be_runs = {entry.name: _may_be_run(logs, entry) for entry in found}
        links = (run_of_machines(Path(entry.path)) for entry in found if entry.is_symlink())
        called_otherwise = {folder.name for folder in links if folder is not None}
        names = (
            name for name, may_be in may_be_runs.items() if may_be and name not in called_otherwise
        )
        versions = ((name, _file_version(name, root)) for name in names)
        others = sorted(name for name, may_be in may_be_runs.items() if may_be is False)
        return FoundRuns(
            {name: version for name, version in versions if version is not None},
            _unlisted_notes(logs, others),
        )
    except OSError as error:  # the folder vanished, or its disk did
        return FoundRuns(notes=(_unreadable(logs, error),))
    finally:
        os.close(root)


def _unreadable(logs: Path, error: OSError) -> str:
    return (
        f"{logs} cannot be read ({error.strerror}); expected the folder of the runs; pass it as "
        "--logs-dir"
    )


def _unlisted_notes(logs: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Returns what is to be said of folders whose names lead to no run, as far as they hold one."""
    # Not `is_file`, which raises where we may not look: as in the index of another user.
    runs = [name for name in names if stat_regular(logs / name / MANIFEST) is not None]
    notes = [
        f"{printable(str(logs / name))} is not listed: a run has another kind of name, or it is a "
        f"link that leads out of {logs}; rename it, or move what it leads to"
        for name in runs[:MAX_UNLISTED]
    ]
    more = len(runs) - MAX_UNLISTED
    if more > 0:
        notes.append(f"{more:,} more folders are not listed for the same reason")
    return tuple(notes)


def is_settled(version: FileVersion) -> bool:
    """Returns whether any change from now on will have another time."""
    _, *times_ns = version
    return time.time_ns() - max(times_ns[:2]) > UNSETTLED_S * 1e9


def _may_be_run(logs: Path, entry: os.DirEntry[str]) -> bool | None:
    """Returns whether a folder can be listed by its name; `None` for what is no folder, and for
    the former place of a node that has moved into the folder of its run."""
    try:
        if not entry.is_dir() or (entry.is_symlink() and leads_to_node(Path(entry.path))):
            return None
        return is_right_in(logs, entry.name) if entry.is_symlink() else is_run_name(entry.name)
    except OSError:  # a link that leads in a circle, or where we may not look
        return None


def _file_version(name: str, root: int) -> FileVersion | None:
    """Returns the version of a run's files; `None` for a folder that is no run.

    Every file of a run but its records is replaced whole, which changes the time of its folder.
    The summary is checked besides, since others write summaries, too.
    """
    try:
        folder = os.stat(name, dir_fd=root)
        try:
            summary = os.stat(f"{name}/{SUMMARY}", dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            os.stat(f"{name}/{MANIFEST}", dir_fd=root, follow_symlinks=False)
            return (folder.st_ino, folder.st_mtime_ns)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(summary.st_mode):
        return (folder.st_ino, folder.st_mtime_ns)
    return (folder.st_ino, folder.st_mtime_ns, summary.st_mtime_ns, summary.st_size)
