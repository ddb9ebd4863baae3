"""Merges old steps into blocks that keep count, sum, minimum and maximum of every field."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.store.records import BLOCK_DTYPE
from traceml.store.step_records import is_incomplete

BLOCK_STEPS = 64
_ABSENT = np.iinfo(np.int64).max


def fold(steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Merges step records into blocks of `BLOCK_STEPS` steps."""
    starts = np.arange(0, len(steps), BLOCK_STEPS)
    blocks = np.zeros(len(starts), BLOCK_DTYPE)
    if not len(steps):
        return blocks
    complete = ~is_incomplete(steps)
    wall = np.where(complete, 0, steps["wall_ns"])
    blocks["first_step"] = steps["sequence"][starts].astype(np.int64) - 1
    blocks["steps"] = np.diff(np.append(starts, len(steps)))
    blocks["complete_steps"] = np.add.reduceat(complete.astype(np.int64), starts)
    blocks["incomplete_wall_ns"] = np.add.reduceat(wall, starts)
    blocks["start_ns"] = steps["start_ns"][starts]
    for name in record_layout.FOLDED:
        values = steps[name].astype(np.int64)
        measured = complete & (values != record_layout.NOT_MEASURED)
        blocks[f"{name}_count"] = np.add.reduceat(measured.astype(np.int64), starts)
        blocks[f"{name}_sum"] = np.add.reduceat(np.where(measured, values, 0), starts)
        _put_extremes(
            blocks,
            name,
            np.minimum.reduceat(np.where(measured, values, _ABSENT), starts),
            np.maximum.reduceat(np.where(measured, values, -_ABSENT), starts),
        )
    return blocks


def merge_pairs(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Merges each two neighbouring blocks: half as many, the same totals."""
    starts = np.arange(0, len(blocks), 2)
    merged = np.zeros(len(starts), BLOCK_DTYPE)
    for name in ("first_step", "start_ns"):
        merged[name] = blocks[name][starts]
    for name in ("steps", "complete_steps", "incomplete_wall_ns"):
        merged[name] = np.add.reduceat(blocks[name], starts)
    for name in record_layout.FOLDED:
        measured = blocks[f"{name}_count"] > 0
        for statistic in ("count", "sum"):
            field = f"{name}_{statistic}"
            merged[field] = np.add.reduceat(blocks[field], starts)
        _put_extremes(
            merged,
            name,
            np.minimum.reduceat(np.where(measured, blocks[f"{name}_min"], _ABSENT), starts),
            np.maximum.reduceat(np.where(measured, blocks[f"{name}_max"], -_ABSENT), starts),
        )
    return merged


def _put_extremes(
    blocks: npt.NDArray[Any], name: str, low: npt.NDArray[Any], high: npt.NDArray[Any]
) -> None:
    measured = blocks[f"{name}_count"] > 0
    blocks[f"{name}_min"] = np.where(measured, low, 0)
    blocks[f"{name}_max"] = np.where(measured, high, 0)
