"""Writes rings as TraceML did when the training process still made the steps: slots of steps.

They can still be read, and they are the shortest way from given records to record files.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.trace import ring as rings

_pack_step = record_layout.packer(record_layout.STEP).pack_into
_pack_gpu = record_layout.packer([("", "q")] * len(record_layout.GPU_FIELDS)).pack_into
_pack_count = record_layout.packer([("", "Q")]).pack_into
_pack_capacity = record_layout.packer([("", "I")]).pack_into


def _counter(name: str) -> int:
    return record_layout.COUNTERS_OFFSET + record_layout.offset_of(record_layout.COUNTERS, name)


class RowRing(rings.Ring):
    """The writing end of a ring with slots of steps, and without events."""

    def __init__(self, path: Path, steps: int = 64, messages: int = 32) -> None:
        size = record_layout.ring_bytes(rings.REGION_CAPACITY, steps, messages)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb+") as file:
            file.truncate(size)
            mapping = mmap.mmap(file.fileno(), size)
        super().__init__(path, mapping, 0, messages)
        self._steps = steps
        self._step_base = record_layout.step_slots_offset(rings.REGION_CAPACITY)
        self._message_base = record_layout.message_slots_offset(rings.REGION_CAPACITY, steps)
        self.steps_written = 0

    def identify(self, rank: Rank) -> None:
        super().identify(rank)
        for name, value in (
            ("step_capacity", self._steps),
            ("event_bytes", 0),
            ("event_capacity", 0),
            ("state_bytes", 0),
        ):
            _pack_capacity(self._map, record_layout.offset_of(record_layout.IDENTITY, name), value)

    def write_step(self, *values: float) -> int:
        """Append a step (all fields of the layout but the sequence) and return its number."""
        number = self.steps_written
        slot = self._step_base + (number % self._steps) * record_layout.STEP_BYTES
        _pack_step(self._map, slot, *values, number + 1)
        self.steps_written = number + 1
        _pack_count(self._map, _counter("steps_written"), number + 1)
        return number

    def fill_gpu_times(self, number: int, times: Iterable[int]) -> None:
        """Complete a step written before with what the GPU's clock said."""
        slot = self._step_base + (number % self._steps) * record_layout.STEP_BYTES
        _pack_gpu(
            self._map,
            slot + record_layout.offset_of(record_layout.STEP, record_layout.GPU_FIELDS[0]),
            *times,
        )

    def mark_final(self, count: int) -> None:
        """Say that the first `count` steps will not change any more."""
        _pack_count(self._map, _counter("steps_final"), count)
