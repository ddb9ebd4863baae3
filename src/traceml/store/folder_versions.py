"""Finds the runs in a logs folder, and the versions of their files: what has changed is read
again."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from traceml.store.folder import MANIFEST, SUMMARY, is_right_in, is_run_name

UNSETTLED_S = 2.0
"""A folder that changed so recently may change again within the same tick of its clock."""

FileVersion = tuple[int, ...]
"""Identifies the versions of a run's files by inode, size and time."""


def scan_runs(logs: Path) -> dict[str, FileVersion]:
    """Returns the runs in a logs folder by name, with the versions of their files."""
    try:
        root = os.open(logs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        with os.scandir(logs) as entries:
            names = [entry.name for entry in entries if _may_be_run(logs, entry)]
        versions = ((name, _file_version(name, root)) for name in names)
        return {name: version for name, version in versions if version is not None}
    except OSError:  # the folder vanished, or its disk did
        return {}
    finally:
        os.close(root)


def is_settled(version: FileVersion) -> bool:
    """Returns whether any change from now on will have another time."""
    _, *times_ns = version
    return time.time_ns() - max(times_ns[:2]) > UNSETTLED_S * 1e9


def _may_be_run(logs: Path, entry: os.DirEntry[str]) -> bool:
    try:
        if entry.is_symlink():
            return is_right_in(logs, entry.name) and entry.is_dir()
        return entry.is_dir() and is_run_name(entry.name)
    except OSError:
        return False


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
