"""The step machine between two readings, as text: whoever goes on from there makes the same steps.

The state is kept in the ring itself, in one of two slots in turn: whoever is killed in the middle
of writing one leaves the other.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from typing import Any, NamedTuple

from traceml.model.record_layout import STATE_SLOTS
from traceml.steps.losses import StepLosses
from traceml.steps.open_step import OpenStep, with_all_totals
from traceml.steps.rows import Rows
from traceml.steps.step_machine import MAX_CLOSINGS, StepMachine

CLOSINGS_KEPT = 64

_HEAD = struct.Struct("<QII")
"""A number that grows with every saving, the length of the text, and its checksum."""

_PLAIN = (
    "backward_end",
    "by_hand",
    "empty",
    "ends",
    "fetches",
    "frames",
    "has_gap",
    "local_gradients",
    "paused_at",
    "records",
    "source",
    "steps",
)
"""What of the machine JSON can hold as it is."""

_DAMAGED = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)

Buffer = mmap.mmap | bytearray


class Saved(NamedTuple):
    """A machine, the event that it reads next, and how many rows of it are safe."""

    machine: StepMachine
    cursor: int
    rows: int


def save(buffer: Buffer, base: int, slot_bytes: int, saved: Saved) -> bool:
    """Write a state into the slot that holds the older one; whether it fitted."""
    text = json.dumps(_as_plain(saved), separators=(",", ":")).encode()
    if len(text) > slot_bytes - _HEAD.size:
        return False
    number = max(_number(buffer, base + slot * slot_bytes) for slot in range(STATE_SLOTS)) + 1
    start = base + number % STATE_SLOTS * slot_bytes
    _HEAD.pack_into(buffer, start, 0, 0, 0)
    buffer[start + _HEAD.size : start + _HEAD.size + len(text)] = text
    _HEAD.pack_into(buffer, start, number, len(text), zlib.crc32(text))
    return True


def load(buffer: Buffer, base: int, slot_bytes: int, limit: int) -> Saved | None:
    """The state that was saved last; `None` where there is none that can be read."""
    starts = [base + slot * slot_bytes for slot in range(STATE_SLOTS)]
    for start in sorted(starts, key=lambda each: _number(buffer, each), reverse=True):
        number, length, checksum = _HEAD.unpack_from(buffer, start)
        if not number or length > slot_bytes - _HEAD.size:
            continue
        text = bytes(buffer[start + _HEAD.size : start + _HEAD.size + length])
        if zlib.crc32(text) != checksum:
            continue
        try:
            return _from_plain(json.loads(text), limit)
        except _DAMAGED:
            continue
    return None


def _number(buffer: Buffer, start: int) -> int:
    return int(_HEAD.unpack_from(buffer, start)[0])


def _as_plain(saved: Saved) -> dict[str, Any]:
    machine = saved.machine
    plain = {name: getattr(machine, name) for name in _PLAIN}
    return {
        **plain,
        "changed": sorted(machine.changed),
        "closings": list(machine.closings)[-CLOSINGS_KEPT:],
        "collectives": machine.collectives,
        "cursor": saved.cursor,
        "explicit": machine.explicit.as_plain(),
        "graphs": machine.graphs.as_plain(),
        "losses": machine.losses.as_plain(),
        "open": machine.step.as_plain(),
        "roles": list(machine.roles.items()),
        "rows": machine.rows.as_plain(),
        "rows_made": saved.rows,
        "usual_optimizers": sorted(machine.usual_optimizers),
    }


def _from_plain(plain: dict[str, Any], limit: int) -> Saved:
    machine = StepMachine(limit)
    for name in _PLAIN:
        setattr(machine, name, plain[name])
    machine.empty = with_all_totals(machine.empty)
    machine.collectives = plain.get("collectives")  # earlier versions saved none
    machine.backward_end = tuple(plain["backward_end"])
    if plain["local_gradients"] is not None:
        machine.local_gradients = tuple(plain["local_gradients"])
    machine.changed = set(plain["changed"])
    machine.closings.extend(plain["closings"][-MAX_CLOSINGS:])
    machine.explicit.restore(plain["explicit"])
    machine.graphs.restore(plain["graphs"])
    machine.losses = StepLosses.from_plain(plain["losses"])
    machine.step = OpenStep.from_plain(plain["open"])
    machine.roles = {source: bool(trains) for source, trains in plain["roles"]}
    machine.rows = Rows.from_plain(plain["rows"])
    machine.usual_optimizers = set(plain["usual_optimizers"])
    machine.end_if_done()
    return Saved(machine, int(plain["cursor"]), int(plain["rows_made"]))
