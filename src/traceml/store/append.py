"""Appends to files so that a full disk or a killed writer leaves nothing half written for good."""

from __future__ import annotations

import os
from pathlib import Path

_LONGEST_LINE_BYTES = 1 << 20


def append_lines(path: Path, lines: bytes) -> int:
    """Append whole lines; returns the size of the file before.

    A line that an earlier writer was killed in is cut off first. Raises OSError when the disk is
    full: the file is then as it was.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = _end_of_last_line(descriptor)
        os.ftruncate(descriptor, end)
        try:
            write_whole(descriptor, lines, end)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)
    return end


def write_whole(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of it, however many calls that takes; raises OSError."""
    written = 0
    while written < len(content):
        written += os.pwrite(descriptor, content[written:], offset + written)


def _end_of_last_line(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = max(0, size - _LONGEST_LINE_BYTES)
    return start + os.pread(descriptor, size - start, start).rfind(b"\n") + 1
