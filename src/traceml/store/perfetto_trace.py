"""Writes a timeline in Perfetto's own format, which ui.perfetto.dev opens as it is.

The file is a sequence of protobuf messages (`perfetto.protos.Trace`): descriptions of tracks, then
events on them. An event is a few bytes that are the same for all of its kind, with the time and
perhaps a value put in. So events are encoded by numpy, a million in about a second.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SEQUENCE = 1
_REALTIME, _BOOTTIME = 1, 6
"""Perfetto's numbers of clocks; times in a trace are of the second unless it says otherwise."""
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT_ORDER = 3
_TIME_BYTES = 9
"""Of a time in ns since 1970: nine groups of seven bits."""
_EVENTS_AT_ONCE = 200_000


class _Packet:
    """The numbers of the fields of a `TracePacket` that are used here."""

    CLOCKS = 6
    TIMESTAMP = 8
    SEQUENCE = 10
    EVENT = 11
    INTERNED = 12
    FLAGS = 13
    TRACK = 60


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _number(place: int, value: int) -> bytes:
    return _varint(place << 3) + _varint(value)


def _content(place: int, value: bytes | str) -> bytes:
    """Returns a field that holds a text or a message."""
    encoded = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _varint(place << 3 | 2) + _varint(len(encoded)) + encoded


def _double(place: int, value: float) -> bytes:
    return _varint(place << 3 | 1) + struct.pack("<d", value)


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """The bytes of one kind of event, and where in them its time and its value stand."""

    content: bytes
    time_at: int
    value_at: int | None = None
    is_whole: bool = False
    """Whether its value is a whole number, and not a floating-point one."""


@dataclass
class PerfettoWriter:
    """Writes one trace to an open file."""

    file: BinaryIO
    _tracks: int = 0
    _names: dict[str, int] = field(default_factory=dict)

    def begin(self, unix_ns: int) -> None:
        """Writes what every trace begins with; `unix_ns` is a time near its beginning, by which the
        viewer shows times of day."""
        clocks = b"".join(
            _content(1, _number(1, clock) + _number(2, unix_ns)) for clock in (_REALTIME, _BOOTTIME)
        )
        cleared = _number(_Packet.FLAGS, _STATE_CLEARED)
        self._write(_content(_Packet.CLOCKS, clocks) + cleared)

    def add_process(self, name: str, number: int, order: int) -> int:
        """Adds a group of tracks, drawn as a process is; returns its number among the tracks.

        `number` is the process's own, and no two groups have the same.
        """
        process = _number(1, number) + _content(6, name)
        return self._add_track(
            _content(3, process) + _number(11, _EXPLICIT_ORDER) + _number(12, order)
        )

    def add_track(self, name: str, group: int, order: int) -> int:
        """Adds a track of slices and instants to a group; returns its number."""
        return self._add_track(_content(2, name) + _number(5, group) + _number(12, order))

    def add_counter(self, name: str, group: int, order: int, unit: str) -> int:
        """Adds a track that draws a number over time; returns its number."""
        counter = _content(8, _content(6, unit))
        return self._add_track(_content(2, name) + _number(5, group) + counter + _number(12, order))

    def begin_of(self, track: int, name: str) -> EventTemplate:
        """Returns the event with which a slice of this name begins."""
        return self._template(track, _SLICE_BEGIN, _number(10, self._interned(name)))

    def begin_of_numbered(self, track: int, name: str, key: str) -> EventTemplate:
        """Returns the event with which a slice begins whose value is shown under this key."""
        value = _content(10, key) + _varint(4 << 3) + bytes(_TIME_BYTES)
        more = _number(10, self._interned(name)) + _content(4, value)
        return self._template(track, _SLICE_BEGIN, more, _TIME_BYTES)

    def end_of(self, track: int) -> EventTemplate:
        """Returns the event that ends the innermost slice."""
        return self._template(track, _SLICE_END)

    def value_of_counter(self, track: int) -> EventTemplate:
        """Returns the event that gives a counter a value."""
        return self._template(track, _COUNTER, _double(44, 0.0), 8)

    def add_events(
        self,
        templates: Sequence[EventTemplate],
        kinds: npt.NDArray[np.intp],
        unix_ns: Ints,
        values: Floats | None = None,
    ) -> None:
        """Writes events in this order; `kinds` are the places of their templates."""
        for first in range(0, len(kinds), _EVENTS_AT_ONCE):
            part = slice(first, first + _EVENTS_AT_ONCE)
            some = None if values is None else values[part]
            self.file.write(_encoded(templates, kinds[part], unix_ns[part], some))

    def add_slice(
        self, track: int, name: str, begin_ns: int, end_ns: int, notes: Mapping[str, Any]
    ) -> None:
        """Writes one slice, with what the viewer shows when it is chosen."""
        self._add_event(track, _SLICE_BEGIN, begin_ns, name, notes)
        self._add_event(track, _SLICE_END, end_ns)

    def add_instant(self, track: int, name: str, at_ns: int, notes: Mapping[str, Any]) -> None:
        """Writes something that happened at one moment."""
        self._add_event(track, _INSTANT, at_ns, name, notes)

    def _add_event(
        self, track: int, kind: int, at_ns: int, name: str = "", notes: Mapping[str, Any] = {}
    ) -> None:
        event = _number(9, kind) + _number(11, track)
        if name:
            event += _content(23, name)
        event += b"".join(
            _content(4, _content(10, key) + _noted(value))
            for key, value in notes.items()
            if value is not None
        )
        self._write(_number(_Packet.TIMESTAMP, at_ns) + _content(_Packet.EVENT, event))

    def _add_track(self, description: bytes) -> int:
        self._tracks += 1
        content = _number(1, self._tracks) + description
        self._write(_content(_Packet.TRACK, content))
        return self._tracks

    def _interned(self, name: str) -> int:
        """Returns the number that stands for a name; it is written once."""
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            entry = _content(2, _number(1, self._names[name]) + _content(2, name))
            flags = _number(_Packet.FLAGS, _NEEDS_STATE)
            self._write(_content(_Packet.INTERNED, entry) + flags)
        return self._names[name]

    def _write(self, content: bytes) -> None:
        self.file.write(_content(1, content + _number(_Packet.SEQUENCE, _SEQUENCE)))

    def _template(
        self, track: int, kind: int, more: bytes = b"", value_bytes: int = 0
    ) -> EventTemplate:
        """Returns the bytes of an event; the last ones are its value, which takes so many."""
        event = _number(9, kind) + _number(11, track) + more
        before = _varint(_Packet.TIMESTAMP << 3)
        after = (
            _number(_Packet.SEQUENCE, _SEQUENCE)
            + _number(_Packet.FLAGS, _NEEDS_STATE)
            + _content(_Packet.EVENT, event)
        )
        whole = _content(1, before + bytes(_TIME_BYTES) + after)
        time_at = len(whole) - len(after) - _TIME_BYTES
        value_at = len(whole) - value_bytes if value_bytes else None
        return EventTemplate(whole, time_at, value_at, is_whole=value_bytes == _TIME_BYTES)


