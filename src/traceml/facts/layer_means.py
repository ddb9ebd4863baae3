"""What each layer takes, holds and computes: means over steps, and over the ranks that have it.

Ranks may have other layers, as the stages of a pipeline do: each one's numbers are spread over the
layers of all ranks, NaN for those that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.facts.burst_times import steps_of_rows
from traceml.facts.robust_statistics import Values, known_mean
from traceml.model.layer_names import (
    COMPILED_INSIDE,
    COMPILED_PARTLY,
    COMPILED_WHOLE,
    outer_name,
)
from traceml.store.layer_records import COMMUNICATION, HELD, TIMES, LayerRecords

ONCE = ("forward", "backward")
"""What a model does in each step: MFU is of these alone, also where some is computed again."""


class Bound(Enum):
    """What limits a layer."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One module of the model; times are seconds per step, as means over steps and ranks."""

    name: str
    """Dotted; empty for the model itself."""
    kind: str
    calls: float
    own_s: Mapping[str, float]
    """By phase (`forward`, `recompute`, `backward`): its own time, without the layers below it; a
    phase that was not measured is missing."""
    stderr_s: float | None
    """The standard error of its own time over steps; `None` with a single step."""
    total_s: float | None
    """Its own time and that of every layer below its name; `None` where none was timed, as inside
    compiled code."""
    held_bytes: Mapping[str, int]
    """What it holds itself on the rank that holds the most, by the names of `HELD`; what was not
    measured is missing."""
    communication_s: float | None = None
    """How long it waited for other ranks, which is in none of these times; `None` where it waited
    for none."""
    busy_s: float | None = None
    """Time in which the kernels that it launched ran; `None` where that was not recorded."""
    kernels: float | None = None
    """How many those are."""
    flops: float | None = None
    """Floating-point operations per step of itself, without those below; `None` where they were
    not counted, or not all of them."""
    recompute_flops: float | None = None
    """Those that it does once more in backward (activation checkpointing)."""
    moved_bytes: float | None = None
    """Bytes that all these operations read and write per step, where each starts from memory."""
    flops_per_s: float | None = None
    """How fast it does them, without those that it does once more."""
    bound: Bound | None = None
    """What limits it; `None` where that is not known, or it takes no time."""
    peak_share: float | None = None
    """Its operations per second as a share of what the device can do, 0–1, without those that it
    does once more."""
    worst_rank: int | None = None
    """The rank on which its own time is the longest, and how long; `None` where fewer than two
    ranks have it, as in the stages of a pipeline."""
    worst_s: float | None = None
    median_s: float | None = None
    """Its own time on the median of the ranks that have it: the shorter of the two in the middle
    where their number is even, because no rank takes what is between them."""
    other_rank: int | None = None
    """The other rank where two have it: `median_s` is what that one takes."""
    compiled: str | None = None
    """How it is compiled: `whole`, `partly` or `inside` (see `COMPILED_WHOLE`); `None` where it is
    not. Nothing is known of the time of a layer inside, nor of what it keeps for backward."""

    @property
    def time_s(self) -> float:
        """Its own time in all phases."""
        return sum(self.own_s.values())


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """What one process wrote, and where its layers stand among those of all processes."""

    records: LayerRecords
    places: npt.NDArray[np.intp]
    count: int
    """How many layers all processes have."""

    def spread(self, values: npt.NDArray[Any]) -> Values:
        """Returns values of its own layers as a row of all layers; NaN for those it lacks."""
        row = np.full(self.count, np.nan)
        row[self.places] = values
        return row

    def own_places(self) -> npt.NDArray[np.intp]:
        """Returns for each of all layers its place among this process's own; -1 for none."""
        found = np.full(self.count, -1)
        found[self.places] = np.arange(len(self.places))
        return found


def place_layers(timed: Sequence[LayerRecords], names: Mapping[str, str]) -> list[PlacedRecords]:
    """Returns the records with their layers' places among `names`, those of all processes."""
    places = {name: place for place, name in enumerate(names)}
    return [
        PlacedRecords(each, np.array([places[name] for name in each.names]), len(names))
        for each in timed
    ]


def own_s_by_rank(placed: Sequence[PlacedRecords], key: str) -> Values:
    """Returns mean seconds per step, by process and layer; NaN where it was not measured."""
    found = np.full((len(placed), placed[0].count), np.nan)
    for row, each in enumerate(placed):
        if key in each.records.times_ns:
            means = mean_of_rows(each.records, each.records.times_ns[key]) / 1e9
            found[row] = each.spread(means)
    return found


def mean_of_rows(records: LayerRecords, values: npt.NDArray[Any]) -> Values:
    """Returns means by layer over the steps of all rows; NaN where nothing was measured."""
    weights = records.row_steps
    if not len(weights) or (weights == 1).all():
        return known_mean(values)
    weighed = np.where(np.isnan(values), 0, weights[:, None])
    sums = np.sum(np.nan_to_num(values) * weighed, axis=0)
    steps = weighed.sum(axis=0)
    means: Values = np.where(steps > 0, sums / np.maximum(steps, 1), np.nan)
    return means


