"""The index of runs: a cache of what the run folders hold, for lists and queries of many runs.

The run folders are the truth. The index holds the same in columns (`store/index_segments.py`) and
can be deleted at any time: what is missing, damaged, out of date or of another version is read from
the folders again. A run is read again when its folder or its summary has changed; a run that is in
progress, or was written a moment ago, is read every time and never kept on disk.

Files never change once they are written; the head, which names them, is replaced. One process
writes at a time; one that does not get the lock soon works with what it read by itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from traceml.model.errors import RunNotFound, TraceMLError
from traceml.model.run_values import RunValue
from traceml.store.folder import PRIVATE, write_atomically
from traceml.store.folder_versions import FileVersion, is_settled, scan_runs
from traceml.store.index_columns import DamagedIndex, Mask
from traceml.store.index_segments import (
    MAX_ROWS,
    FileSegment,
    IndexSegment,
    MemorySegment,
    SegmentBuilder,
    merge_segments,
    write_segment,
)
from traceml.store.regular_files import read_regular
from traceml.store.run_table import RunTable

FORMAT = 1
HEAD = "index.json"
SEGMENT_SUFFIX = ".runs"
LOCK_TIMEOUT_S = 10.0
"""How long to wait for another process that updates the index."""
MAX_HEAD_BYTES = 16 << 20
ABANDONED_S = 600.0
"""A segment that no head names for this long belongs to a writer that died."""
MERGE_RATIO = 4
"""An earlier segment is merged with a new one unless it is so many times larger."""
MAX_COLUMNS = 65_536
"""Names of parameters and metrics in one segment; a script that puts the step's number into a
name makes a new one every step."""
LEFT_OUT = "facts.names_not_indexed"
"""How many of a run's names had no room."""
MAX_MEMORY_SEGMENTS = 16

UNSETTLED: FileVersion = ()
"""The version of a run that is read every time."""


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """What one run has for the index."""

    values: Mapping[str, RunValue]
    """By key; facts first."""
    is_final: bool
    """Whether it stays as it is until its files change; not so while the run is in progress."""


ReadRun = Callable[[Path], IndexedRun]
"""Reads a run folder; raises RunNotFound where it is none, TraceMLError or OSError where it cannot
be read."""
Progress = Callable[[int, int], None]
"""Is told how many of how many runs have been read."""


class _IndexHead(msgspec.Struct):
    """What `index.json` says."""

    format: int
    schema: str
    """The version of what `ReadRun` returns."""
    segments: list[str]


