"""Files of lines: appended without half lines, and followed as they grow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from traceml.store.descriptors import wait_until_writable
from traceml.store.folder import write_atomically
from traceml.store.regular_files import open_regular, read_regular, stat_regular

LIVE_STATE = "live.json"
LIVE_CHANGES = "live.jsonl"
MAX_LIVE_BYTES = 1 << 20
"""About two thousand changes; beyond it the older half is dropped."""

_MAX_LINE_BYTES = 1 << 20


def append_lines(path: Path, lines: bytes) -> int:
    """Appends whole lines; returns the size of the file before.

    A half line of a killed earlier writer is cut off first. Raises OSError when the disk is full:
    then the whole lines that fitted are in the file, and nothing else.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = _end_of_last_line(descriptor)
        os.ftruncate(descriptor, end)
        try:
            write_whole(descriptor, lines, end)
        except OSError:
            fitted = os.pread(descriptor, len(lines), end).rfind(b"\n") + 1
            os.ftruncate(descriptor, end + fitted)
            raise
    finally:
        os.close(descriptor)
    return end


def write_whole(descriptor: int, content: bytes, offset: int | None = None) -> None:
    """Writes all of the content, at an offset of a file or to a stream that accepts it slowly.

    Raises OSError; what was written before stays.
    """
    left = memoryview(content)
    while left:
        try:
            if offset is None:
                written = os.write(descriptor, left)
            else:
                written = os.pwrite(descriptor, left, offset)
                offset += written
            left = left[written:]
        except BlockingIOError:
            wait_until_writable(descriptor, None)  # somebody made the stream non-blocking


def _end_of_last_line(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = max(0, size - _MAX_LINE_BYTES)
    return start + os.pread(descriptor, size - start, start).rfind(b"\n") + 1


_REMEMBERED = 64
"""Bytes before the current position that are compared, to notice that the file was replaced."""


class LineFollower:
    """The lines of a growing file, which its writer may replace by a shorter one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] = (0, 0)
        self._offset = 0
        self._before = b""

    def read_new(self) -> tuple[list[bytes], bool]:
        """Returns the whole lines that are new, and whether the file was replaced, so that they are
        all its lines."""
        found = stat_regular(self._path)
        if found is None or (found.st_ino, found.st_size) == self._known:
            return [], False
        try:
            content, is_anew = self._read()
        except OSError:  # gone, or replaced by what is no file
            return [], False
        end = content.rfind(b"\n") + 1
        self._offset += end
        self._before = (self._before + content[:end])[-_REMEMBERED:]
        return content[:end].splitlines(), is_anew

    def _read(self) -> tuple[bytes, bool]:
        with os.fdopen(open_regular(self._path), "rb") as file:
            inode, before = os.fstat(file.fileno()).st_ino, len(self._before)
            file.seek(self._offset - before)
            is_anew = inode != self._known[0] or file.read(before) != self._before
            if is_anew:
                self._offset, self._before = 0, b""
                file.seek(0)
            content = file.read()
            self._known = inode, self._offset + len(content)
        return content, is_anew


class LiveFiles:
    """The live findings of one run on disk: the current ones, and a line for every change."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / LIVE_STATE
        self._changes = folder / LIVE_CHANGES

    def append(self, changes: Sequence[bytes]) -> None:
        """Appends a line for each change."""
        if not changes:
            return
        size = append_lines(self._changes, b"".join(change + b"\n" for change in changes))
        if size > MAX_LIVE_BYTES:
            lines = read_regular(self._changes).splitlines(keepends=True)
            write_atomically(self._changes, b"".join(lines[len(lines) // 2 :]))

    def write(self, state: bytes) -> None:
        """Replaces the current findings."""
        write_atomically(self._state, state)
