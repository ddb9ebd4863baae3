"""The reading end of a ring: copies what the tracer wrote, and tells what was overwritten.

A ring holds events, of which steps are made here (`ring_events`). Rings of earlier TraceMLs hold
steps.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.errors import UnreadableRecords
from traceml.model.rank import Rank, Region
from traceml.model.record_layout import StepFlag
from traceml.store.old_formats import MAX_MOMENT_NS, MAX_STEPS, STEPS_BY_VERSION
from traceml.store.records import STEP_DTYPE, dtype_of
from traceml.store.regular_files import open_regular
from traceml.store.ring_events import NO_PROGRESS, RingEvents, StepProgress

LAST_STEPS = 256
"""Enough to tell what a usual step takes, and how long its pauses are."""

_IDENTITY = record_layout.packer(record_layout.IDENTITY)
_IDENTITY_NAMES = tuple(name for name, _ in record_layout.IDENTITY)
_COUNTERS = record_layout.packer(record_layout.COUNTERS)
_COUNTER_NAMES = tuple(name for name, _ in record_layout.COUNTERS)
_REGION = record_layout.packer(record_layout.REGION)
_MESSAGE_DTYPE = dtype_of(record_layout.MESSAGE)
_RECORDING_ENDED = record_layout.COUNTERS_OFFSET + record_layout.offset_of(
    record_layout.COUNTERS, "recording_ended"
)


_MAX_RANKS = 1 << 20
_BOUNDS = {
    "rank": (0, _MAX_RANKS),
    "local_rank": (0, _MAX_RANKS),
    "world_size": (0, _MAX_RANKS),
    "local_world_size": (0, _MAX_RANKS),
    "node_rank": (0, _MAX_RANKS),
    "pid": (0, 1 << 32),
    "monotonic_ns": (0, MAX_MOMENT_NS),
    "unix_ns": (0, MAX_MOMENT_NS),
    "process_unix_ns": (0, MAX_MOMENT_NS),
}
"""What a head can say of its rank: lists as long as the world size are made of it."""


@dataclass(frozen=True, slots=True)
class RingHead:
    """The part of a ring or record file before its records."""

    version: int
    rank: Rank
    counters: dict[str, Any]
    regions: tuple[Region, ...]
    region_capacity: int
    step_capacity: int
    message_capacity: int
    event_capacity: int = 0
    state_bytes: int = 0

    @property
    def size(self) -> int:
        """Where the step records begin."""
        return record_layout.step_slots_offset(self.region_capacity)


def parse_head(content: bytes | mmap.mmap, where: Path) -> RingHead:
    """Read who wrote a ring or record file; raises UnreadableRecords."""
    if len(content) < record_layout.HEADER_BYTES:
        raise _damaged(
            where, f"{len(content)} bytes long, expected {record_layout.HEADER_BYTES} or more"
        )
    told = _IDENTITY.unpack_from(content, 0)
    fields: dict[str, Any] = dict(zip(_IDENTITY_NAMES, told, strict=True))
    _check(fields, where)
    head_bytes = record_layout.step_slots_offset(fields["region_capacity"])
    if len(content) < head_bytes:
        raise _damaged(where, f"{len(content)} bytes long, expected a head of {head_bytes} bytes")
    counted = _COUNTERS.unpack_from(content, record_layout.COUNTERS_OFFSET)
    counters = dict(zip(_COUNTER_NAMES, counted, strict=True))
    total = fields["device_total_bytes"]
    rank = Rank(
        rank=fields["rank"],
        local_rank=fields["local_rank"],
        world_size=fields["world_size"],
        local_world_size=fields["local_world_size"],
        node_rank=fields["node_rank"],
        pid=fields["pid"],
        monotonic_ns=fields["monotonic_ns"],
        unix_ns=fields["unix_ns"],
        device=_text(fields["device"]),
        device_name=_text(fields["device_name"]),
        hostname=_text(fields["hostname"]),
        process_unix_ns=fields["process_unix_ns"],
        device_uuid=_text(fields["device_uuid"]),
        device_total_bytes=None if total == record_layout.NOT_MEASURED else total,
    )
    return RingHead(
        version=fields["version"],
        rank=rank,
        counters=counters,
        regions=_parse_regions(content, min(counters["regions_used"], fields["region_capacity"])),
        region_capacity=fields["region_capacity"],
        step_capacity=fields["step_capacity"],
        message_capacity=fields["message_capacity"],
        event_capacity=fields["event_capacity"],
        state_bytes=fields["state_bytes"],
    )


def _check(fields: dict[str, Any], where: Path) -> None:
    if fields["magic"].rstrip(b"\0") != record_layout.MAGIC.rstrip(b"\0"):
        raise UnreadableRecords(
            f"{where} is not a TraceML record file: it begins with {fields['magic']!r}, expected "
            f"{record_layout.MAGIC!r}; move it out of the run folder"
        )
    if fields["byte_order"] != record_layout.BYTE_ORDER_MARK:
        raise _damaged(
            where,
            f"its byte-order mark is {fields['byte_order']:#x}, "
            f"expected {record_layout.BYTE_ORDER_MARK:#x}",
        )
    for name, (least, most) in _BOUNDS.items():
        if not least <= fields[name] <= most:
            raise _damaged(where, f"its {name} is {fields[name]}, expected {least} to {most}")
    known = STEPS_BY_VERSION.get(fields["version"])
    if known is None or fields["step_bytes"] != known.itemsize:
        raise UnreadableRecords(
            f"{where} has record format {fields['version']}, this TraceML reads formats 1 to "
            f"{record_layout.VERSION}; read it with the TraceML that wrote it, or a newer one"
        )


def open_records(path: Path) -> int:
    """Open a ring or record file; returns its descriptor.

    Raises FileNotFoundError where it is gone, and UnreadableRecords for any other error.
    """
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(where: Path, error: OSError) -> UnreadableRecords:
    """The error of a record file that the system does not let us read."""
    return UnreadableRecords(
        f"{where} cannot be read ({error.strerror or error}); expected a file of step records: "
        "fix its permissions, or move it out of the run folder"
    )


def _damaged(where: Path, what: str) -> UnreadableRecords:
    return UnreadableRecords(
        f"{where} is damaged: {what}; restore it from a copy, or move it out of the run folder"
    )


def _parse_regions(content: bytes | mmap.mmap, used: int) -> tuple[Region, ...]:
    regions = []
    for line in range(used):
        offset = record_layout.region_table_offset() + line * record_layout.REGION_BYTES
        name, calls, host_ns, longest_ns, gpu_ns = _REGION.unpack_from(content, offset)
        if calls:
            gpu_s = None if gpu_ns == record_layout.NOT_MEASURED else gpu_ns / 1e9
            regions.append(Region(_text(name), calls, host_ns / 1e9, longest_ns / 1e9, gpu_s))
    return tuple(regions)


def _text(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="replace")


class RingReader:
    """One ring, mapped for reading; the tracer may be writing it meanwhile, or be dead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = open_records(path)
        try:
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        except ValueError:  # its process has only just made it, or was killed doing so
            raise _damaged(path, "it is empty, expected a ring") from None
        finally:
            os.close(descriptor)
        try:
            head = parse_head(self._map, path)
            if head.version != record_layout.VERSION:
                raise UnreadableRecords(
                    f"{path} is a ring of record format {head.version}, expected "
                    f"{record_layout.VERSION}; bring it to disk with the TraceML that wrote it"
                )
            expected = record_layout.ring_bytes(
                head.region_capacity,
                head.step_capacity,
                head.message_capacity,
                head.state_bytes,
                head.event_capacity,
            )
            if len(self._map) < expected:
                raise _damaged(path, f"{len(self._map)} bytes long, expected {expected}")
        except UnreadableRecords:
            self._map.close()
            raise
        self._steps, self._step_base = head.step_capacity, head.size
        self._messages = head.message_capacity
        self._message_base = record_layout.message_slots_offset(
            head.region_capacity, head.step_capacity
        )
        self._taken = 0
        """The number of the last step that was asked for."""
        self._events = RingEvents(self._map, head) if head.event_capacity else None

    def close(self) -> None:
        """Unmap the ring."""
        if self._events is not None:
            self._events.close()
        self._map.close()

    def __enter__(self) -> RingReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def head(self) -> RingHead:
        """Who writes this ring, and its counters, as of now."""
        return parse_head(self.head_bytes(), self.path)

    def head_bytes(self) -> bytes:
        """The part before the records, for the record file to begin with."""
        head = bytearray(self._map[: self._step_base])
        if self._events is not None and self._events.is_limit_reached:
            struct.pack_into("<Q", head, _RECORDING_ENDED, record_layout.LIMIT_REACHED)
        return bytes(head)

    def written(self) -> int:
        """How many steps the process has taken, as far as its events have been read."""
        if self._events is not None:
            return self._events.written
        return int(self._count("steps_written"))

    def progress(self) -> StepProgress:
        """How far the process is in its open step, as far as its events have been read."""
        return NO_PROGRESS if self._events is None else self._events.progress

    def is_filling(self, share: float) -> bool:
        """Whether so large a share of the ring waits to be read."""
        if self._events is not None:
            return self._events.is_filling(share)
        return self.written() - self._taken > share * self._steps

    def _count(self, name: str) -> int:
        offset = record_layout.COUNTERS_OFFSET + record_layout.offset_of(
            record_layout.COUNTERS, name
        )
        return int(struct.unpack_from("<Q", self._map, offset)[0])

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        """The steps from a number on that will not change any more; all of them at the end.

        What was overwritten is missing: the sequence numbers show the gap.
        """
        self._taken = self.written()
        if self._events is not None:
            return self._events.steps_from(number, everything)
        final = self._count("steps_final")  # before the copy: what is final in it stays so
        slots = self._slots(STEP_DTYPE, self._step_base, self._steps, number, "steps_written")
        if everything or not len(slots):
            return slots
        open_still = (slots["flags"] & StepFlag.GPU_TIMED).astype(bool) & (
            slots["sequence"] > final
        )
        return slots[: int(open_still.argmax())] if open_still.any() else slots

    def last_walls_s(self) -> list[float]:
        """The wall times of the last steps, oldest first."""
        if self._events is not None:
            steps = self._events.last(LAST_STEPS)
        else:
            steps = self.steps_from(max(0, self.written() - LAST_STEPS), everything=True)
        return [max(0, int(wall_ns)) / 1e9 for wall_ns in steps["wall_ns"]]

    def messages_from(self, number: int) -> list[tuple[int, bytes]]:
        """Whole messages from a piece's number on, each with the number after its last piece."""
        slots = self._slots(
            _MESSAGE_DTYPE, self._message_base, self._messages, number, "messages_written"
        )
        messages: list[tuple[int, bytes]] = []
        pieces: list[bytes] = []
        is_whole, expected = True, number + 1
        for slot in slots:
            sequence = int(slot["sequence"])
            if sequence != expected:  # pieces are lost, perhaps of the message this one belongs to
                pieces, is_whole = [], False
            expected = sequence + 1
            pieces.append(
                slot["payload"].ljust(record_layout.MESSAGE_PAYLOAD_BYTES, b"\0")[: slot["length"]]
            )
            if not slot["more"]:
                if is_whole:
                    messages.append((sequence, b"".join(pieces)))
                pieces, is_whole = [], True
        return messages

    def with_steps(self, messages: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """The messages with the step at which each was logged, where the script named none.

        Asked after `steps_from`, which reads the events that were noted before them.
        """
        if self._events is None:
            return messages
        return [(number, self._events.with_step(payload)) for number, payload in messages]

    # What is made of events has to be kept together with where the reading stands.

    def committed(self) -> int | None:
        """Up to which step rows and events are known to belong together; `None` for a ring that
        holds steps."""
        return None if self._events is None else self._events.committed

    def new_losses(self) -> list[bytes]:
        """The first loss and the first that is no number, as messages, once each."""
        return [] if self._events is None else self._events.new_losses()

    def commit(self, number: int) -> None:
        """All steps up to this one are on disk: whoever reads this ring next goes on from here."""
        if self._events is not None:
            self._events.commit(self.path, number)

    def _slots(
        self, dtype: np.dtype[Any], base: int, capacity: int, first: int, counter: str
    ) -> npt.NDArray[Any]:
        """A consistent copy of the slots from number `first` on, as far as they still exist."""
        end = self._count(counter)
        first = max(first, end - capacity)
        if end > MAX_STEPS:
            raise _damaged(self.path, f"its {counter} is {end}, expected at most {MAX_STEPS}")
        if first >= end:
            return np.empty(0, dtype)
        numbers = np.arange(first, end)
        view = np.frombuffer(self._map, dtype, capacity, base)
        copy = view[numbers % capacity]
        del view
        # The slot that is written next may be half written: its old number is still there, what
        # belongs to the number no longer. Counted after the copy, because writing went on.
        oldest = self._count(counter) + 1 - capacity
        intact = (copy["sequence"] == (numbers + 1).astype(np.uint64)) & (numbers >= oldest)
        found: npt.NDArray[Any] = copy[intact]
        return found
