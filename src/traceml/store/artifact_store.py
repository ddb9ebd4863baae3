"""Keeps the content of logged files, each content once for all runs of a logs folder.

A run's `artifacts/` folder holds its files whole: it can be moved or packed without the others. The
same content in another run is a hard link to it, found through `.artifacts/SIZE/SHA256` beside the
runs. So deleting a run takes nothing from another one, and deleting `.artifacts` nothing from any.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, TypeAlias

from traceml.model.artifact import HEAD_BYTES, PART_SUFFIX, STAGED, ArtifactKind, kind_of_file
from traceml.store.regular_files import open_regular

KEPT = "artifacts"
"""A folder in the run's with the logged files, one numbered folder for each call."""
SHARED = ".artifacts"
"""A folder beside the runs by which equal contents are found."""
PIECE_BYTES = 1 << 20
MAX_PRUNED = 10_000
"""Entries that are looked at when contents are removed that no run has any more."""

_CLONE = 0x40049409
"""The number of Linux's `FICLONE`: the copy shares the blocks of the original until one changes."""
_READ_ONLY = 0o400
_TEMPORARY = ".traceml-"
_PROBES, _PROBE_BYTES = 8, 4096
_MAX_CANDIDATES = 64

HasRoom: TypeAlias = Callable[[int], bool]


class ContentChanged(Exception):
    """A file has been written to since it was logged, or while it was read."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's size and time of change when it was logged."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file whose content is known, and kept where `place` is not `None`."""

    size_bytes: int
    sha256: str
    kind: ArtifactKind
    place: Path | None = None


