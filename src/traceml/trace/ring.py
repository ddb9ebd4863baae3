"""The mapped file into which a rank writes its records.

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

from traceml.model import layout
from traceml.model.rank import Rank
from traceml.trace.interruptions import is_interruption

REGION_CAPACITY = 64
SIZES = ((12288, 4096), (2048, 512))
"""Step and message slots, the largest that fits: about 4 MB, or 0.6 MB where memory is tight."""
SPARE_BYTES = 8 << 20
"""What a ring must leave free on a shared tmpfs: a DataLoader's workers need it too."""

_pack_identity = layout.packer(layout.IDENTITY).pack_into
_pack_step = layout.packer(layout.STEP).pack_into
_pack_gpu = layout.packer([("", "q")] * len(layout.GPU_FIELDS)).pack_into
_pack_message = layout.packer(layout.MESSAGE).pack_into
_pack_region = layout.packer(layout.REGION).pack_into
_pack_count = layout.packer([("", "Q")]).pack_into
_pack_text = layout.packer([("", "256s")]).pack_into

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""All pages at once, where Linux can: later none of them costs a step a fault."""

_GPU_OFFSET = layout.offset_of(layout.STEP, layout.GPU_FIELDS[0])


def _counter(name: str) -> int:
    return layout.COUNTERS_OFFSET + layout.offset_of(layout.COUNTERS, name)


_STEPS_WRITTEN = _counter("steps_written")
_STEPS_FINAL = _counter("steps_final")
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


class Ring:
    """The writing end of one rank's ring; the reading end is `store`'s."""

    def __init__(self, path: Path, mapping: mmap.mmap, steps: int, messages: int) -> None:
        self.path = path
        self._map = mapping
        self._steps = steps
        self._messages = messages
        self._step_base = layout.step_slots_offset(REGION_CAPACITY)
        self._message_base = layout.message_slots_offset(REGION_CAPACITY, steps)
        self.longest_message = messages // 4 * layout.MESSAGE_PAYLOAD_BYTES
        """In bytes: a quarter of the ring, so that no message evicts itself."""
        self.steps_written = 0
        self._messages_written = 0
        self._regions_used = 0
        self._regions_dropped = 0
        self._failures = 0
        self._messages_dropped = 0
        self._limit_reached = False

    def identify(self, rank: Rank) -> None:
        """Write who this is; done again when the rank's place in the job becomes known."""
        _pack_identity(
            self._map,
            0,
            layout.MAGIC,
            layout.VERSION,
            layout.BYTE_ORDER_MARK,
            layout.HEADER_BYTES,
            REGION_CAPACITY,
            layout.STEP_BYTES,
            self._steps,
            layout.MESSAGE_BYTES,
            self._messages,
            rank.pid,
            rank.rank,
            rank.local_rank,
            rank.world_size,
            rank.local_world_size,
            rank.node_rank,
            rank.monotonic_ns,
            rank.unix_ns,
            layout.NOT_MEASURED if rank.device_total_bytes is None else rank.device_total_bytes,
            rank.device.encode()[:32],
            rank.device_name.encode()[:64],
            rank.hostname.encode()[:64],
            rank.process_unix_ns,
            rank.device_uuid.encode()[:48],
        )

    def write_step(self, *values: float) -> int:
        """Append a step (all fields of the layout but the sequence) and return its number."""
        number = self.steps_written
        slot = self._step_base + (number % self._steps) * layout.STEP_BYTES
        _pack_step(self._map, slot, *values, number + 1)
        self.steps_written = number + 1
        _pack_count(self._map, _STEPS_WRITTEN, number + 1)
        return number

    def fill_gpu_times(self, number: int, times: Iterable[int]) -> None:
        """Complete a step written before with what the GPU's clock said."""
        slot = self._step_base + (number % self._steps) * layout.STEP_BYTES
        _pack_gpu(self._map, slot + _GPU_OFFSET, *times)

    def mark_final(self, count: int) -> None:
        """Say that the first `count` steps will not change any more."""
        _pack_count(self._map, _STEPS_FINAL, count)

    def write_message(self, payload: bytes) -> None:
        """Append a message, in as many pieces as it takes."""
        size = layout.MESSAGE_PAYLOAD_BYTES
        for start in range(0, len(payload), size):
            piece = payload[start : start + size]
            number = self._messages_written
            slot = self._message_base + (number % self._messages) * layout.MESSAGE_BYTES
            more = int(start + size < len(payload))
            _pack_message(self._map, slot, len(piece), more, piece, number + 1)
            self._messages_written = number + 1
        _pack_count(self._map, _MESSAGES_WRITTEN, self._messages_written)

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
        offset = layout.region_table_offset() + line * layout.REGION_BYTES
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
        _pack_count(self._map, _RECORDING_ENDED, layout.LIMIT_REACHED)

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
        for steps, messages in SIZES:
            try:
                return _create_sized(folder / name, steps, messages)
            except OSError as error:
                if is_interruption(error):
                    raise
                problem = error
    raise problem


def _create_sized(path: Path, steps: int, messages: int) -> Ring:
    size = layout.ring_bytes(REGION_CAPACITY, steps, messages)
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
    return Ring(path, mapping, steps, messages)


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
