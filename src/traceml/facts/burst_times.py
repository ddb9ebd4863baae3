"""How long the layers and kernels of each rank took, burst by burst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.robust_statistics import Values, known_mean
from traceml.store.layer_records import TIMES, Launches, LayerRecords

MAX_COMPARED = 256
"""The layers that take the longest on some rank; what is shorter costs too little to be told."""


@dataclass(frozen=True, slots=True)
class BurstTimes:
    """How long one rank's layers, or kernels, took in each burst."""

    rank: int
    steps: npt.NDArray[np.int64]
    """The first step of each burst."""
    seconds: Values
    """By burst and layer; NaN where a layer did not run."""
    calls: Values
    """By layer: how often per step."""


def longest_layers(seconds: Values) -> npt.NDArray[np.intp]:
    """Returns the places of the layers that are compared, in their order: those that take the
    longest on some rank. `seconds` is by rank and layer."""
    longest = np.nan_to_num(seconds).max(axis=0)
    return np.sort(np.argsort(-longest, kind="stable")[:MAX_COMPARED])


def layer_bursts(
    record: LayerRecords,
    rank: int,
    clock: str,
    places: npt.NDArray[np.intp],
    steps_per_row: int = 1,
) -> BurstTimes:
    """Returns the own times of layers by burst; `places` are those of the compared layers among
    this process's own, -1 where it has none of that name.

    Of a burst's steps each layer's shortest time counts: an interruption only ever adds to it. In a
    long run some rows are means of several steps, up to `steps_per_row`: then every burst is the
    mean of so many, since a mean is above a shortest time.
    """
    has, own = places >= 0, places[places >= 0]
    parts = [
        np.nan_to_num(record.times_ns[key][:, own])
        for phase in TIMES
        if (key := f"{clock}_{phase}") in record.times_ns
    ]
    steps = np.asarray(record.steps, np.int64)
    order = np.argsort(steps, kind="stable")
    steps, own_ns, weights = (
        steps[order],
        np.sum(parts, axis=0)[order],
        steps_of_rows(record)[order],
    )
    if steps_per_row > 1:
        starts = _group_starts(weights, steps_per_row)
        burst_s = _group_means(own_ns, weights, starts) / 1e9
    else:
        starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 2) != 1)
        burst_s = np.minimum.reduceat(own_ns, starts, axis=0) / 1e9
    seconds, calls = np.full((len(starts), len(places)), np.nan), np.full(len(places), np.nan)
    seconds[:, has] = np.where(burst_s > 0, burst_s, np.nan)
    calls[has] = np.average(record.calls[:, own], axis=0, weights=steps_of_rows(record))
    return BurstTimes(rank, steps[starts], seconds, calls)


def max_steps_per_row(records: Iterable[LayerRecords]) -> int:
    """Returns how many steps share a row at most."""
    return max((int(steps_of_rows(each).max(initial=1)) for each in records), default=1)


def _group_starts(weights: npt.NDArray[np.int64], steps: int) -> npt.NDArray[np.intp]:
    """Returns the first row of each group of rows that have about so many steps together."""
    groups = (np.cumsum(weights) - weights) // steps
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _group_means(
    values: Values, weights: npt.NDArray[np.int64], starts: npt.NDArray[np.intp]
) -> Values:
    """Returns the mean step of each group of rows."""
    if not len(starts):
        return values[:0]
    sums = np.add.reduceat(values * weights[:, None], starts, axis=0)
    means: Values = sums / np.add.reduceat(weights, starts)[:, None]
    return means


def steps_of_rows(record: LayerRecords) -> npt.NDArray[np.int64]:
    """Returns how many steps each row is the mean of."""
    return record.row_steps if len(record.row_steps) else np.ones(len(record.steps), np.int64)


def kernel_bursts(
    records: Sequence[LayerRecords], ranks: Mapping[int, int]
) -> tuple[list[tuple[str, str]], list[BurstTimes]]:
    """Returns the kernels of each layer as (name, layer), and their times on each rank; without
    those that wait for other ranks.

    In a long run some rows are means of several steps: then all are means of about as many.
    """
    largest = max((step.steps for each in records for step in each.kernels), default=1)
    columns: dict[tuple[str, str], int] = {}
    places = {
        (record.pid, step.launches): _places(step.launches, record.names, columns)
        for record in records
        for step in {step.launches: step for step in record.kernels}.values()
    }
    bursts = []
    for record in records:
        seconds, calls = (np.zeros((len(record.kernels), len(columns) + 1)) for _ in range(2))
        for row, step in enumerate(record.kernels):
            at = places[record.pid, step.launches]
            np.add.at(seconds[row], at, step.ns / 1e9)
            np.add.at(calls[row], at, step.calls)
        weights = np.array([step.steps for step in record.kernels], np.int64)
        starts = _group_starts(weights, largest)
        seconds, calls = (_group_means(each, weights, starts) for each in (seconds, calls))
        seconds, calls = (np.where(each > 0, each, np.nan)[:, :-1] for each in (seconds, calls))
        steps = np.array([step.step for step in record.kernels], np.int64)[starts]
        bursts.append(BurstTimes(ranks.get(record.pid, 0), steps, seconds, known_mean(calls)))
    return list(columns), bursts


def _places(
    launches: Launches, names: Sequence[str], columns: dict[tuple[str, str], int]
) -> npt.NDArray[np.intp]:
    """Returns the column of each launch; new ones are added, and the last one (-1) is for those
    that are not compared."""
    found = []
    for name, layer in zip(launches.names, launches.layers.tolist(), strict=True):
        if "ccl" in name.lower():  # NCCL and RCCL: waiting for others is in it
            found.append(-1)
        else:
            key = name, names[layer] if layer >= 0 else ""
            found.append(columns.setdefault(key, len(columns)))
    return np.array(found, np.intp)
