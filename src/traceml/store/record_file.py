"""A rank's records on disk: appended in segments, the oldest of them folded into blocks.

`<stem>.0000.steps` and so on begin with the ring's head and hold step records; the newest segment's
head is the current one. `<stem>.v2.blocks` holds blocks alone (`<stem>.blocks` in format 1).
`<stem>.messages` holds a JSON object
per line, each with the number of the ring slot it ended in, so that nothing is written twice.
Together they stay under 64 MB however long the run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store import blocks as folding
from traceml.store import logged, old_formats
from traceml.store.folder import write_atomically
from traceml.store.line_files import append_lines, write_whole
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE
from traceml.store.regular_files import read_regular, stat_regular
from traceml.store.rings import RingHead, RingReader, open_records, parse_head, unreadable
from traceml.store.step_columns import Steps

SEGMENT_STEPS = 7_500_000 // record_layout.STEP_BYTES // 1024 * 1024
KEEP_SEGMENTS = 5
"""Segments of single steps: about 115,000 steps, 37 MB."""
MAX_BLOCKS = 7_168
"""About 9 MB; beyond it, neighbouring blocks are merged."""
MAX_MESSAGE_BYTES = 8 << 20

_HEAD_BYTES = 1 << 16
"""Enough for the head of any record file."""
_NO_BLOCKS = np.empty(0, BLOCK_DTYPE)


class RankFiles:
    """The files of one traced process, which share a stem."""

    def __init__(
        self,
        folder: Path,
        stem: str,
        segments: list[Path],
        listed: Collection[str] | None = None,
    ) -> None:
        self._folder = folder
        self.stem = stem
        self._segments = segments
        self._messages = folder / f"{stem}.messages"
        self._listed = listed
        """The names of the files in the folder; `None` where it was not listed."""
        self._next_step: int | None = None
        self._next_message: int | None = None
        self._known_current: Path | None = None
        """The segment of which it is known that it has the current record format."""
        self._first_losses: list[bytes] = []
        """Messages about the rank's first losses that are not on disk yet."""
        self.damaged_records = 0
        """Step records that `read_steps` left out."""

    @classmethod
    def of(cls, folder: Path, stem: str) -> RankFiles:
        """Returns the files of one process, to continue writing them."""
        return cls(folder, stem, _begun(sorted(folder.glob(f"{stem}.????.steps"))))

    @classmethod
    def all_in(cls, folder: Path) -> list[RankFiles]:
        """Returns the files of every process in a run folder, for reading, from one directory
        listing."""
        names = os.listdir(folder)  # noqa: PTH208 - a thousand folders: names alone are quicker
        listed = {name for name in names if name.startswith("rank-")}
        found: dict[str, list[Path]] = {}
        for name in sorted(listed):
            stem, _, ending = name.partition(".")
            if ending.endswith("steps"):
                found.setdefault(stem, []).append(folder / name)
            elif ending == "messages":
                found.setdefault(stem, [])
        return [
            cls(folder, stem, _begun(segments), listed) for stem, segments in sorted(found.items())
        ]

    # Writing

    def drain(self, ring: RingReader, everything: bool = False) -> list[bytes]:
        """Writes what is new in the ring to disk; returns the new messages.

        Raises OSError when the disk is full: what fitted is on disk, nothing is half written, and
        the next call continues after it.
        """
        if self._next_step is None or self._next_message is None:
            self._next_step = self._last_sure_step(ring.committed())
            self._next_message = logged.last_number(self._messages)
        logged_since = ring.messages_from(self._next_message)
        steps = ring.steps_from(self._next_step, everything)
        messages = ring.with_steps(logged_since)
        try:
            if len(steps) or everything:
                self._append(ring.head_bytes(), steps)
        finally:  # what a script logged is small: it may fit where steps do not
            self._first_losses += ring.new_losses()
            self._append_messages(logged_since, messages)
        ring.commit(self._next_step)
        return [payload for _, payload in messages]

    def _last_sure_step(self, committed: int | None) -> int:
        """The number of the last step on disk that the ring's reader need not make again.

        Steps behind the reader's saved state were written by one that was killed before it could
        save where it was: they come again.
        """
        on_disk = last_number(self.read_steps(), self.read_blocks())
        if committed is None or on_disk <= committed:
            return on_disk
        self._cut_behind(committed)
        return committed

    def _cut_behind(self, number: int) -> None:
        """Drop all single steps after this one."""
        while self._segments:
            path = self._segments[-1]
            _, records = _read_records(path)
            kept = int(np.searchsorted(records["sequence"], number, side="right"))
            if kept:
                size = _read_head(path).size + kept * STEP_DTYPE.itemsize
                os.truncate(path, size)
                return
            path.unlink()
            self._segments.pop()

    def last_step_on_disk(self) -> int:
        """Returns the number of the last step on disk; 0 without any."""
        return self._next_step or 0

    def _append(self, head: bytes, steps: npt.NDArray[Any]) -> None:
        if not self._segments or not self._is_current(self._segments[-1]):
            self._add_segment()
        while True:
            path = self._segments[-1]
            held = self._count(path, len(head))
            room = SEGMENT_STEPS - held
            self._write(path, head, held, steps[:room])
            if len(steps) <= room:
                break
            steps = steps[room:]
            self._add_segment()
        while len(self._segments) > KEEP_SEGMENTS + 1:
            self._fold_oldest()

    def _is_current(self, path: Path) -> bool:
        """Whether a segment has the record format that is written; each is looked at once."""
        if path != self._known_current:
            self._known_current = path if _version(path) == record_layout.VERSION else None
        return self._known_current is not None

    def _add_segment(self) -> Path:
        number = int(self._segments[-1].name.split(".")[-2]) + 1 if self._segments else 0
        self._segments.append(self._folder / f"{self.stem}.{number:04d}.steps")
        return self._segments[-1]

    @staticmethod
    def _count(path: Path, head_bytes: int) -> int:
        found = stat_regular(path)
        size = 0 if found is None else found.st_size
        return max(0, size - head_bytes) // STEP_DTYPE.itemsize

    def _write(self, path: Path, head: bytes, held: int, steps: npt.NDArray[Any]) -> None:
        """Appends to a segment and updates its head; raises OSError after writing what fits."""
        end = len(head) + held * STEP_DTYPE.itemsize
        found = stat_regular(path)
        if found is None or not found.st_size:
            write_atomically(path, head)  # a writer that is killed leaves no half of a head
            path.chmod(0o600)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            write_whole(descriptor, head, 0)
            write_whole(descriptor, steps.tobytes(), end)
        except OSError:
            fitted = max(0, os.fstat(descriptor).st_size - end) // STEP_DTYPE.itemsize
            records = held + fitted
            whole = len(head) + records * STEP_DTYPE.itemsize if records else 0
            os.ftruncate(descriptor, whole)  # an empty segment is none
            steps = steps[:fitted]
            raise
        finally:
            os.close(descriptor)
            if len(steps):
                self._next_step = int(steps["sequence"][-1])

    def _fold_oldest(self) -> None:
        oldest = self._segments[0]
        older, folded = self.read_blocks(), folding.fold(_read_steps(oldest))
        if len(older) + len(folded) > MAX_BLOCKS:
            # Among themselves: if we die before the segment is gone, no block may reach into it.
            older = folding.merge_pairs(older)
        files = block_files(self._folder, self.stem)
        write_atomically(files[record_layout.VERSION], np.concatenate([older, folded]).tobytes())
        for version in range(1, record_layout.VERSION):
            files[version].unlink(missing_ok=True)  # they are in the current one now
        oldest.unlink()
        del self._segments[0]

    def _append_messages(
        self,
        logged_since: list[tuple[int, bytes]],
        messages: list[tuple[int, bytes]],
    ) -> None:
        """Append what the script logged, and the first losses of the rank.

        `messages` are those of the ring with their steps; in how many pieces each came is known
        from the ring's own.
        """
        if self._first_losses:  # an agent that was killed may have written them before
            on_disk = logged.loss_milestones(self.read_messages())
            self._first_losses = logged.new_milestones(self._first_losses, on_disk)
        if not messages and not self._first_losses:
            return
        last = messages[-1][0] if messages else self._next_message or 0
        lines = [logged.line(number, payload) for number, payload in messages]
        lost = last - (self._next_message or 0) - logged.pieces(logged_since)
        if lost:
            before = messages[0][0] - logged.pieces(logged_since[:1])
            lines.insert(0, logged.lost_line(before, lost))
        lines += [logged.line(last, payload) for payload in self._first_losses]
        try:
            size = append_lines(self._messages, b"".join(lines))
        except OSError:
            self._next_message = logged.last_number(self._messages)
            raise
        self._next_message, self._first_losses = last, []
        if size > MAX_MESSAGE_BYTES:
            write_atomically(self._messages, logged.thin(read_regular(self._messages)))

    # Reading

    def head(self) -> RingHead | None:
        """Returns the head of these files; `None` before the first step."""
        if not self._segments:
            return None
        return _read_head(self._segments[-1])

    def read_steps(self) -> npt.NDArray[Any]:
        """Returns all single steps, oldest first."""
        _, steps = self.read_head_and_steps()
        return steps

    def read_head_and_steps(self) -> tuple[RingHead | None, npt.NDArray[Any]]:
        """Returns what `head` and `read_steps` do, and reads each file once for both."""
        if not self._segments:
            return None, np.empty(0, STEP_DTYPE)
        heads, parts = zip(*map(_read_records, self._segments), strict=True)
        # Of most ranks of a large run there is one part: no second copy of everything.
        records = parts[0] if len(parts) == 1 else np.concatenate(parts)
        sound = old_formats.sound_steps(records)
        self.damaged_records = len(records) - len(sound)
        return heads[-1], sound

    def read_blocks(self) -> npt.NDArray[Any]:
        """Returns the merged steps without those that a segment still holds."""
        found = {v: path for v, name in _block_names(self.stem) if (path := self._existing(name))}
        if not found:
            return _NO_BLOCKS
        newest = max(found)
        blocks = old_formats.sound_blocks(old_formats.read_blocks(_content(found[newest]), newest))
        if self._segments and len(blocks):
            oldest = _read_steps(self._segments[0])
            if len(oldest):
                blocks = blocks[blocks["first_step"] < int(oldest["sequence"][0]) - 1]
        return blocks

    def read_messages(self) -> list[dict[str, Any]]:
        """Returns what the script logged, in order."""
        path = self._existing(self._messages.name)
        return [] if path is None else logged.decode(_content(path))

    def _existing(self, name: str) -> Path | None:
        """Returns the path of a file in the folder; `None` where there is no such regular file."""
        if self._listed is not None and name not in self._listed:
            return None
        path = self._folder / name
        return None if stat_regular(path) is None else path


