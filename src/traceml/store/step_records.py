"""What every reader of step records needs: their numbers as a table, and which step each one is.

The sequence numbers of a process's records run from 1. Incomplete records (aborted steps, and the
time after the last step) have sequence numbers too, so the number of a complete step is its
sequence number minus the incomplete records before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store.records import STEP_DTYPE

if TYPE_CHECKING:
    from traceml.store.records import RankRecords
    from traceml.store.step_columns import Steps

Ints = npt.NDArray[np.int64]

WIDE = tuple(name for name, kind in record_layout.STEP if kind == "q")
"""The 64-bit fields of a step record, which are adjacent at its beginning."""
NARROW = tuple(field for field in record_layout.STEP if field[0] not in WIDE)
"""The fields after them."""


def wide_fields(steps: npt.NDArray[Any]) -> Ints:
    """Returns a row per record and a column per field of `WIDE`, as a view without a copy."""
    shape = len(steps), len(WIDE)
    table: Ints = np.ndarray(shape, np.int64, steps, strides=(steps.strides[0], 8))
    return table


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Returns parts of step records end to end; one alone as it is.

    `numpy.concatenate` compares the fields of their types each time, which takes longer than
    copying a few records.
    """
    if len(parts) == 1:
        return parts[0]
    records = np.empty(sum(map(len, parts)), STEP_DTYPE)
    end = 0
    for part in parts:
        begin, end = end, end + len(part)
        records[begin:end] = part
    return records


def is_incomplete(steps: Steps) -> npt.NDArray[np.bool_]:
    """Returns which records are no complete steps: their time counts, but not their parts."""
    return np.asarray((steps["flags"] & int(record_layout.NO_STEP)) != 0)


def step_numbers(steps: Steps, incomplete_before: int = 0) -> Ints:
    """Returns the number of each record's complete step in its process, from 0.

    An incomplete record has the number of the complete step after it. `incomplete_before` is the
    number of incomplete records of the process before these.
    """
    numbers: Ints = steps["sequence"].astype(np.int64) - (1 + incomplete_before)
    return numbers - incomplete_so_far(steps)


def incomplete_so_far(steps: Steps) -> Ints:
    """Returns how many of these records before each one are incomplete."""
    incomplete = is_incomplete(steps)
    if not incomplete.any():
        return np.zeros(len(steps), np.int64)
    passed: Ints = np.cumsum(incomplete) - incomplete
    return passed


def record_numbers(records: RankRecords) -> Ints:
    """Returns the number, from 0, of the complete step that each record of a rank holds.

    An incomplete record has the number of the complete step after it. A lost step keeps its number.
    """
    folded, folded_complete = (
        int(records.blocks[name].sum()) for name in ("steps", "complete_steps")
    )
    numbers: Ints = records.steps["sequence"].astype(np.int64) - 1
    if len(numbers):
        numbers += max(0, folded - int(numbers[0]))
    return numbers - (folded - folded_complete) - incomplete_so_far(records.steps)


def next_number(records: RankRecords) -> int:
    """Returns the number, from 0, of the complete step that would follow a rank's last one; steps
    that were lost are counted too."""
    steps, blocks = records.steps, records.blocks
    folded, folded_complete = int(blocks["steps"].sum()), int(blocks["complete_steps"].sum())
    if not len(steps):
        return folded_complete
    first, last = int(steps["sequence"][0]), int(steps["sequence"][-1])
    incomplete = folded - folded_complete + int(np.count_nonzero(is_incomplete(steps)))
    return last + max(0, folded - (first - 1)) - incomplete


def count_complete(steps: Steps, blocks: npt.NDArray[Any]) -> int:
    """Returns how many complete steps a rank took, single ones and those in blocks."""
    kept = len(steps) - int(np.count_nonzero(is_incomplete(steps)))
    return kept + int(blocks["complete_steps"].sum())
