"""Tells how busy a rank's GPU was: torch numbers what it may use, the samples what there is."""

from __future__ import annotations

from collections.abc import Sequence

from traceml.model.sample import GpuSample


def gpu_share(device: str, gpus: Sequence[GpuSample], visible: str | None) -> float | None:
    """The utilisation of the GPU that torch calls `cuda:1`; `None` where it cannot be found.

    `visible` is the variable CUDA_VISIBLE_DEVICES: numbers, or the beginnings of names.
    """
    kind, _, number = device.partition(":")
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
