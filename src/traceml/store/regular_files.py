"""The one way to open a file of a run folder for reading: regular files only, without waiting.

Whoever can write to a logs folder can put a named pipe, a device or a link where a file is
expected. Opening a pipe waits for its writer, some devices never end, and a link leads out of the
folder. So a file is opened without blocking, its type is checked, and links are refused unless the
caller says that the user named this very file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 30
"""The largest file that is read whole; ours stay under 64 MB."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularFile(OSError):
    """The path is not a regular file, though one was expected."""


def open_regular(path: Path, follow_links: bool = False) -> int:
    """Opens a file for reading and returns its descriptor.

    Raises NotRegularFile for anything but a regular file, and OSError as `os.open` does.
    """
    # Checked before it is opened, too: opening alone can start a device or wake a pipe's writer.
    _refuse_special(path, path.stat(follow_symlinks=follow_links))
    descriptor = os.open(path, _FLAGS if follow_links else _FLAGS | os.O_NOFOLLOW)
    try:
        _refuse_special(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(
    path: Path, follow_links: bool = False, max_bytes: int = MAX_FILE_BYTES, offset: int = 0
) -> bytes:
    """Read a file from an offset to its end; raises OSError, also for more than `max_bytes`."""
    with os.fdopen(open_regular(path, follow_links), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size - offset > max_bytes:
            raise OSError(
                errno.EFBIG, f"{size:,} bytes are too many, expected at most {max_bytes:,}", path
            )
        file.seek(offset)
        return file.read() or b""  # `None`: some files of the kernel have nothing yet


def stat_regular(path: Path) -> os.stat_result | None:
    """Return what the system knows of a file; `None` where there is no regular file."""
    try:
        found = path.lstat()
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _refuse_special(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something special")
        raise NotRegularFile(errno.EINVAL, f"it is {kind}, expected a regular file", path)