def block_files(folder: Path, stem: str) -> dict[int, Path]:
    """Returns the block files of a process, by record format."""
    return {version: folder / name for version, name in _block_names(stem)}


def _block_names(stem: str) -> Iterator[tuple[int, str]]:
    yield 1, f"{stem}.blocks"
    for version in range(2, record_layout.VERSION + 1):
        yield version, f"{stem}.v{version}.blocks"


def _begun(segments: list[Path]) -> list[Path]:
    """Returns the segments that are not empty: an empty one was created and never written."""
    if not segments:
        return segments
    last = stat_regular(segments[-1])
    return segments[:-1] if last is not None and not last.st_size else segments


def last_number(steps: Steps, blocks: npt.NDArray[Any]) -> int:
    """Returns how many steps the tracer had written when it wrote the last of these, with lost
    ones."""
    if len(steps):
        return int(steps["sequence"][-1])
    return int(blocks["first_step"][-1] + blocks["steps"][-1]) if len(blocks) else 0


def _read_steps(path: Path) -> npt.NDArray[Any]:
    _, records = _read_records(path)
    return old_formats.sound_steps(records)


def _read_records(path: Path) -> tuple[RingHead, npt.NDArray[Any]]:
    """Returns the head of a segment, and its records as they are, including damaged ones."""
    content = _content(path)
    head = parse_head(content[:_HEAD_BYTES], path)
    return head, old_formats.read_steps(memoryview(content)[head.size :], head.version)


def _version(path: Path) -> int:
    """Returns the record format of a segment; the current one for a new segment."""
    found = stat_regular(path)
    if found is None or not found.st_size:
        return record_layout.VERSION
    return _read_head(path).version


def _read_head(path: Path) -> RingHead:
    descriptor = open_records(path)
    try:
        return parse_head(os.pread(descriptor, _HEAD_BYTES, 0), path)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    """Returns a whole file of records; raises UnreadableRecords where it cannot be read."""
    try:
        return read_regular(path)
    except OSError as error:
        raise unreadable(path, error) from None