def _noted(value: Any) -> bytes:
    if isinstance(value, bool):
        return _number(2, value)
    if isinstance(value, int):
        return _number(4, value)
    return _double(5, value) if isinstance(value, float) else _content(6, str(value))


def _encoded(
    templates: Sequence[EventTemplate],
    kinds: npt.NDArray[np.intp],
    unix_ns: Ints,
    values: Floats | None,
) -> bytes:
    """Returns events as they stand in a file."""
    lengths = np.array([len(template.content) for template in templates], np.int64)[kinds]
    begins = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    times = _nine_bytes(unix_ns)
    for kind in np.unique(kinds):
        template = templates[int(kind)]
        chosen = np.flatnonzero(kinds == kind)
        at = begins[chosen, None]
        content = np.frombuffer(template.content, np.uint8)
        out[at + np.arange(len(content))] = content
        out[at + template.time_at + np.arange(_TIME_BYTES)] = times[chosen]
        if template.value_at is not None and values is not None:
            encoded = _value_bytes(values[chosen], template.is_whole)
            out[at + template.value_at + np.arange(encoded.shape[1])] = encoded
    return out.tobytes()


def _value_bytes(values: Floats, is_whole: bool) -> npt.NDArray[np.uint8]:
    if is_whole:
        return _nine_bytes(values.astype(np.int64))
    return np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)


def _nine_bytes(numbers: Ints) -> npt.NDArray[np.uint8]:
    """Returns each number as protobuf writes it: seven bits at a time, the lowest first; with
    zeros up to nine of them, so that all events of a kind are of one length."""
    shifts = 7 * np.arange(_TIME_BYTES)
    groups = (np.maximum(numbers, 0)[:, None] >> shifts) & 0x7F
    groups[:, :-1] |= 0x80
    return groups.astype(np.uint8)
