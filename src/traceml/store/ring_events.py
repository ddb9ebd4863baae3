"""Makes steps of the events in a ring, and keeps the state of that in the ring itself.

Rows on disk, messages on disk and the state are written in this order. Whoever goes on after a
reader was killed takes the state, drops the rows behind it, and makes those again: the same ones.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.packed_metrics import as_json
from traceml.steps import saved_state
from traceml.steps.event_reader import EventReader
from traceml.steps.events import CHECKPOINT, EVALUATION, PHASE_PLACES
from traceml.steps.losses import Milestone
from traceml.steps.step_machine import StepMachine
from traceml.store.records import STEP_DTYPE
from traceml.store.step_records import joined

if TYPE_CHECKING:
    from traceml.store.rings import RingHead

MAX_ROWS = 1 << 14
"""Steps that are kept in memory until they are on disk. Of more, the oldest are lost."""

MIN_ROWS = 1024
"""Steps that are kept in memory when they are on disk: for those who look at the last ones."""

MAX_HELD_SAVED = 256
"""Steps that wait for the GPU; a state with more does not fit into its slot."""

_pack_row = record_layout.packer(record_layout.STEP).pack
_LOGGED_AT = re.compile(rb'^\{"kind":"metrics","at":(\d{1,18}),')


_PHASES = {
    **{place: phase.value for phase, place in PHASE_PLACES.items()},
    CHECKPOINT: "checkpoint",
    EVALUATION: "evaluation",
}


class StepProgress(NamedTuple):
    """How far a process is in the step that it has not completed."""

    phase: str | None = None
    """The innermost phase that has begun and not ended; `None` where none is open."""
    collectives: int | None = None
    """Calls of collectives that were begun since the last step; `None` where that is not known."""


NO_PROGRESS = StepProgress()


class RingEvents:
    """The events of one ring, and the steps that were made of them so far."""

    def __init__(self, buffer: mmap.mmap, head: RingHead) -> None:
        before = (head.region_capacity, head.step_capacity, head.message_capacity)
        self._state_base = record_layout.state_slots_offset(*before)
        self._state_bytes = head.state_bytes
        limit = head.counters["step_limit"]
        saved = saved_state.load(buffer, self._state_base, head.state_bytes, limit)
        self.committed: int | None = 0 if saved is None else saved.rows
        """Up to which step rows and events are known to belong together; `None` where the events
        after that are gone, so that rows which are on disk cannot be made again."""
        self._reader = EventReader(
            buffer,
            record_layout.event_slots_offset(*before, head.state_bytes),
            head.event_capacity,
            StepMachine(limit) if saved is None else saved.machine,
            head.counters["first_event"] if saved is None else saved.cursor,
        )
        self._rows: deque[npt.NDArray[Any]] = deque()
        """The last steps, in pieces as they were made."""
        self._kept = 0
        self._made = self.committed or 0
        if self._reader.is_overtaken:
            self.committed = None
        self._losses: list[Milestone] = []
        self._writable: mmap.mmap | None = None
        self._committed_cursor = -1

    @property
    def written(self) -> int:
        """How many steps there are, those that wait for the GPU among them."""
        return self._reader.machine.records

    @property
    def progress(self) -> StepProgress:
        """How far the process is in the step that it has not completed."""
        machine = self._reader.machine
        phase = machine.open_phase
        return StepProgress(None if phase is None else _PHASES.get(phase), machine.collectives)

    @property
    def is_limit_reached(self) -> bool:
        """Whether there are as many steps as were asked for."""
        return self._reader.machine.is_done

    def is_filling(self, share: float) -> bool:
        """Whether so large a share of the ring waits to be read."""
        return self._reader.is_filling(share)

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        """The steps after this number, as far as they are final; all of them at the end."""
        self._make(everything)
        parts = []
        for rows in reversed(self._rows):
            if rows["sequence"][-1] <= number:
                break
            is_all_new = rows["sequence"][0] > number
            parts.append(rows if is_all_new else rows[rows["sequence"] > number])
        return joined(parts[::-1])

    def last(self, count: int) -> npt.NDArray[Any]:
        """The last steps that were made."""
        return joined(list(self._rows)[-count:])[-count:]

    def _make(self, everything: bool) -> None:
        """Read what is new, and make steps of it."""
        machine = self._reader.machine
        self._reader.advance(everything)
        if everything:
            machine.rows.flush()
        if machine.losses.milestones:
            self._losses += machine.losses.milestones
            machine.losses.milestones.clear()
        done = machine.rows.done
        if not done:
            return
        rows = np.frombuffer(b"".join(map(_packed, done)), STEP_DTYPE)
        machine.rows.done = []
        if not len(rows):
            return
        self._made = int(rows["sequence"][-1])
        self._rows.append(rows)
        self._kept += len(rows)
        self._keep(MAX_ROWS)

    # Messages

    def with_step(self, payload: bytes) -> bytes:
        """A message as it goes to disk: numbers as text, and with the step at which they were
        logged, where it has only the event."""
        payload = as_json(payload)
        found = _LOGGED_AT.match(payload)
        if found is None:
            return payload
        step = self._reader.machine.steps_at(int(found[1]))
        return b'{"kind":"metrics","step":%d,' % step + payload[found.end() :]

    def new_losses(self) -> list[bytes]:
        """The first loss and the first that is no number, as messages, once each."""
        found, self._losses = self._losses, []
        return [_loss_message(each) for each in found]

    # Where the reading stands

    def commit(self, path: Path, number: int) -> None:
        """All steps up to this one are on disk: save the state, if it is that of this step.

        Where that cannot be done, the next reader begins farther back and makes the same steps.
        """
        machine, cursor = self._reader.machine, self._reader.cursor
        if number != self._made or machine.rows.done or cursor == self._committed_cursor:
            return
        if machine.rows.held > MAX_HELD_SAVED:
            return
        if self._writable is None:
            try:
                self._writable = _writable(path)
            except OSError:  # somebody else's, or gone
                return
        saved = saved_state.Saved(machine, cursor, number)
        if saved_state.save(self._writable, self._state_base, self._state_bytes, saved):
            self.committed, self._committed_cursor = number, cursor
            self._keep(MIN_ROWS)

    def _keep(self, count: int) -> None:
        """Let go of all steps but the last ones."""
        while self._rows and self._kept - len(self._rows[0]) >= count:
            self._kept -= len(self._rows.popleft())

    def close(self) -> None:
        """Let go of the ring."""
        if self._writable is not None:
            self._writable.close()


def _writable(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _packed(row: list[Any]) -> bytes:
    """A step as a record; one with numbers that no record holds, of a damaged ring, is left out."""
    try:
        return _pack_row(*row)
    except (struct.error, OverflowError):
        return b""


def _loss_message(found: Milestone) -> bytes:
    is_finite = found.value - found.value == 0.0
    value: Any = found.value if is_finite else str(found.value)
    message = {"kind": "loss", "step": found.step, "value": value}
    if not is_finite and found.finite_step:
        message |= {"finite_step": found.finite_step, "finite_value": found.finite_value}
    return json.dumps(message, separators=(",", ":")).encode()
