"""The part of a summary that runs are chosen by."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Labels(Struct, frozen=True):
    """What a run was run with, of whatever shape; decoding it passes over everything else."""

    params: Any = None
    meta: Any = None
    lineage: Any = None
