"""A file of lines, followed: each look returns the lines that are new."""

from __future__ import annotations

import os
from pathlib import Path

from traceml.store.regular_files import open_regular, stat_regular

_REMEMBERED = 64
"""Bytes before the place we are at: another file's would be different."""


class FollowedLines:
    """The lines of a file that grows, and that its writer now and then replaces by a shorter."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] = (0, 0)
        self._offset = 0
        self._before = b""

    def look(self) -> tuple[list[bytes], bool]:
        """The whole lines that came; and whether they stand for all that came before, too."""
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
