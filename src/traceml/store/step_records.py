"""What every reader of step records needs: their numbers as a table, and which step each one is.

The sequence numbers of a process's records run from 1. Records that are no complete steps (aborted
ones, the tail) have sequence numbers too, so the number of a complete step is its sequence less the
incomplete records before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import layout

Ints = npt.NDArray[np.int64]

WIDE = tuple(name for name, kind in layout.STEP if kind == "q")
"""The 64-bit fields of a step record; they lie side by side at its beginning."""


def wide_fields(steps: npt.NDArray[Any]) -> Ints:
    """A row per record, a column per field of `WIDE`: a view, nothing is copied."""
    shape = len(steps), len(WIDE)
    table: Ints = np.ndarray(shape, np.int64, steps, strides=(steps.strides[0], 8))
    return table


def is_incomplete(steps: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records are no complete steps: they carry time, and nothing is said of their parts."""
    return np.asarray((steps["flags"] & int(layout.NO_STEP)) != 0)


def step_numbers(steps: npt.NDArray[Any], incomplete_before: int = 0) -> Ints:
    """Which complete step of its process each record is, from 0.

    An incomplete record has the number of the complete step that follows it. `incomplete_before`
    counts the incomplete records of the process that came before these.
    """
    numbers = steps["sequence"].astype(np.int64) - (1 + incomplete_before)
    return numbers - incomplete_so_far(steps)


def incomplete_so_far(steps: npt.NDArray[Any]) -> Ints:
    """How many of these records before each one are no complete steps."""
    incomplete = is_incomplete(steps)
    if not incomplete.any():
        return np.zeros(len(steps), np.int64)
    passed: Ints = np.cumsum(incomplete) - incomplete
    return passed


def count_complete(steps: npt.NDArray[Any], blocks: npt.NDArray[Any]) -> int:
    """How many complete steps a rank has taken, at full resolution or folded into blocks."""
    kept = len(steps) - int(np.count_nonzero(is_incomplete(steps)))
    return kept + int(blocks["complete_steps"].sum())
