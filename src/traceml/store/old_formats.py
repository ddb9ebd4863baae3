"""Reads records of every version that was ever written, as records of the current one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE, dtype_of

MAX_STEPS = 1 << 40
"""Steps of one process: two years at 15,000 per second."""
MAX_MOMENT_NS = 1 << 62
"""On a clock that starts with the machine: 146 years."""

STEPS_BY_VERSION = {
    v: dtype_of(record_layout.step_fields(v)) for v in range(1, record_layout.VERSION + 1)
}
BLOCKS_BY_VERSION = {
    v: dtype_of(record_layout.block_fields(v)) for v in range(1, record_layout.VERSION + 1)
}


def read_steps(content: bytes | memoryview, version: int) -> npt.NDArray[Any]:
    """Returns whole step records; a field that the version lacks was not measured."""
    return _upgraded(
        _whole(content, STEPS_BY_VERSION[version]), STEP_DTYPE, record_layout.NOT_MEASURED
    )


def read_blocks(content: bytes, version: int) -> npt.NDArray[Any]:
    """Returns whole blocks; a field that the version lacks has a count of zero."""
    return _upgraded(_whole(content, BLOCKS_BY_VERSION[version]), BLOCK_DTYPE, 0)


def sound_steps(steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the records that a tracer can have written: with rising numbers and possible times.

    A disk that lost power leaves zeros at a file's end, and a bad disk leaves anything anywhere.
    """
    start, wall = steps["start_ns"].copy(), steps["wall_ns"].copy()  # in one piece: faster
    possible = (start >= 0) & (start < MAX_MOMENT_NS) & (wall < MAX_MOMENT_NS)
    return _rising(steps, "sequence", possible & (steps["sequence"] > 0))


def sound_blocks(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the blocks that can have been made from steps: each after the one before."""
    steps, complete = blocks["steps"], blocks["complete_steps"]
    possible = (complete >= 0) & (complete <= steps) & (steps <= MAX_STEPS)
    return _rising(blocks, "first_step", possible & (steps > 0) & (blocks["first_step"] >= 0))


def _rising(
    records: npt.NDArray[Any], name: str, possible: npt.NDArray[np.bool_]
) -> npt.NDArray[Any]:
    """Returns those of the possible records whose numbers rise from one to the next."""
    possible &= records[name] <= MAX_STEPS
    if not possible.all():
        records = records[possible]
    numbers = records[name].astype(np.int64)
    if len(numbers) < 2 or bool((numbers[1:] > numbers[:-1]).all()):
        return records
    # Of a number that is too large those after it are right, of one too small those before it:
    # whichever way keeps more.
    above = np.append(True, numbers[1:] > np.maximum.accumulate(numbers)[:-1])
    below = np.append(numbers[:-1] < np.minimum.accumulate(numbers[::-1])[::-1][1:], True)
    kept: npt.NDArray[Any] = records[above if above.sum() >= below.sum() else below]
    return kept


def _whole(content: bytes | memoryview, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(content, dtype, len(content) // dtype.itemsize)


def _upgraded(records: npt.NDArray[Any], dtype: np.dtype[Any], absent: int) -> npt.NDArray[Any]:
    if records.dtype == dtype:
        return records
    known = set(records.dtype.names or ())
    upgraded = np.empty(len(records), dtype)
    for name in dtype.names or ():
        upgraded[name] = records[name] if name in known else absent
    return upgraded
