"""The reading end of a ring: copies what the tracer wrote, and tells what was overwritten."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import layout
from traceml.model.errors import UnreadableRecords
from traceml.model.layout import StepFlag
from traceml.model.rank import Rank, Region
from traceml.store.records import STEP_DTYPE, dtype_of

_IDENTITY = layout.packer(layout.IDENTITY)
_COUNTERS = layout.packer(layout.COUNTERS)
_REGION = layout.packer(layout.REGION)
_MESSAGE_DTYPE = dtype_of(layout.MESSAGE)


@dataclass(frozen=True, slots=True)
class Head:
    """The part of a ring or record file before its records."""

    rank: Rank
    counters: dict[str, Any]
    regions: tuple[Region, ...]
    region_capacity: int
    step_capacity: int
    message_capacity: int

    @property
    def size(self) -> int:
        """Where the step records begin."""
        return layout.step_slots_offset(self.region_capacity)


def parse_head(content: bytes | mmap.mmap, where: Path) -> Head:
    """Read who wrote a ring or record file; raises UnreadableRecords."""
    if len(content) < layout.HEADER_BYTES:
        raise UnreadableRecords(
            f"{where} is too short for a record file ({len(content)} bytes); it is damaged or empty"
        )
    names = [name for name, _ in layout.IDENTITY]
    fields: dict[str, Any] = dict(zip(names, _IDENTITY.unpack_from(content, 0), strict=True))
    _check(fields, where)
    counters = dict(
        zip(
            [name for name, _ in layout.COUNTERS],
            _COUNTERS.unpack_from(content, layout.COUNTERS_OFFSET),
            strict=True,
        )
    )
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
        device_total_bytes=None if total == layout.NOT_MEASURED else total,
    )
    return Head(
        rank=rank,
        counters=counters,
        regions=_parse_regions(content, counters["regions_used"]),
        region_capacity=fields["region_capacity"],
        step_capacity=fields["step_capacity"],
        message_capacity=fields["message_capacity"],
    )


def _check(fields: dict[str, Any], where: Path) -> None:
    if fields["magic"].rstrip(b"\0") != layout.MAGIC.rstrip(b"\0"):
        raise UnreadableRecords(f"{where} is not a TraceML record file; leave it out of the run")
    if fields["byte_order"] != layout.BYTE_ORDER_MARK:
        raise UnreadableRecords(f"{where} is damaged: its byte-order mark is not ours")
    if fields["version"] != layout.VERSION or fields["step_bytes"] != layout.STEP_BYTES:
        raise UnreadableRecords(
            f"{where} has record format {fields['version']}, this TraceML reads format "
            f"{layout.VERSION}; read it with the TraceML that wrote it, or a newer one"
        )


def _parse_regions(content: bytes | mmap.mmap, used: int) -> tuple[Region, ...]:
    regions = []
    for line in range(used):
        offset = layout.region_table_offset() + line * layout.REGION_BYTES
        name, calls, host_ns, longest_ns, gpu_ns = _REGION.unpack_from(content, offset)
        if calls:
            gpu_s = None if gpu_ns == layout.NOT_MEASURED else gpu_ns / 1e9
            regions.append(Region(_text(name), calls, host_ns / 1e9, longest_ns / 1e9, gpu_s))
    return tuple(regions)


def _text(content: bytes) -> str:
    return content.rstrip(b"\0").decode(errors="replace")


class RingReader:
    """One ring, mapped for reading; the tracer may be writing it meanwhile, or be dead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        try:
            head = self.head()
            expected = layout.ring_bytes(
                head.region_capacity, head.step_capacity, head.message_capacity
            )
            if len(self._map) < expected:
                raise UnreadableRecords(f"{path} is shorter than it says; it is damaged")
        except UnreadableRecords:
            self._map.close()
            raise
        self._steps, self._step_base = head.step_capacity, head.size
        self._messages = head.message_capacity
        self._message_base = layout.message_slots_offset(head.region_capacity, head.step_capacity)

    def __enter__(self) -> RingReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._map.close()

    def head(self) -> Head:
        """Who writes this ring, and its counters, as of now."""
        return parse_head(self._map, self.path)

    def head_bytes(self) -> bytes:
        """The part before the records, for the record file to begin with."""
        return self._map[: self._step_base]

    def written(self) -> int:
        """How many steps the tracer has written."""
        return int(self._count("steps_written"))

    @property
    def capacity(self) -> int:
        """How many steps the ring holds."""
        return self._steps

    def _count(self, name: str) -> int:
        offset = layout.COUNTERS_OFFSET + layout.offset_of(layout.COUNTERS, name)
        return int(struct.unpack_from("<Q", self._map, offset)[0])

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        """The steps from a number on that will not change any more; all of them at the end.

        What was overwritten is missing: the sequence numbers show the gap.
        """
        slots = self._slots(STEP_DTYPE, self._step_base, self._steps, number, self.written())
        if everything or not len(slots):
            return slots
        open_still = (slots["flags"] & StepFlag.GPU_TIMED).astype(bool) & (
            slots["sequence"] > self._count("steps_final")
        )
        return slots[: int(open_still.argmax())] if open_still.any() else slots

    def messages_from(self, number: int) -> list[tuple[int, bytes]]:
        """Whole messages from a piece's number on, each with the number after its last piece."""
        slots = self._slots(
            _MESSAGE_DTYPE,
            self._message_base,
            self._messages,
            number,
            self._count("messages_written"),
        )
        messages: list[tuple[int, bytes]] = []
        pieces: list[bytes] = []
        begun_before = number > 0 and bool(len(slots)) and int(slots[0]["sequence"]) != number + 1
        for slot in slots:
            pieces.append(
                slot["payload"].ljust(layout.MESSAGE_PAYLOAD_BYTES, b"\0")[: slot["length"]]
            )
            if not slot["more"]:
                if not begun_before:
                    messages.append((int(slot["sequence"]), b"".join(pieces)))
                pieces, begun_before = [], False
        return messages

    def _slots(
        self, dtype: np.dtype[Any], base: int, capacity: int, first: int, end: int
    ) -> npt.NDArray[Any]:
        """A consistent copy of the slots numbered `first` to `end`, as far as they still exist."""
        first = max(first, end - capacity)
        if first >= end:
            return np.empty(0, dtype)
        numbers = np.arange(first, end, dtype=np.uint64)
        view = np.frombuffer(self._map, dtype, capacity, base)
        copy: npt.NDArray[Any] = view[(numbers % np.uint64(capacity)).astype(np.int64)]
        del view
        intact = copy["sequence"] == numbers + np.uint64(1)
        return copy[intact]
