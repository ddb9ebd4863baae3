"""How the training batches were made, and whether the GPU's queue ran dry meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.step_table import StepTable
from traceml.facts.times import StepTimes
from traceml.model.layout import NO_STEP, StepFlag
from traceml.store.records import RankRecords


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The training loaders of all ranks; `None` is "not seen"."""

    workers: int | None = None
    """The most that a rank's loader has."""
    pinned: bool | None = None
    """Whether every rank's loader pins its batches."""
    empty_share: float | None = None
    """Of the fetches that were watched, those that found no batch ready."""
    collate_share: float | None = None
    """The part of the host's input wait that went into collating."""
    rare_share: float | None = None
    """The part of the host's input wait that lies in the tenth of the steps that waited longest."""


NO_LOADER = LoaderFacts()

RARE = 0.1  # of the steps: epochs are longer than ten of them


def loader_facts(
    ranks: Sequence[RankRecords], mean: StepTimes, table: StepTable | None
) -> LoaderFacts:
    """What the ranks' loaders have in common."""
    pinned = [is_pinned for rank in ranks if (is_pinned := _pinned(rank)) is not None]
    return LoaderFacts(
        workers=max(
            (found for rank in ranks if (found := _workers(rank)) is not None),
            default=None,
        ),
        pinned=all(pinned) if pinned else None,
        empty_share=_share_of_watched(ranks, StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY),
        collate_share=(
            mean.collate_s / mean.cpu_input_s
            if mean.collate_s is not None and mean.cpu_input_s
            else None
        ),
        rare_share=None if table is None else _rare_share(table),
    )


def _workers(rank: RankRecords) -> int | None:
    """By the settings, which are read where a step ends: a loader that evaluates may come later."""
    said = None if rank.settings is None else rank.settings.num_workers
    return rank.loader_workers if said is None else said


def _pinned(rank: RankRecords) -> bool | None:
    said = None if rank.settings is None else rank.settings.pin_memory
    return rank.loader_pinned if said is None else said


def queue_dry_share(ranks: Sequence[RankRecords]) -> float | None:
    """Of the steps that were watched, those in which the GPU had caught up with the host."""
    return _share_of_watched(ranks, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY)


def syncs_per_step(ranks: Sequence[RankRecords]) -> float | None:
    """How often the host waited for the device in a mean step; `None` where it was not counted.

    Over complete steps at full resolution, like the shares of what is watched.
    """
    if not ranks:
        return None
    steps = np.concatenate([rank.steps for rank in ranks])
    counts = steps["syncs"][((steps["flags"] & NO_STEP) == 0) & (steps["syncs"] >= 0)]
    return float(counts.mean()) if counts.any() else None


def _rare_share(table: StepTable) -> float | None:
    wait_s = np.nan_to_num(table.field("input_ns")).ravel()
    total_s = float(wait_s.sum())
    longest = math.ceil(len(wait_s) * RARE)
    if not total_s:
        return None
    return float(np.partition(wait_s, -longest)[-longest:].sum()) / total_s


def _share_of_watched(
    ranks: Sequence[RankRecords], watched: StepFlag, seen: StepFlag
) -> float | None:
    """Over complete steps at full resolution; old ones keep no flags."""
    if not ranks:
        return None
    flags = np.concatenate([rank.steps["flags"] for rank in ranks])
    counted = flags[(flags & (NO_STEP | watched)) == watched]
    return int(np.count_nonzero(counted & seen)) / len(counted) if len(counted) else None