def communication_s(placed: Sequence[PlacedRecords], clock: str) -> Values:
    """Returns how long each layer waits for other ranks, as a mean over steps and over the ranks
    that have it; NaN where it waits for none. In a step without such a time nobody waits."""
    rows = []
    for each in placed:
        waits = each.records.times_ns.get(f"{clock}_{COMMUNICATION}")
        means = np.zeros(len(each.places))
        if waits is not None:
            means = mean_of_rows(each.records, np.nan_to_num(waits)) / 1e9
        rows.append(each.spread(means))
    waited = known_mean(np.array(rows))
    return np.where(waited > 0, waited, np.nan)


def sum_of_phases(own: Mapping[str, Values]) -> Values:
    """Returns the time of all phases, by process and layer; NaN where nothing was measured."""
    sums: Values = reduce(np.add, (np.nan_to_num(values) for values in own.values()))
    sums[np.all([np.isnan(values) for values in own.values()], axis=0)] = np.nan
    return sums


def layer_means(
    placed: Sequence[PlacedRecords],
    names: Mapping[str, str],
    own: Mapping[str, Values],
    ranks: Mapping[int, int],
    clock: str,
) -> tuple[LayerFacts, ...]:
    """Returns the layers in the order of `names`, which are their classes by name.

    `own` is their own time by phase, then by process and layer; `ranks` are by process.
    """
    phases = {phase: known_mean(values) for phase, values in own.items()}
    by_rank = sum_of_phases(own)
    totals = _totals_with_inner(list(names), known_mean(by_rank))
    errors = _standard_errors(placed, clock)
    calls = _mean_calls(placed)
    held = _held_on_largest_rank(placed)
    flops = _counted_means(placed, "flops", ONCE)
    again = _counted_means(placed, "flops", ("recompute",))
    for each in placed:
        for places in each.records.uncounted.values():
            unknown = each.places[[place for place in places if place >= 0]]
            flops[unknown] = again[unknown] = np.nan
    moved = _counted_means(placed, "bytes", TIMES)
    busy, kernels = (_kernel_means(placed, key) for key in ("busy_ns", "kernels"))
    rank_of = [ranks.get(each.records.pid, 0) for each in placed]
    worst_ranks, other_ranks, worst, medians = _longest_ranks(by_rank, rank_of)
    waits = communication_s(placed, clock)
    timed = [each.records for each in placed]
    compiled = _compiled(timed, dict(zip(names, np.nan_to_num(calls).tolist(), strict=True)))
    layers = (
        LayerFacts(
            name=name,
            kind=kind,
            calls=float(np.nan_to_num(calls[place])),
            own_s={
                phase: float(means[place])
                for phase, means in phases.items()
                if not np.isnan(means[place])
            },
            stderr_s=_known(errors[place]),
            total_s=_known(totals[place]),
            held_bytes={
                key: int(values[place])
                for key, values in held.items()
                if not np.isnan(values[place])
            },
            communication_s=_known(waits[place]),
            busy_s=_known(busy[place] / 1e9),
            kernels=_known(kernels[place]),
            flops=_known(flops[place]),
            recompute_flops=_known(again[place]),
            moved_bytes=_known(moved[place]),
            worst_rank=worst_ranks[place],
            worst_s=_known(worst[place]),
            median_s=_known(medians[place]),
            other_rank=other_ranks[place],
            compiled=compiled.get(name),
        )
        for place, (name, kind) in enumerate(names.items())
    )
    return tuple(map(_without_unseen, layers))


def _known(value: float) -> float | None:
    """Returns a number as it is; `None` where it was not measured."""
    return None if np.isnan(value) else float(value)


def _compiled(timed: Sequence[LayerRecords], calls: Mapping[str, float]) -> dict[str, str]:
    """Returns how layers are compiled, by name; `calls` are those of every layer per step."""
    whole = {each.names[place] for each in timed for place in each.compiled}
    found = {
        name: COMPILED_INSIDE
        for name, count in calls.items()
        if not count and outer_name(name, whole) is not None
    }
    partly = (each.names[place] for each in timed for place in each.calls_compiled)
    return found | dict.fromkeys(partly, COMPILED_PARTLY) | dict.fromkeys(whole, COMPILED_WHOLE)


def _without_unseen(layer: LayerFacts) -> LayerFacts:
    """Returns a layer inside compiled code without what cannot be known of it."""
    if layer.compiled != COMPILED_INSIDE:
        return layer
    unseen = ("saved", "peak", "reached")
    return replace(
        layer,
        own_s={},
        stderr_s=None,
        total_s=None,
        communication_s=None,
        held_bytes={key: held for key, held in layer.held_bytes.items() if key not in unseen},
        busy_s=None,
        kernels=None,
        flops=None,
        recompute_flops=None,
        moved_bytes=None,
        worst_rank=None,
        worst_s=None,
        median_s=None,
        other_rank=None,
    )


