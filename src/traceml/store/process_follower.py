"""Follows one process's step records on disk while the agent writes them.

Nothing is read twice: a refresh costs in proportion to what is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.store import old_formats
from traceml.store.buckets import SUMMED, Buckets, Grid, Ints
from traceml.store.record_file import block_files
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE
from traceml.store.regular_files import read_regular
from traceml.store.restarted_ranks import ProcessSpan
from traceml.store.rings import RingHead, open_records, parse_head, unreadable
from traceml.store.step_records import is_incomplete, step_numbers

CHUNK_STEPS = 8192
"""About 2.6 MB: few enough calls that the threads which read ranks seldom wait for each other, and
still in the CPU's cache when it is summed."""

_HEAD_BYTES = 1 << 16
_IDENTITY_BYTES = record_layout.COUNTERS_OFFSET


class SegmentGone(Exception):
    """A segment was merged into blocks between two reads: read again."""


@dataclass(slots=True)
class _Segment:
    """A file of step records, and how far it was read."""

    path: Path
    version: int
    head_bytes: int
    first: int
    """The sequence number of its first record."""
    incomplete: int
    """Records of earlier segments that are no complete steps."""
    read: int = 0
    """The number of its records that were read."""
    is_plain: bool = True
    """Whether every record so far is a complete step and none is missing."""

    @property
    def record_bytes(self) -> int:
        """The size of one record."""
        return old_formats.STEPS_BY_VERSION[self.version].itemsize

    def records(self, descriptor: int) -> int:
        """Returns how many whole records the file holds."""
        size = os.fstat(descriptor).st_size
        return max(0, size - self.head_bytes) // self.record_bytes

    def steps(self, descriptor: int, first: int, count: int) -> npt.NDArray[Any]:
        """Returns some of its records."""
        offset = self.head_bytes + first * self.record_bytes
        return old_formats.read_steps(
            os.pread(descriptor, count * self.record_bytes, offset), self.version
        )

    def chunks(self, descriptor: int, first: int, end: int) -> Iterator[npt.NDArray[Any]]:
        """Yields its records in order, `CHUNK_STEPS` at a time.

        Each chunk takes the place of the one before it in memory: giving every chunk new memory
        would take four times as long as reading it.
        """
        content = memoryview(bytearray(min(CHUNK_STEPS, end - first) * self.record_bytes))
        while first < end:
            os.lseek(descriptor, self.head_bytes + first * self.record_bytes, os.SEEK_SET)
            size = os.readv(descriptor, [content[: (end - first) * self.record_bytes]])
            steps = old_formats.read_steps(content[:size], self.version)
            if not len(steps):
                return
            yield steps
            first += len(steps)


