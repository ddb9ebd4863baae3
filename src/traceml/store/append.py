"""Writes to files so that a full disk or a killed writer leaves nothing half written for good."""

from __future__ import annotations

import os
import select
from pathlib import Path

_MAX_LINE_BYTES = 1 << 20


def append_lines(path: Path, lines: bytes) -> int:
    """Append whole lines; returns the size of the file before.

    A line that an earlier writer was killed in is cut off first. Raises OSError when the disk is
    full: the whole lines that fitted are then in the file, and nothing else.
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
    """Write all of it, at an offset of a file or to a stream, however slowly it is taken.

    Raises OSError; what was written before that stays written.
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
            select.select([], [descriptor], [])  # somebody made the stream non-blocking


def _end_of_last_line(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = max(0, size - _MAX_LINE_BYTES)
    return start + os.pread(descriptor, size - start, start).rfind(b"\n") + 1
