"""Reads records of every version that was ever written, as if they were of the current one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import layout
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE, dtype_of

STEPS_BY_VERSION = {v: dtype_of(layout.step_fields(v)) for v in range(1, layout.VERSION + 1)}
BLOCKS_BY_VERSION = {v: dtype_of(layout.block_fields(v)) for v in range(1, layout.VERSION + 1)}


def read_steps(content: bytes | memoryview, version: int) -> npt.NDArray[Any]:
    """Whole step records; a field that the version did not have was not measured."""
    return _upgraded(_whole(content, STEPS_BY_VERSION[version]), STEP_DTYPE, layout.NOT_MEASURED)


def read_blocks(content: bytes, version: int) -> npt.NDArray[Any]:
    """Whole blocks; of a field that the version did not have, none was counted."""
    return _upgraded(_whole(content, BLOCKS_BY_VERSION[version]), BLOCK_DTYPE, 0)


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
