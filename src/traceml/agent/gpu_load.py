"""Tells how busy a rank's GPU was: torch numbers what it may use, the samples what there is."""

from __future__ import annotations

from collections.abc import Sequence

from traceml.model.rank import Rank
from traceml.model.sample import GpuSample


def gpu_share(rank: Rank, gpus: Sequence[GpuSample], visible: str | None) -> float | None:
    """The utilisation of the GPU that a rank trains on; `None` where it cannot be found.

    A rank that knows its GPU's UUID is taken at its word. Of others torch's number is looked up in
    `visible`, the variable CUDA_VISIBLE_DEVICES: numbers, or the beginnings of UUIDs.
    """
    if rank.device_uuid:
        return next((gpu.utilisation for gpu in gpus if rank.trains_on(gpu.uuid)), None)
    kind, _, number = rank.device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        return None
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    if names is not None and int(number) >= len(names):
        return None
    wanted = number if names is None else names[int(number)]
    for gpu in gpus:
        is_named = bool(wanted) and not wanted.isdecimal() and gpu.uuid.startswith(wanted)
        if is_named or str(gpu.index) == wanted:
            return gpu.utilisation
    return None
