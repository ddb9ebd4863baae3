"""The mapped file into which a rank writes its events and messages.

It lives on tmpfs where there is one: a store into a mapped disk page can block for as long as
that page is being written back. Its blocks are reserved before it is mapped, because a store into
a hole on a full disk is a SIGBUS that kills training.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.trace.interruptions import is_interruption

REGION_CAPACITY = 64
SIZES = ((1 << 17, 4096), (1 << 14, 512))
"""Event and message slots, the largest that fits: 5.2 MB, or 0.8 MB where memory is tight. The
numbers of events are powers of two."""
STATE_BYTES = 1 << 16
"""Room for the state of whoever makes steps of the events."""
SPARE_BYTES = 8 << 20
"""What a ring must leave free on a shared tmpfs: a DataLoader's workers need it too."""

_pack_identity = record_layout.packer(record_layout.IDENTITY).pack_into
_pack_message = record_layout.packer(record_layout.MESSAGE).pack_into
_pack_region = record_layout.packer(record_layout.REGION).pack_into
_pack_count = record_layout.packer([("", "Q")]).pack_into
_unpack_count = record_layout.packer([("", "Q")]).unpack_from
_pack_text = record_layout.packer([("", "256s")]).pack_into

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""All pages at once, where Linux can: later none of them costs a step a fault."""


def _counter(name: str) -> int:
    return record_layout.COUNTERS_OFFSET + record_layout.offset_of(record_layout.COUNTERS, name)


_MESSAGE_BYTES = record_layout.MESSAGE_BYTES
_PAYLOAD_BYTES = record_layout.MESSAGE_PAYLOAD_BYTES
_MESSAGES_WRITTEN = _counter("messages_written")
_REGIONS_USED = _counter("regions_used")
_ENDED = _counter("ended")
_FAILURES = _counter("failures")
_REGIONS_DROPPED = _counter("regions_dropped")
_LAST_FAILURE = _counter("last_failure")
_MESSAGES_DROPPED = _counter("messages_dropped")
_LOADER_WORKERS = _counter("loader_workers")
_LOADER_PINNED = _counter("loader_pinned")
_RECORDING_ENDED = _counter("recording_ended")
_FIRST_EVENT = _counter("first_event")
_STEP_LIMIT = _counter("step_limit")


class Ring:
    """The writing end of one rank's ring; the reading end is `store`'s."""

    def __init__(self, path: Path, mapping: mmap.mmap, events: int, messages: int) -> None:
        self.path = path
        self._map = mapping
        self.event_capacity = events
        self._messages = messages
        self._message_base = record_layout.message_slots_offset(REGION_CAPACITY, 0)
        self.state_base = record_layout.state_slots_offset(REGION_CAPACITY, 0, messages)
        self.event_base = record_layout.event_slots_offset(
            REGION_CAPACITY, 0, messages, STATE_BYTES
        )
        self.longest_message = messages // 4 * record_layout.MESSAGE_PAYLOAD_BYTES
        """In bytes: a quarter of the ring, so that no message evicts itself."""
        self._regions_used = 0
        self._regions_dropped = 0
        self._failures = 0
        self._messages_dropped = 0
        self._limit_reached = False
        self.first_event = 0
        """The number of the first event in it."""

    @property
    def mapping(self) -> mmap.mmap:
        """The whole file: events are packed into it without a call in between."""
        return self._map

    def identify(self, rank: Rank) -> None:
        """Write who this is; done again when the rank's place in the job becomes known."""
        _pack_identity(
            self._map,
            0,
            record_layout.MAGIC,
            record_layout.VERSION,
            record_layout.BYTE_ORDER_MARK,
            record_layout.HEADER_BYTES,
            REGION_CAPACITY,
            record_layout.STEP_BYTES,
            0,
            record_layout.MESSAGE_BYTES,
            self._messages,
            rank.pid,
            rank.rank,
            rank.local_rank,
            rank.world_size,
            rank.local_world_size,
            rank.node_rank,
            rank.monotonic_ns,
            rank.unix_ns,
            record_layout.NOT_MEASURED
            if rank.device_total_bytes is None
            else rank.device_total_bytes,
            rank.device.encode()[:32],
            rank.device_name.encode()[:64],
            rank.hostname.encode()[:64],
            rank.process_unix_ns,
            rank.device_uuid.encode()[:48],
            record_layout.EVENT_BYTES,
            self.event_capacity,
            STATE_BYTES,
        )

    def begin_events(self, first: int, step_limit: int) -> None:
        """Say which event is the first in the ring, and how many steps are asked for (0: all)."""
        self.first_event = first
        _pack_count(self._map, _FIRST_EVENT, first)
        _pack_count(self._map, _STEP_LIMIT, step_limit)

    @property
    def message_place(self) -> tuple[int, int, int]:
        """Where the slots of messages begin, how many there are, and where those written are
        counted."""
        return self._message_base, self._messages, _MESSAGES_WRITTEN

    def write_message(self, payload: bytes) -> None:
        """Append a message, in as many pieces as it takes.

        The count in the file is the only one, since `recorder.c` writes messages too.
        """
        mapping, (number,) = self._map, _unpack_count(self._map, _MESSAGES_WRITTEN)
        for start in range(0, len(payload), _PAYLOAD_BYTES):
            piece = payload[start : start + _PAYLOAD_BYTES]
            slot = self._message_base + number % self._messages * _MESSAGE_BYTES
            more = start + _PAYLOAD_BYTES < len(payload)
            number += 1
            _pack_message(mapping, slot, len(piece), more, piece, number)
        _pack_count(mapping, _MESSAGES_WRITTEN, number)

    def open_region(self) -> int | None:
        """Reserve a line of the region table; `None` when it is full (the loss is counted)."""
        if self._regions_used >= REGION_CAPACITY:
            self._regions_dropped += 1
            _pack_count(self._map, _REGIONS_DROPPED, self._regions_dropped)
            return None
        self._regions_used += 1
        return self._regions_used - 1

    def write_region(self, line: int, name: bytes, *totals: int) -> None:
        """Bring a region's totals up to date."""
        offset = record_layout.region_table_offset() + line * record_layout.REGION_BYTES
        _pack_region(self._map, offset, name, *totals)
        _pack_count(self._map, _REGIONS_USED, self._regions_used)

    def note_loader(self, workers: int, pinned: bool) -> None:
        """Write down how many workers the training loader has, and whether it pins batches."""
        _pack_count(self._map, _LOADER_WORKERS, workers + 1)
        _pack_count(self._map, _LOADER_PINNED, 2 if pinned else 1)

    def count_failure(self, text: str) -> None:
        """Count an exception of our own and keep its text."""
        self._failures += 1
        _pack_count(self._map, _FAILURES, self._failures)
        _pack_text(self._map, _LAST_FAILURE, text.encode(errors="replace")[:256])

    def count_dropped(self, count: int = 1) -> None:
        """Count logged values that could not be kept."""
        self._messages_dropped += count
        _pack_count(self._map, _MESSAGES_DROPPED, self._messages_dropped)

    def mark_recording_ended(self) -> None:
        """Say that no further step will come, though the process may go on."""
        if not self._limit_reached:
            _pack_count(self._map, _RECORDING_ENDED, 1)

    def mark_limit_reached(self) -> None:
        """Say that as many steps are recorded as were asked for."""
        self._limit_reached = True
        _pack_count(self._map, _RECORDING_ENDED, record_layout.LIMIT_REACHED)

    def mark_ended(self) -> None:
        """Say that the process ended by itself."""
        _pack_count(self._map, _ENDED, 1)

    def close(self) -> None:
        """Unmap; the file stays for whoever drains it."""
        self._map.close()


def create(folders: Iterable[Path], name: str) -> Ring:
    """Make a ring in the first folder that has room for one.

    Raises the last OSError when none has.
    """
    problem: OSError = OSError(errno.ENOENT, "no folder for a ring was given")
    for folder in folders:
        for events, messages in SIZES:
            try:
                return _create_sized(folder / name, events, messages)
            except OSError as error:
                if is_interruption(error):
                    raise
                problem = error
    raise problem


def _create_sized(path: Path, events: int, messages: int) -> Ring:
    size = record_layout.ring_bytes(REGION_CAPACITY, 0, messages, STATE_BYTES, events)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _require_space(path.parent, size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _reserve(descriptor, size)
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED | _POPULATE)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return Ring(path, mapping, events, messages)


def _require_space(folder: Path, size: int) -> None:
    free: Any = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < size + SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"less than {size + SPARE_BYTES} bytes free", str(folder))


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks now; a failed attempt leaves nothing behind."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 16)  # macOS has no posix_fallocate: writing the zeros reserves as well
    for start in range(0, size, len(zeros)):
        os.pwrite(descriptor, zeros[: size - start], start)