class ProcessFollower:
    """The steps of one process in buckets, as far as they are on disk."""

    def __init__(self, folder: Path, stem: str, on_head: Callable[[Rank], Rank]) -> None:
        """`on_head` returns a rank of the folder's node on the clock of the run's head."""
        self._folder = folder
        self.stem = stem
        self._on_head = on_head
        self._own_rank: Rank | None = None
        """As its file has it."""
        self._paths: Mapping[int, Path] = {}
        self._identity = b""
        self._rank: Rank | None = None
        self._first: tuple[int, int] | None = None
        """The sequence of its first record, and when that began; `None`: there is none."""
        self._last: tuple[int, int] = (0, 0)
        """The sequence of the last one on disk, and when that ended."""
        self._base: int | None = None
        """Which complete step of the run its first one is, from 0; `None`: read all over again."""
        self._forget(Grid(0, 1, 2))

    def _forget(self, grid: Grid) -> None:
        self.buckets = Buckets(grid)
        self._segments: dict[int, _Segment] = {}
        self._sequence = 0
        """That of the last record that was read."""
        self._incomplete = 0
        """How many of those read are no complete steps."""
        self._incomplete_wall_ns = 0
        self._compile_ns = 0
        self._last_step = np.empty(0, STEP_DTYPE)
        """The last complete step that was read."""

    # Who it is, and how far it came

    def find(self, paths: Mapping[int, Path]) -> bool:
        """Updates the list of segments; returns whether they hold any step.

        Raises UnreadableRecords, and SegmentGone.
        """
        self._paths = paths
        if not paths:
            return False
        newest = max(paths)
        with _opened(paths[newest]) as descriptor:
            identity = os.pread(descriptor, _IDENTITY_BYTES, 0)
            if len(identity) == _IDENTITY_BYTES and identity != self._identity:
                head = parse_head(os.pread(descriptor, _HEAD_BYTES, 0), paths[newest])
                self._own_rank, self._identity = head.rank, identity
        if len(identity) < _IDENTITY_BYTES:  # only just being made, or left so by a full disk
            return self.find({number: path for number, path in paths.items() if number != newest})
        if self._own_rank is not None:
            self._rank = self._on_head(self._own_rank)
        if self._segments and max(self._segments) not in paths:
            self._base = None  # what we had not read of it is in blocks now: all over again
        self._segments = {n: segment for n, segment in self._segments.items() if n in paths}
        if self._first is None:
            self._first = self._find_first()
        self._find_last()
        return self._first is not None

    def _find_first(self) -> tuple[int, int] | None:
        blocks = self._blocks()
        if len(blocks):
            return int(blocks[0]["first_step"]) + 1, int(blocks[0]["start_ns"])
        for number in sorted(self._paths):
            found = _record(self._paths[number], 0)
            if found is not None:
                return int(found["sequence"]), int(found["start_ns"])
        return None

    def _find_last(self) -> None:
        for number in sorted(self._paths, reverse=True):
            found = _record(self._paths[number], -1)
            if found is not None:
                end_ns = int(found["start_ns"] + found["wall_ns"])
                self._last = int(found["sequence"]), end_ns
                return

    @property
    def rank(self) -> Rank:
        """The rank that the process says it is, on the clock of the run's head."""
        assert self._rank is not None
        return self._rank

    @property
    def first_number(self) -> int:
        """The number of its first record, from 0; lost records before it count."""
        assert self._first is not None
        return self._first[0] - 1

    @property
    def written(self) -> int:
        """The number of records from its first to its last one."""
        return self._last[0] - self.first_number

    @property
    def unread(self) -> int:
        """The number of them that are new, by their sequence numbers."""
        return self._last[0] - max(self._sequence, self.first_number)

    @property
    def end(self) -> int:
        """The number, in the whole run, of the complete step that would follow its last."""
        assert self._base is not None
        return self._base + max(0, self._sequence - self.first_number) - self._incomplete

    @property
    def life(self) -> ProcessSpan:
        """From its first record to the last that is on disk."""
        assert self._first is not None
        return ProcessSpan(self.rank, self._first[1], self._last[1])

    # Reading

    def read(self, base: int, grid: Grid) -> None:
        """Adds what is new; its first record is complete step `base` of the run, from 0."""
        if base != self._base or self.buckets.grid.buckets != grid.buckets:
            self._forget(grid)
            self._base = base
        while self.buckets.grid.length < grid.length:
            self.buckets.coarsen()
        try:
            if not self._segments:
                self._add_blocks()
            for number in sorted(self._paths):
                if not self._segments or number >= max(self._segments):
                    self._read_segment(number)
        except SegmentGone:
            self._base = None  # all over again
            raise

    def _add_blocks(self) -> None:
        blocks = self._blocks()
        if len(blocks):
            self.buckets.add_blocks(blocks, self._block_index(blocks))
            self._sequence = int(blocks[-1]["first_step"] + blocks[-1]["steps"])
            self._incomplete = int((blocks["steps"] - blocks["complete_steps"]).sum())
            self._incomplete_wall_ns = int(blocks["incomplete_wall_ns"].sum())
            self._compile_ns = int(blocks["compile_ns_sum"].sum())

    def _block_index(self, blocks: npt.NDArray[Any]) -> Ints:
        """Returns the number, in the run, of each block's first complete step."""
        assert self._base is not None
        incomplete = blocks["steps"] - blocks["complete_steps"]
        before: Ints = np.cumsum(incomplete) - incomplete
        return np.asarray(self._base + blocks["first_step"] - self.first_number - before)

    def _read_segment(self, number: int) -> None:
        with _opened(self._paths[number]) as descriptor:
            segment = self._segments.get(number) or self._begin_segment(number, descriptor)
            if segment is None:
                return
            held = segment.records(descriptor)
            segment.read = min(segment.read, held)  # a full disk made the agent cut its last write
            for steps in segment.chunks(descriptor, segment.read, held):
                segment.read += len(steps)
                self._take(steps, segment)

    def _begin_segment(self, number: int, descriptor: int) -> _Segment | None:
        found = _segment(self._paths[number], descriptor)
        if found is not None:
            found.incomplete = self._incomplete
            self._segments[number] = found
        return found

    def _take(self, steps: npt.NDArray[Any], segment: _Segment) -> None:
        is_new = steps["sequence"] > self._sequence
        steps = old_formats.sound_steps(steps if is_new.all() else steps[is_new])
        if not len(steps):
            return
        complete, index, incomplete = self._numbered(steps, self._incomplete)
        self._sequence, self._incomplete = int(steps["sequence"][-1]), incomplete
        if len(complete) < len(steps) or self._sequence != segment.first + segment.read - 1:
            segment.is_plain = False
            self._incomplete_wall_ns += _positive_sum(steps[is_incomplete(steps)]["wall_ns"])
        if len(complete):
            self._compile_ns += _positive_sum(complete["compile_ns"])
            self._last_step = complete[-1:].copy()  # the chunk's memory is used again
        self.buckets.add_steps(complete, index)

    def _numbered(
        self, steps: npt.NDArray[Any], incomplete: int
    ) -> tuple[npt.NDArray[Any], Ints, int]:
        """Returns the complete steps, their numbers in the run, and the number of incomplete ones
        so far."""
        assert self._base is not None
        index = step_numbers(steps, incomplete) + (self._base - self.first_number)
        odd = is_incomplete(steps)
        if not odd.any():
            return steps, index, incomplete
        return steps[~odd], index[~odd], incomplete + int(np.count_nonzero(odd))

    # All of it in few records

    @property
    def has_steps(self) -> bool:
        """Whether a complete step was read, and its files are still there."""
        return bool(len(self._last_step) and self._paths)

    def head(self) -> RingHead:
        """Returns who writes its newest file, and its counters; raises UnreadableRecords, and
        SegmentGone."""
        path = self._paths[max(self._paths)]
        with _opened(path) as descriptor:
            return parse_head(os.pread(descriptor, _HEAD_BYTES, 0), path)

    def totals(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns one block of all records that were read but the last complete step, and that
        step. Of a block's fields it has the sums of `SUMMED` and of compiling."""
        assert self._first is not None
        last, block = self._last_step, np.zeros(1, BLOCK_DTYPE)
        sequence = int(last["sequence"][0])
        complete = round(self.buckets.steps.sum()) - 1
        if not complete and not self._incomplete:
            return block[:0], last
        block["first_step"], block["start_ns"] = self.first_number, self._first[1]
        block["steps"] = sequence - 1 - self.first_number
        block["complete_steps"] = complete
        block["incomplete_wall_ns"] = self._incomplete_wall_ns
        for name, total, times in zip(
            SUMMED, self.buckets.sums.sum(axis=0), self.buckets.counts.sum(axis=0), strict=True
        ):
            own = int(last[name][0])
            is_measured = own != record_layout.NOT_MEASURED
            block[f"{name}_sum"] = round(total) - (own if is_measured else 0)
            block[f"{name}_count"] = round(times) - is_measured
        block["compile_ns_sum"] = self._compile_ns - _positive_sum(last["compile_ns"])
        return block, last

    def add_range(self, into: Buckets) -> None:
        """Adds the steps that lie on a finer grid, from the files."""
        assert self._base is not None
        oldest = min(self._segments, default=None)
        if oldest is None or self._index_of(oldest) > into.grid.first:
            blocks = self._blocks()
            into.add_blocks(blocks, self._block_index(blocks))
        numbers = sorted(self._segments)
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            begin = self._index_of(number)
            end = self.end if following is None else self._index_of(following)
            if begin < into.grid.end and end > into.grid.first:
                self._add_part(into, self._segments[number], begin)

    def _index_of(self, number: int) -> int:
        """Returns the number, in the run, of a segment's first complete step."""
        assert self._base is not None
        segment = self._segments[number]
        return self._base + segment.first - 1 - self.first_number - segment.incomplete

    def _add_part(self, into: Buckets, segment: _Segment, begin: int) -> None:
        place, end, incomplete = 0, segment.read, segment.incomplete
        if segment.is_plain:  # so that it is known where the steps lie
            place, end = max(0, into.grid.first - begin), min(end, into.grid.end - begin)
        with _opened(segment.path) as descriptor:
            for steps in segment.chunks(descriptor, place, end):
                sound = old_formats.sound_steps(steps)
                complete, index, incomplete = self._numbered(sound, incomplete)
                into.add_steps(complete, index)

    def _blocks(self) -> npt.NDArray[Any]:
        """Returns the merged steps without those that a segment still holds."""
        files = block_files(self._folder, self.stem)
        for version in sorted(files, reverse=True):
            try:
                blocks = old_formats.read_blocks(read_regular(files[version]), version)
                blocks = old_formats.sound_blocks(blocks)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(files[version], error) from None
            oldest = _record(self._paths[min(self._paths)], 0)
            if oldest is not None:
                blocks = blocks[blocks["first_step"] < int(oldest["sequence"]) - 1]
            return blocks
        return np.empty(0, BLOCK_DTYPE)


def _positive_sum(values: npt.NDArray[Any]) -> int:
    """Returns the sum of what was measured."""
    return int(np.maximum(values, 0).sum())


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = open_records(path)
    except FileNotFoundError:
        raise SegmentGone(path) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _segment(path: Path, descriptor: int) -> _Segment | None:
    """Returns a file of step records with its head; `None` while it holds none."""
    content = os.pread(descriptor, _HEAD_BYTES, 0)
    if not content:
        return None
    head = parse_head(content, path)
    segment = _Segment(path, head.version, head.size, first=0, incomplete=0)
    first = segment.steps(descriptor, 0, 1)
    if not len(first):
        return None
    segment.first = int(first[0]["sequence"])
    return segment


def _record(path: Path, place: int) -> npt.NDArray[Any] | None:
    """Returns the first (0) or last (-1) sound record of a file; `None` where it holds none."""
    with _opened(path) as descriptor:
        segment = _segment(path, descriptor)
        held = 0 if segment is None else segment.records(descriptor)
        if segment is None or not held:
            return None
        found = old_formats.sound_steps(segment.steps(descriptor, place % held, 1))
        if not len(found):  # it is damaged: one of its neighbours will do
            first = 0 if place == 0 else max(0, held - CHUNK_STEPS)
            found = old_formats.sound_steps(segment.steps(descriptor, first, CHUNK_STEPS))
        return found[place] if len(found) else None