def _mean_calls(placed: Sequence[PlacedRecords]) -> Values:
    """Returns how often each layer is called per step."""
    return known_mean(
        np.array([each.spread(mean_of_rows(each.records, each.records.calls)) for each in placed])
    )


def _longest_ranks(
    by_rank: Values, rank_of: Sequence[int]
) -> tuple[list[int | None], list[int | None], Values, Values]:
    """Returns for each layer: the rank on which it takes the longest, the other rank where exactly
    two have the layer, the longest time, and the time on the median rank.

    `None` and NaN where fewer than two ranks have the layer: there is nothing to compare.
    """
    counts = (~np.isnan(by_rank)).sum(axis=0)
    order = np.argsort(by_rank, axis=0, kind="stable")  # NaN come last
    worst_row = _row_at(order, np.maximum(counts - 1, 0))
    median_row = _row_at(order, np.maximum(counts - 1, 0) // 2)
    columns = np.arange(by_rank.shape[1])
    is_compared = counts > 1
    return (
        [rank_of[row] if has else None for row, has in zip(worst_row, is_compared, strict=True)],
        [rank_of[row] if n == 2 else None for row, n in zip(median_row, counts, strict=True)],
        np.where(is_compared, by_rank[worst_row, columns], np.nan),
        np.where(is_compared, by_rank[median_row, columns], np.nan),
    )


def _row_at(order: npt.NDArray[np.intp], places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Returns for each column of `order` the row number at the given place."""
    found: npt.NDArray[np.intp] = np.take_along_axis(order, places[None, :], axis=0)[0]
    return found


def _totals_with_inner(names: Sequence[str], own_s: Values) -> Values:
    """Returns each layer's time with that of all layers below its name; NaN where none of them
    was timed."""
    places = {name: place for place, name in enumerate(names)}
    totals: Values = own_s.copy()
    for place in sorted(range(len(names)), key=lambda place: -_depth(names[place])):
        outer = outer_name(names[place], places)
        if outer is not None and not np.isnan(totals[place]):
            totals[places[outer]] = np.nan_to_num(totals[places[outer]]) + totals[place]
    return totals


def _depth(name: str) -> int:
    return 0 if not name else name.count(".") + 1


def _standard_errors(placed: Sequence[PlacedRecords], clock: str) -> Values:
    """Returns the standard error of each layer's own time over the steps of all ranks; NaN with
    fewer than two rows.

    A row that is the mean of several steps counts as often as it has steps, as in the mean itself.
    """
    rows, count, total, squares = (np.zeros(placed[0].count) for _ in range(4))
    for each in placed:
        times_ns = each.records.times_ns
        steps_s = reduce(
            np.add,
            (
                np.nan_to_num(times_ns[key]) / 1e9
                for phase in TIMES
                if (key := f"{clock}_{phase}") in times_ns
            ),
        )
        weights = steps_of_rows(each.records)[:, None]
        rows[each.places] += len(steps_s)
        count[each.places] += weights.sum()
        total[each.places] += (weights * steps_s).sum(axis=0)
        squares[each.places] += (weights * steps_s**2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.maximum(squares - total**2 / count, 0.0) / (rows - 1)
        errors: Values = np.where(rows > 1, np.sqrt(variance / count), np.nan)
    return errors


def _held_on_largest_rank(placed: Sequence[PlacedRecords]) -> dict[str, Values]:
    """Returns what each layer holds on the rank that holds the most, by the names of `HELD`; NaN
    where that was not measured."""
    found: dict[str, Values] = {}
    for each in placed:
        for key in HELD:
            if key in each.records.held_bytes:
                values = each.spread(each.records.held_bytes[key])
                found[key] = np.fmax(found.get(key, np.nan), values)
    return found


def _kernel_means(placed: Sequence[PlacedRecords], what: str) -> Values:
    """Returns a mean by layer over the steps of the ranks that have it; NaN where no activity was
    recorded."""
    total, steps = np.zeros((2, placed[0].count))
    for each in placed:
        for step in each.records.kernels:
            total[each.places] += getattr(step, f"layer_{what}") * step.steps
            steps[each.places] += step.steps
    means: Values = np.where(steps > 0, total / np.maximum(steps, 1), np.nan)
    return means


def _counted_means(placed: Sequence[PlacedRecords], what: str, phases: Sequence[str]) -> Values:
    """Returns operations or bytes of these phases by layer, as a mean over the ranks that have it;
    NaN where no rank counted. Older records have what is computed again in `forward`."""
    keys = [f"{phase}_{what}" for phase in phases]
    rows = [
        each.spread(np.sum([counted[key] for key in keys if key in counted], axis=0))
        for each in placed
        if f"forward_{what}" in (counted := each.records.counted)
    ]
    return known_mean(np.array([*rows, np.full(placed[0].count, np.nan)]))
