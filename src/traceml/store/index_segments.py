"""A segment of the run index: the columns of some thousand runs, in one file that never changes.

A file holds a mark of its format, a head (the runs, the versions of their files, and where each
column lies) and the columns. A column is read when a query needs it.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from traceml.model.run_values import RunValue
from traceml.store.folder_versions import FileVersion
from traceml.store.index_columns import (
    Column,
    ColumnBuilder,
    DamagedIndex,
    Mask,
    StoredColumn,
    decode_column,
    encode_column,
    join_columns,
)
from traceml.store.regular_files import open_regular

MARK = b"TraceML runs 1\n\0"
_LENGTHS = struct.Struct("<QI")
MAX_HEAD_BYTES = 1 << 30
MAX_ROWS = 4096
"""Runs in one segment: building it takes 250 MB with 4,600 numbers per run."""


class IndexSegment(Protocol):
    """Some runs, their file versions, and their columns."""

    names: Sequence[str]
    versions: Sequence[FileVersion]

    @property
    def keys(self) -> Collection[str]:
        """The keys of the columns."""

    def column(self, key: str) -> Column | None:
        """Returns a column; `None` where none of these runs has it."""


class MemorySegment:
    """A segment that is in memory alone: just read, or not to be written."""

    def __init__(
        self,
        names: Sequence[str],
        versions: Sequence[FileVersion],
        columns: Mapping[str, Column],
    ) -> None:
        self.names = names
        self.versions = versions
        self._columns = columns

    @property
    def keys(self) -> Collection[str]:
        """The keys of the columns."""
        return self._columns.keys()

    def column(self, key: str) -> Column | None:
        """Returns a column; `None` where none of these runs has it."""
        return self._columns.get(key)


class SegmentBuilder:
    """Collects runs, one by one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._versions: list[FileVersion] = []
        self._columns: dict[str, ColumnBuilder] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def keys(self) -> Collection[str]:
        """The keys of the columns so far."""
        return self._columns.keys()

    def add(self, name: str, version: FileVersion, values: Mapping[str, RunValue]) -> None:
        """Adds a run with its values by key."""
        row = len(self._names)
        self._names.append(name)
        self._versions.append(version)
        for key, value in values.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = ColumnBuilder()
            column.add(row, value)

    def segment(self) -> MemorySegment:
        """Returns what was collected."""
        rows = len(self._names)
        columns = {key: builder.column(rows) for key, builder in self._columns.items()}
        return MemorySegment(self._names, self._versions, columns)


class _SegmentHead(msgspec.Struct):
    names: list[str]
    versions: list[FileVersion]
    columns: list[StoredColumn]


_HEAD = msgspec.msgpack.Decoder(_SegmentHead)


class FileSegment:
    """A segment on disk; the file stays open as long as anybody has this record of it, so that
    another process may remove it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is no such file, DamagedIndex where it is something else."""
        self.path = path
        self._descriptor = open_regular(path)
        weakref.finalize(self, os.close, self._descriptor)
        head, self._data = self._read_head()
        self.names: Sequence[str] = head.names
        self.versions: Sequence[FileVersion] = head.versions
        self._columns = {column.key: column for column in head.columns}

    def _read_head(self) -> tuple[_SegmentHead, int]:
        size = os.fstat(self._descriptor).st_size
        first = len(MARK) + _LENGTHS.size
        start = os.pread(self._descriptor, first, 0)
        if len(start) < first or not start.startswith(MARK):
            raise DamagedIndex(f"{self.path} is no segment of this format")
        length, checksum = _LENGTHS.unpack(start[len(MARK) :])
        if length > min(MAX_HEAD_BYTES, size):
            raise DamagedIndex(f"{self.path} is cut short")
        content = os.pread(self._descriptor, length, first)
        if zlib.crc32(content) != checksum:
            raise DamagedIndex(f"the head of {self.path} is damaged")
        try:
            head = _HEAD.decode(content)
        except msgspec.MsgspecError as error:
            raise DamagedIndex(f"the head of {self.path} is damaged") from error
        last = max((each.offset + each.size for each in head.columns), default=0)
        if first + length + last > size or len(head.names) != len(head.versions):
            raise DamagedIndex(f"{self.path} is cut short")
        return head, first + length

    @property
    def keys(self) -> Collection[str]:
        """The keys of the columns."""
        return self._columns.keys()

    def column(self, key: str) -> Column | None:
        """Returns a column; raises DamagedIndex where it is not what was written."""
        stored = self._columns.get(key)
        if stored is None:
            return None
        content = os.pread(self._descriptor, stored.size, self._data + stored.offset)
        return decode_column(stored, content, len(self.names))


def write_segment(path: Path, segment: IndexSegment) -> None:
    """Writes a segment to a new file; raises OSError."""
    stored: list[StoredColumn] = []
    contents: list[bytes] = []
    offset = 0
    for key in segment.keys:
        column = segment.column(key)
        if column is not None:
            entry, content = encode_column(key, column, offset)
            stored.append(entry)
            contents.append(content)
            offset += len(content)
    head = msgspec.msgpack.encode(_SegmentHead(list(segment.names), list(segment.versions), stored))
    with path.open("xb") as file:
        file.write(MARK + _LENGTHS.pack(len(head), zlib.crc32(head)) + head)
        file.writelines(contents)


def merge_segments(parts: Sequence[tuple[IndexSegment, Mask]]) -> MemorySegment:
    """Returns the chosen runs of several segments as one."""
    names: list[str] = []
    versions: list[FileVersion] = []
    for segment, mask in parts:
        for row in np.flatnonzero(mask).tolist():
            names.append(segment.names[row])
            versions.append(segment.versions[row])
    keys = dict.fromkeys(key for segment, _ in parts for key in segment.keys)
    return MemorySegment(names, versions, dict(_merged_columns(keys, parts)))


def _merged_columns(
    keys: Collection[str], parts: Sequence[tuple[IndexSegment, Mask]]
) -> Iterator[tuple[str, Column]]:
    for key in keys:
        column = join_columns([(segment.column(key), mask) for segment, mask in parts])
        if column.mask("present", ()).any():
            yield key, column