class RunIndex:
    """The runs under a logs folder. Not for several threads at once."""

    def __init__(self, logs: Path, read: ReadRun, schema: str, folder: Path | None = None) -> None:
        """Without `folder`, the index is in the logs folder or, where that may not be written to,
        in the user's cache folder."""
        self._logs = logs
        self._read_run = read
        self._schema = schema
        self._folder = folder or index_folder(logs)
        self._head_version: FileVersion | None = None
        self._stored: list[FileSegment] = []
        self._memory: list[IndexSegment] = []
        """What is newer than the files, or is not to be written."""
        self._found: dict[str, FileVersion] = {}
        self._scan_notes: tuple[str, ...] = ()
        self._problems: dict[str, str] = {}
        self._table: RunTable | None = None

    def refresh(self, progress: Progress | None = None) -> RunTable:
        """Returns the runs as they are now; reads those that have changed."""
        has_loaded = self._load()
        scanned = scan_runs(self._logs)
        found = scanned.versions
        changed = self._changed(found)
        is_same = found == self._found and scanned.notes == self._scan_notes
        if not changed and not has_loaded and is_same and self._table is not None:
            return self._table
        if changed:
            with self._writing() as may_write:
                if may_write and self._load():
                    changed = self._changed(found)
                self._read_changed(changed, found, may_write, progress)
        self._found, self._scan_notes = found, scanned.notes
        self._table = self._make_table()
        return self._table

    def rebuild(self) -> None:
        """Forgets everything, also on disk: the next refresh reads all runs."""
        self._stored, self._head_version, self._table = [], None, None
        self._memory, self._found = [], {}
        self._remove_head()

    def _remove_head(self) -> None:
        with contextlib.suppress(OSError):
            (self._folder / HEAD).unlink(missing_ok=True)

    # What is on disk

    def _load(self) -> bool:
        """Opens the segments that the head names; returns whether they are others than before.

        Another process may replace files between reading the head and opening them: then the new
        head is read. A damaged index is as good as none.
        """
        for _ in range(5):
            try:
                version = _head_version(self._folder / HEAD)
                if version == self._head_version:
                    return False
                self._open(self._read_head())
                self._head_version = version
                return True
            except FileNotFoundError:
                continue
            except (DamagedIndex, OSError):
                break
        had_segments = bool(self._stored)
        self._stored, self._head_version = [], None
        return had_segments

    def _read_head(self) -> list[str]:
        try:
            content = read_regular(self._folder / HEAD, max_bytes=MAX_HEAD_BYTES)
            head = msgspec.json.decode(content, type=_IndexHead)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DamagedIndex(f"{self._folder / HEAD} is damaged") from error
        names = head.segments
        is_known = head.format == FORMAT and head.schema == self._schema
        if not is_known or any("/" in name or name.startswith(".") for name in names):
            raise DamagedIndex(f"{self._folder / HEAD} is of another version")
        return names

    def _open(self, names: Sequence[str]) -> None:
        opened = {segment.path.name: segment for segment in self._stored}
        self._stored = [
            opened[name] if name in opened else FileSegment(self._folder / name) for name in names
        ]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[bool]:
        """Locks the index for writing; yields whether it may be written to."""
        lock = self._lock()
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _lock(self) -> int | None:
        try:
            self._folder.mkdir(PRIVATE, parents=True, exist_ok=True)
            descriptor = os.open(
                self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError:
            return None
        patience_until_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    return descriptor  # no locks here: heads are replaced whole, so none is mixed
                if time.monotonic() > patience_until_s:
                    os.close(descriptor)
                    return None
                time.sleep(0.02)

    def _changed(self, found: Mapping[str, FileVersion]) -> list[str]:
        known: dict[str, FileVersion] = {}
        for segment in self._segments:
            known.update(zip(segment.names, segment.versions, strict=True))
        return [name for name, version in found.items() if known.get(name) != version]

    @property
    def _segments(self) -> list[IndexSegment]:
        return [*self._stored, *self._memory]

    # Reading what has changed

    def _read_changed(
        self,
        changed: Sequence[str],
        found: dict[str, FileVersion],
        may_write: bool,
        progress: Progress | None,
    ) -> None:
        """Reads runs and adds them; what is complete is on disk even if this is interrupted."""
        settled, unsettled = SegmentBuilder(), SegmentBuilder()
        self._forget(set(changed))
        for place, name in enumerate(changed):
            entry = self._entry(name)
            if entry is None:
                found.pop(name, None)
                continue
            is_kept = entry.is_final and is_settled(found[name])
            builder = settled if is_kept else unsettled
            values = self._within_limit(entry.values, builder)
            builder.add(name, found[name] if is_kept else UNSETTLED, values)
            if len(settled) == MAX_ROWS:
                self._add(settled.segment(), may_write)
                settled = SegmentBuilder()
            if progress is not None:
                progress(place + 1, len(changed))
        if len(settled):
            self._add(settled.segment(), may_write)
        if len(unsettled):
            self._memory.append(unsettled.segment())
        self._merge_memory()

    def _entry(self, name: str) -> IndexedRun | None:
        self._problems.pop(name, None)
        try:
            return self._read_run(self._logs / name)
        except RunNotFound:
            return None
        except (TraceMLError, OSError) as error:
            self._problems[name] = str(error)
            return None

    def _within_limit(
        self, values: Mapping[str, RunValue], builder: SegmentBuilder
    ) -> Mapping[str, RunValue]:
        """Returns the values whose names have room in the segment; facts always do."""
        new = [key for key in values if key not in builder.keys and not key.startswith("facts.")]
        room = MAX_COLUMNS - len(builder.keys)
        if len(new) <= room:
            return values
        left_out = set(new[max(0, room) :])
        kept = {key: value for key, value in values.items() if key not in left_out}
        return {**kept, LEFT_OUT: len(left_out)}

    def _forget(self, names: set[str]) -> None:
        """Forgets what is in memory of runs that are read again, and which therefore is older than
        any file."""
        kept = []
        for segment in self._memory:
            mask = np.array([name not in names for name in segment.names])
            if mask.any():
                kept.append(segment if mask.all() else merge_segments([(segment, mask)]))
        self._memory = kept

    def _merge_memory(self) -> None:
        if len(self._memory) > MAX_MEMORY_SEGMENTS:
            parts = [(segment, np.ones(len(segment.names), bool)) for segment in self._memory]
            self._memory = [merge_segments(parts)]

    # Writing

    def _add(self, segment: MemorySegment, may_write: bool) -> None:
        """Adds runs that were read: to the files, or where that is impossible to memory."""
        if may_write:
            try:
                self._write(segment)
                return
            except DamagedIndex:
                self._remove_head()  # the next refresh reads everything again
            except OSError:
                pass  # a full disk
        self._memory.append(segment)

    def _write(self, new: MemorySegment) -> None:
        """Writes a segment, together with earlier ones that are small or mostly replaced."""
        newer = set(new.names)
        masks = self._masks(self._stored, newer)
        kept: list[FileSegment] = []
        merged: list[tuple[IndexSegment, Mask]] = []
        rows = len(new.names)
        for segment, mask in reversed(list(zip(self._stored, masks, strict=True))):
            current = int(mask.sum())
            is_small = current <= MERGE_RATIO * rows or 2 * current < len(segment.names)
            if current == 0 or (is_small and rows + current <= MAX_ROWS):
                if current:
                    merged.append((segment, mask))
                rows += current
            else:
                kept.append(segment)
        merged = [*reversed(merged), (new, np.ones(len(new.names), bool))]
        written = self._write_file(new if len(merged) == 1 else merge_segments(merged))
        names = [*(segment.path.name for segment in reversed(kept)), written.name]
        head = _IndexHead(FORMAT, self._schema, names)
        write_atomically(self._folder / HEAD, msgspec.json.encode(head))
        self._open(names)
        self._head_version = _head_version(self._folder / HEAD)
        self._remove_unused(set(names))

    def _write_file(self, segment: MemorySegment) -> Path:
        path = self._folder / f"{os.getpid()}-{os.urandom(6).hex()}{SEGMENT_SUFFIX}"
        try:
            write_segment(path, segment)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _remove_unused(self, used: set[str]) -> None:
        """Removes the files that no head names any more; a reader that has one open keeps it."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(SEGMENT_SUFFIX) and entry.name not in used:
                    own = entry.name.startswith(f"{os.getpid()}-")
                    age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if own or age_s > ABANDONED_S:
                        (self._folder / entry.name).unlink(missing_ok=True)

    # The table

    def _make_table(self) -> RunTable:
        segments = self._segments
        masks = self._masks(segments, set(), self._found)
        parts = list(zip(segments, masks, strict=True))
        return RunTable(parts, [*self._scan_notes, *self._problem_notes(), *_room_notes(parts)])

    def _masks(
        self,
        segments: Sequence[IndexSegment],
        replaced: set[str],
        found: Mapping[str, FileVersion] | None = None,
    ) -> list[Mask]:
        """Returns which rows of each segment count: of several of one name the last, if the run
        is still there."""
        seen = set(replaced)
        masks: list[Mask] = []
        for segment in reversed(segments):
            mask = np.zeros(len(segment.names), bool)
            for row in range(len(segment.names) - 1, -1, -1):
                name = segment.names[row]
                if name not in seen and (found is None or name in found):
                    seen.add(name)
                    mask[row] = True
            masks.append(mask)
        return masks[::-1]

    def _problem_notes(self) -> Iterator[str]:
        return (self._problems[name] for name in sorted(self._problems))


def _room_notes(parts: Sequence[tuple[IndexSegment, Mask]]) -> Iterator[str]:
    """Yields what is to be said of names that had no room."""
    names, count = [], 0
    for segment, mask in parts:
        column = segment.column(LEFT_OUT)
        if column is not None:
            rows = np.flatnonzero(mask & column.mask("present", ()))
            names += [segment.names[row] for row in rows.tolist()]
            count += sum(number for number in column.read(rows) if isinstance(number, int))
    if names:
        yield (
            f"{count:,} names of parameters and metrics cannot be queried: there is room for "
            f"{MAX_COLUMNS:,} in {MAX_ROWS:,} runs (left out of {names[0]} and "
            f"{len(names) - 1:,} other runs); log fewer names, such as none with a step's number"
        )


def index_folder(logs: Path) -> Path:
    """Returns where the index of a logs folder is kept: in it, one per user; where it cannot be
    written to, in the user's cache folder."""
    place = logs / f".traceml-index-{os.getuid()}"
    if _is_own_folder(place) or (os.access(logs, os.W_OK) and not os.path.lexists(place)):
        return place
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    digest = hashlib.sha256(os.fsencode(logs.resolve())).hexdigest()[:16]
    return Path(cache) / "traceml" / f"index-{digest}"


def _is_own_folder(path: Path) -> bool:
    """Returns whether a folder is this user's: others may write to the logs folder, too, and what
    they put there is not believed."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _head_version(path: Path) -> FileVersion | None:
    """Returns the version of the head; `None` where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
