"""Tags and the note of a run: what people say about it afterwards.

`tags.jsonl` in the run folder has a line for each change; what holds is their sum. A line is
appended in one write, so that changes of several people at once all stay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceml.model.errors import UsageError
from traceml.model.printable import printable_lines
from traceml.store.folder import TAGS
from traceml.store.json_lines import decode_lines
from traceml.store.regular_files import NotRegularFile, read_regular

MAX_TAG_CHARS = 100
MAX_NOTE_CHARS = 10_000
MAX_TAGS = 1000
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RunTags:
    """What people said about a run."""

    tags: tuple[str, ...] = ()
    """In the order in which they were added."""
    note: str | None = None


class _TagChange(msgspec.Struct, omit_defaults=True):
    """One line of the file."""

    unix_s: float = 0.0
    user: str = ""
    add: list[str] = []
    remove: list[str] = []
    note: str | None = None
    """`None`: it stays; an empty one removes it."""


_DECODER = msgspec.json.Decoder(_TagChange)


def read_tags(folder: Path) -> RunTags:
    """Returns the tags and the note of a run; none where there is no such file, or no readable
    one."""
    try:
        lines = read_regular(folder / TAGS, max_bytes=MAX_FILE_BYTES).splitlines()
    except OSError:
        return RunTags()
    return _sum_up(decode_lines(lines, _DECODER))


def _sum_up(changes: Iterable[_TagChange]) -> RunTags:
    tags: dict[str, None] = {}
    note: str | None = None
    for change in changes:
        tags.update(dict.fromkeys(change.add))
        for tag in change.remove:
            tags.pop(tag, None)
        if change.note is not None:
            note = change.note or None
    return RunTags(tuple(tags)[:MAX_TAGS], note)


def change_tags(
    folder: Path, add: Sequence[str], remove: Sequence[str], note: str | None, user: str
) -> RunTags:
    """Adds and removes tags of a run and replaces its note; returns what holds then.

    Raises UsageError for a tag that cannot be one, or where the file cannot be written.
    """
    add, remove = _checked(add), _checked(remove)
    if note is not None and len(note) > MAX_NOTE_CHARS:
        raise UsageError(
            f"the note has {len(note):,} characters; expected at most {MAX_NOTE_CHARS:,}: keep "
            "longer texts in a file, and name that in the note"
        )
    if add or remove or note is not None:
        text = None if note is None else printable_lines(note).strip()
        change = _TagChange(round(time.time(), 3), user, list(add), list(remove), text)
        try:
            _append(folder / TAGS, msgspec.json.encode(change))
            os.utime(folder)  # the index of runs looks at the folder's time
        except OSError as error:
            raise UsageError(
                f"the tags of {folder} cannot be written ({error.strerror}); make the folder "
                "writable, or make room"
            ) from error
    return read_tags(folder)


def _checked(tags: Sequence[str]) -> list[str]:
    for tag in tags:
        is_tag = tag.strip() == tag and tag.isprintable() and 1 <= len(tag) <= MAX_TAG_CHARS
        if not is_tag or "," in tag:
            raise UsageError(
                f"{json.dumps(tag, ensure_ascii=False)[:120]} cannot be a tag: a tag has 1 to "
                f"{MAX_TAG_CHARS} printable characters, no comma, and no blank around it; use "
                "--note for sentences"
            )
    return list(dict.fromkeys(tags))


def _append(path: Path, line: bytes) -> None:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularFile(errno.EINVAL, "it is no regular file", path)
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # After half a line of a writer that was killed, a new line begins.
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, (b"\n" if is_torn else b"") + line + b"\n")
    finally:
        os.close(descriptor)
