"""Holds the content of a logged file as it is at the call, until the agent has stored it.

Small files are copied, which takes about as long as writing them did. A larger one gets a hard
link, which takes microseconds: deleting, renaming or replacing the file afterwards changes nothing.
What a link cannot prevent is a script that writes into the same file again, as `torch.save` to the
same path does. The file's size and time at the call are noted, so that the agent, which copies it
within the next second, notices that and stores no other content than what was logged.

A reflink would prevent it too, but it first waits until the file is on the disk: that is for the
agent. Nothing here waits for a disk, starts a thread, or leaves anything beside the script's files.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from itertools import islice
from pathlib import Path
from time import time_ns
from typing import Any

from traceml.model.artifact import PART_SUFFIX, STAGED, STAGED_FACTS
from traceml.trace.interruptions import is_interruption

MAX_COPIED_BYTES = 4 << 20
"""Copied in one call at most, a few milliseconds; what is larger is linked."""
MIN_FREE_BYTES = 256 << 20
"""On a disk with less nothing is copied: what is left is the training's. A link takes no room."""
MAX_FILES = 1000
"""In a folder that is logged, about ten milliseconds of links; more are for an archive."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class CannotBeKept(Exception):
    """A path cannot be an artifact; the text says why, and what to pass instead."""


def stage(source: Path, run_folder: Path, facts: dict[str, Any]) -> str:
    """Stage a file or a folder; returns the name under which the agent finds it.

    Raises CannotBeKept, and OSError where the run's disk is full or cannot be written.
    """
    is_folder = _is_folder(source, run_folder)
    files, links = _files_below(source.resolve()) if is_folder else ([(source, source.name)], 0)
    name = f"{time_ns():016x}-{os.getpid()}"
    place = run_folder / STAGED / name
    part = place.with_name(name + PART_SUFFIX)
    part.mkdir(0o700, parents=True)
    try:
        room, staged = _room(part), []
        for number, (path, relative) in enumerate(files):
            how, found = _hold(path, part / str(number), room)
            room -= found.st_size if how == "copy" else 0
            entry: dict[str, Any] = {"path": relative, "how": how}
            entry |= {"size_bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
            staged.append(entry if how != "path" else {**entry, "source": str(path)})
        known = {**facts, "is_folder": is_folder, "files": staged, "links_left_out": links}
        (part / STAGED_FACTS).write_text(json.dumps(known))
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return name


def _room(folder: Path) -> int:
    """Returns how many bytes may be copied."""
    found = os.statvfs(folder)
    return MAX_COPIED_BYTES if found.f_bavail * found.f_frsize >= MIN_FREE_BYTES else 0


def _is_folder(source: Path, run_folder: Path) -> bool:
    """Returns whether a folder is logged, and not a file; raises CannotBeKept for all else."""
    try:
        found = source.stat()  # the user named it: a link to a file is that file
    except OSError as error:
        if is_interruption(error):
            raise
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            why = f"there is no file {source}; log it after it was written"
        else:
            why = f"{source} cannot be read ({error.strerror})"
        raise CannotBeKept(why) from None
    if stat.S_ISREG(found.st_mode):
        return False
    if not stat.S_ISDIR(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something special")
        raise CannotBeKept(f"{source} is {kind}; pass the path of a file or a folder")
    root, own = source.resolve(), run_folder.resolve()
    if root == own or root in own.parents or own in root.parents:
        raise CannotBeKept(f"{source} is, or holds, a part of the run's own folder")
    return True


def _files_below(root: Path) -> tuple[list[tuple[Path, str]], int]:
    """Returns the regular files of a folder in a fixed order, and how many links it holds.

    Links are left out: they may lead anywhere.
    """
    files: list[tuple[Path, str]] = []
    links = entries = 0
    folders = [root]
    while folders:
        found = _entries_of(folders.pop(), MAX_FILES - entries)
        entries += len(found)
        if entries > MAX_FILES:
            raise CannotBeKept(f"{root} holds more than {MAX_FILES:,} files; log an archive of it")
        inner: list[Path] = []
        for path in found:
            mode = path.lstat().st_mode
            links += stat.S_ISLNK(mode)
            if stat.S_ISDIR(mode):
                inner.append(path)
            elif stat.S_ISREG(mode):
                files.append((path, str(Path(root.name, path.relative_to(root)))))
        folders.extend(reversed(inner))
    return files, links


def _entries_of(folder: Path, room: int) -> list[Path]:
    """What is in a folder, by name; no more than one beyond the room is read of a large one.

    A folder that cannot be read counts as empty.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in islice(entries, room + 1))
    except OSError as error:
        if is_interruption(error):
            raise
        return []


def _hold(path: Path, place: Path, room: int) -> tuple[str, os.stat_result]:
    """Hold one file's content; returns how, and the file's size and time when that was done."""
    descriptor = os.open(path, _FLAGS)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):  # replaced since it was looked at
            raise CannotBeKept(f"{path} is no file any more; nothing was recorded")
        if found.st_size <= room:
            with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
                place.write_bytes(file.read(found.st_size) if found.st_size else b"")
            return "copy", found
    finally:
        os.close(descriptor)
    try:
        os.link(path.resolve(), place)
    except OSError as error:
        if is_interruption(error):
            raise
        return "path", found  # on another disk, or one without links: the agent reads it there
    return "link", place.lstat()