class ArtifactStore:
    """The contents that the runs of one logs folder have kept."""

    def __init__(self, run_folder: Path) -> None:
        self._run = run_folder
        self._shared = run_folder.parent / SHARED
        self._hashes: dict[tuple[int, int, int, int], str] = {}
        """Of files that were read, by what tells them apart on this machine: every rank of a job
        may log the same one."""

    def new_folder(self) -> Path:
        """Creates the run's next numbered folder; several agents of a run may do so at once."""
        (self._run / KEPT).mkdir(0o700, exist_ok=True)
        number = 1 + max((_number(path) for path in (self._run / KEPT).iterdir()), default=0)
        while True:
            folder = self._run / KEPT / f"{number:04}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
                return folder
            number += 1

    def keep(self, source: Path, place: Path, stamp: Stamp, has_room: HasRoom) -> KeptFile:
        """Keeps the content of a file that may be written to meanwhile.

        `has_room` says whether so many bytes may be written; where they may not, and no run has
        the same content, it is only described. Raises ContentChanged where the content is no
        longer what was logged, and OSError.
        """
        size = stamp.size_bytes
        with os.fdopen(open_regular(source, follow_links=True), "rb", buffering=0) as file:
            _check(file, stamp)
            kind = kind_of_file(place.name, file.read(HEAD_BYTES))
            known = self._shared / str(size)
            identity = _identity(file)
            sha256 = self._hashes.get(identity, "")
            if sha256 and self._link(known / sha256, place):
                return KeptFile(size, sha256, kind, place)
            if _may_be_in(known, file, size) or not has_room(size):
                sha256 = _hash(file)
                _check(file, stamp)
                if self._link(known / sha256, place):
                    return KeptFile(size, sha256, kind, place)
                if not has_room(size):
                    return KeptFile(size, sha256, kind)
            sha256 = self._copy(file, place, stamp)
            self._hashes[identity] = sha256
            return KeptFile(size, sha256, kind, place)

    def _copy(self, file: IO[bytes], place: Path, stamp: Stamp) -> str:
        """Copies a content, lets other runs find it, and returns its hash."""
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        temporary = place.with_name(f"{_TEMPORARY}{os.getpid()}{PART_SUFFIX}")
        try:
            with temporary.open("x+b") as copy:
                sha256 = _hash(copy) if _clone(file, copy) else _hash(file, copy)
            _check(file, stamp)
            temporary.chmod(_READ_ONLY)
            self._share(temporary, str(stamp.size_bytes), sha256)
            temporary.rename(place)
        finally:
            temporary.unlink(missing_ok=True)
        return sha256

    def _share(self, path: Path, size: str, sha256: str) -> None:
        """Lets other runs find a content; without links, or in somebody else's folder, they do
        not."""
        with contextlib.suppress(OSError):
            self._shared.mkdir(0o700, exist_ok=True)
            (self._shared / size).mkdir(0o700, exist_ok=True)
            os.link(path, self._shared / size / sha256)

    def _link(self, known: Path, place: Path) -> bool:
        """Links a content that another run has; returns whether there is one."""
        found = _regular(known)
        if found is None or found.st_mode & 0o222 or str(found.st_size) != known.parent.name:
            return False  # none, or one that somebody made writable or cut
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        try:
            os.link(known, place)
        except OSError:
            return False
        return True

    def prune(self) -> None:
        """Removes the contents that no run has any more: whose only link is ours."""
        with contextlib.suppress(OSError):
            for number, path in enumerate(self._shared.glob("*/*")):
                if number >= MAX_PRUNED:
                    return
                found = _regular(path)
                if found is not None and found.st_nlink == 1:
                    path.unlink()
                    with contextlib.suppress(OSError):  # it holds others
                        path.parent.rmdir()

    def remove_parts(self) -> None:
        """Removes what an agent that died had not copied to its end."""
        for part in (self._run / KEPT).glob(f"*/**/{_TEMPORARY}*{PART_SUFFIX}"):
            part.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Returns how much the disk of the run can still take."""
        found = os.statvfs(self._run)
        return found.f_bavail * found.f_frsize


def remove_staged(run_folder: Path, name: str) -> None:
    """Removes what a call staged, once it is kept or known to be lost."""
    shutil.rmtree(run_folder / STAGED / name, ignore_errors=True)


def safe_relative(text: str) -> PurePath | None:
    """Returns a path inside a kept artifact; `None` where it would lead out of it."""
    path = PurePath(text)
    if not text or "\0" in text or path.is_absolute() or ".." in path.parts:
        return None
    return path


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() and len(path.name) < 10 else 0


def _regular(path: Path) -> os.stat_result | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _check(file: IO[bytes], stamp: Stamp) -> None:
    found = os.fstat(file.fileno())
    if (found.st_size, found.st_mtime_ns) != (stamp.size_bytes, stamp.mtime_ns):
        raise ContentChanged


def _identity(file: IO[bytes]) -> tuple[int, int, int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _may_be_in(folder: Path, file: IO[bytes], size: int) -> bool:
    """Returns whether a kept content of the same size looks the same at a few places.

    The checkpoints of a training all have one size: without this, each would be read twice.
    """
    try:
        names = os.listdir(folder)[:_MAX_CANDIDATES]  # noqa: PTH208 - names, not paths
    except OSError:
        return False
    probes = [_probe(file.fileno(), size)] if names else []
    for name in names:
        try:
            descriptor = open_regular(folder / name)
        except OSError:  # removed meanwhile, or somebody else's
            continue
        try:
            if _probe(descriptor, size) in probes:
                return True
        finally:
            os.close(descriptor)
    return False


def _probe(descriptor: int, size: int) -> list[bytes]:
    offsets = (size * number // _PROBES for number in range(_PROBES))
    return [os.pread(descriptor, _PROBE_BYTES, offset) for offset in offsets]


def _hash(file: IO[bytes], copy: IO[bytes] | None = None) -> str:
    """Returns the hash of a file, from its beginning on, and copies it meanwhile."""
    hashed = hashlib.sha256()
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        hashed.update(piece)
        if copy is not None:
            copy.write(piece)
    return hashed.hexdigest()


def _clone(file: IO[bytes], copy: IO[bytes]) -> bool:
    """Shares the blocks of a file with a copy; returns whether the file system can."""
    try:
        fcntl.ioctl(copy.fileno(), _CLONE, file.fileno())
    except OSError:
        return False
    return True
