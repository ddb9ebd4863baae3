"""The training settings: those of the lowest rank, and the names of those in which ranks differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from traceml.model.record_layout import NO_STEP
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.records import RankRecords


def settings_of(ranks: Sequence[RankRecords]) -> Settings:
    """Returns the settings of the lowest rank that recorded any, completed from its steps."""
    known = [rank for rank in ranks if rank.settings is not None]
    if not known:
        return NOT_RECORDED
    return _completed(known[0])


def uneven_settings(ranks: Sequence[RankRecords]) -> tuple[str, ...]:
    """Returns the names of the settings in which two ranks differ; an unknown value differs from
    nothing."""
    known = [_completed(rank) for rank in ranks if rank.settings is not None]
    return tuple(
        name
        for name in Settings._fields
        if len({value for each in known if (value := getattr(each, name)) is not None}) > 1
    )


def _completed(rank: RankRecords) -> Settings:
    settings = rank.settings or NOT_RECORDED
    shown: dict[str, Any] = {
        "accumulation_steps": _accumulation(rank, settings.batch_size),
        "num_workers": rank.loader_workers,
        "pin_memory": rank.loader_pinned,
    }
    missing = {name: value for name, value in shown.items() if getattr(settings, name) is None}
    return settings._replace(**missing)


def _accumulation(rank: RankRecords, batch_size: int | None) -> int | None:
    """Returns the number of micro-batches per optimizer step; `None` where it is not known, such as
    where all gradients come from `torch.autograd.grad`.

    Backward passes alone do not tell: a GAN has several per batch. Where the batches of a step were
    counted too, it is the smaller of the two numbers. Where they were not, and several optimizers
    step in a step, it is not known: each may have a backward pass of its own.
    """
    steps = rank.steps[(rank.steps["flags"] & NO_STEP) == 0]
    if not len(steps):
        return None
    counted = [float(np.median(steps["micro_batches"]))]
    samples = float(np.median(steps["samples"]))
    if batch_size and samples > 0:
        counted.append(samples / batch_size)
    elif np.median(steps["optimizer_steps"]) > 1:
        return None
    return max(1, round(min(counted))) if counted[0] > 0 else None
