"""How the training batches were loaded, and how often the GPU ran out of work meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import StepTable
from traceml.facts.times import StepTimes
from traceml.model.record_layout import NO_STEP, StepFlag
from traceml.store.records import RankRecords

Flags = npt.NDArray[np.uint32]
"""The flags of steps, of `StepFlag`."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The training data loaders of all ranks; `None` means "not seen"."""

    workers: int | None = None
    """The largest number of workers of any rank's loader."""
    pinned: bool | None = None
    """Whether every rank's loader pins its batches."""
    empty_share: float | None = None
    """The share of the watched fetches that found no batch ready, 0–1."""
    collate_share: float | None = None
    """The share of the host's input wait that was spent collating, 0–1."""
    rare_share: float | None = None
    """The share of the host's input wait that lies in the tenth of the steps with the longest
    waits."""


NO_LOADER = LoaderFacts()

RARE = 0.1
"""Of the steps. Epochs are longer than ten steps, so a wait once per epoch is in this share."""


def flags_of_complete(ranks: Sequence[RankRecords]) -> Flags:
    """Returns the flags of all ranks' complete steps; blocks of old steps keep none."""
    if not ranks:
        return np.empty(0, np.uint32)
    flags: Flags = np.concatenate([rank.steps["flags"] for rank in ranks])
    is_step = (flags & NO_STEP) == 0
    return flags if is_step.all() else np.asarray(flags[is_step])


def loader_facts(
    ranks: Sequence[RankRecords], mean: StepTimes, table: StepTable | None, flags: Flags
) -> LoaderFacts:
    """Returns what the ranks' loaders have in common; `flags` are those of their complete steps."""
    pinned = [is_pinned for rank in ranks if (is_pinned := _pinned(rank)) is not None]
    return LoaderFacts(
        workers=max(
            (found for rank in ranks if (found := _workers(rank)) is not None),
            default=None,
        ),
        pinned=all(pinned) if pinned else None,
        empty_share=_share_of_watched(flags, StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY),
        collate_share=(
            mean.collate_s / mean.cpu_input_s
            if mean.collate_s is not None and mean.cpu_input_s
            else None
        ),
        rare_share=None if table is None else _rare_share(table),
    )


def _workers(rank: RankRecords) -> int | None:
    """Returns the number of workers; from the settings, if recorded, because those are read at a
    training step, while the loader seen last may be one for evaluation."""
    said = None if rank.settings is None else rank.settings.num_workers
    return rank.loader_workers if said is None else said


def _pinned(rank: RankRecords) -> bool | None:
    said = None if rank.settings is None else rank.settings.pin_memory
    return rank.loader_pinned if said is None else said


def queue_dry_share(flags: Flags) -> float | None:
    """Returns the share of the watched steps in which the GPU had no work left; `None` if none was
    watched."""
    return _share_of_watched(flags, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY)


def syncs_per_step(ranks: Sequence[RankRecords]) -> float | None:
    """Returns how often per step the host waited for the device; `None` where it was not counted.

    Steps that are merged into blocks are left out.
    """
    if not ranks:
        return None
    syncs = np.concatenate([rank.steps["syncs"] for rank in ranks])
    if not (syncs > 0).any():
        return None
    flags = np.concatenate([rank.steps["flags"] for rank in ranks])
    counts = syncs[((flags & NO_STEP) == 0) & (syncs >= 0)]
    return float(counts.mean()) if counts.any() else None


def _rare_share(table: StepTable) -> float | None:
    wait_s = np.nan_to_num(table.field("input_ns"), copy=False).ravel()
    total_s = float(wait_s.sum())
    longest = math.ceil(len(wait_s) * RARE)
    if not total_s:
        return None
    wait_s.partition(-longest)  # in place: the table of a large run is large
    return float(wait_s[-longest:].sum()) / total_s


def _share_of_watched(flags: Flags, watched: StepFlag, seen: StepFlag) -> float | None:
    """Returns the share of the watched steps that have a flag."""
    counted = flags[(flags & watched) != 0]
    return int(np.count_nonzero(counted & seen)) / len(counted) if len(counted) else None
