"""Gradients and activations by layer: which became non-finite first, and which grew before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.store.layer_records import BadLayer, LayerRecords

Values = npt.NDArray[np.float64]

MIN_NORMS = 8
"""Norms that say what is usual; with fewer nobody can say."""
EXPLODED = 100.0
"""Times the usual norm of the whole model, for it to have exploded …"""
ABOVE_START = 10.0
"""… and times what it was at first: gradients that had vanished may come back."""
ROSE = 10.0
"""Times its usual norm, for a single layer to have risen; below it an explosion is over."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """The first value of a rank that was infinite or not a number, as far as it was looked for."""

    rank: int
    step: int
    phase: str
    """`forward`: a layer returned it, or the loss was computed from finite numbers. `backward`: the
    loss was finite, a gradient was not."""
    layer: str | None
    """The layer that made it; `None` where only the step and the phase are known."""
    kind: str | None = None
    """That layer's class."""
    finite_layer: str | None = None
    """In backward: the layer with parameters whose gradient was computed just before and finite."""
    finite_step: int | None = None
    """The last step before it that was looked at; `None` where there was none."""
    is_scaled: bool = False
    """Whether a scaler had scaled the loss: as long as the loss is finite, it is about to skip the
    step and go on."""
    is_of_inputs: bool = False
    """Whether the batch that the model was given held it: no layer made it."""


@dataclass(frozen=True, slots=True)
class GradientRise:
    """The gradient of all layers of a rank grew far above what it had been, and did not come
    back."""

    rank: int
    step: int
    """Where it passed `EXPLODED` times the usual norm."""
    usual: float
    norm: float
    """The largest finite norm from there on."""
    layer: str
    """The layer whose gradient rose first …"""
    layer_step: int
    """… at this step, …"""
    layer_usual: float
    layer_norm: float
    """… and how large it was when the whole had exploded."""
    lasts: bool
    """Whether it was still so at the end, as a finite number."""


@dataclass(frozen=True, slots=True)
class GradientFacts:
    """The gradients of a run, before clipping and without a scaler's factor."""

    steps: int = 0
    """How many steps of the rank with the most were measured; where the model is spread over
    several ranks, those that were measured on all of them."""
    first: float | None = None
    """The norm of the whole model, all stages of a pipeline together: its median at first, …"""
    usual: float | None = None
    """… over all finite ones, …"""
    last: float | None = None
    """… and the last finite one."""
    bad_to_the_end: int = 0
    """In how many of the last measured steps in a row a gradient was not finite."""
    bad_value: BadValue | None = None
    rise: GradientRise | None = None
    layer_norms: Mapping[str, float] | None = None
    """The median norm of each layer that has parameters, of the rank with the most steps that has
    it."""


NO_GRADIENTS = GradientFacts()


def gradient_facts(records: Sequence[LayerRecords], ranks: Mapping[int, int]) -> GradientFacts:
    """Returns what the norms and activations of a run say; `ranks` are its processes' by pid."""
    measured = [each for each in records if each.norms.steps]
    rank_of = {each.pid: ranks.get(each.pid, 0) for each in records}
    bad = [_bad_value(each, rank_of[each.pid]) for each in records]
    bad_value = min(
        filter(None, bad), key=lambda each: (each.step, each.layer is None), default=None
    )
    if not measured:
        return GradientFacts(bad_value=bad_value)
    rises = filter(None, (_rise(each, rank_of[each.pid]) for each in measured))
    stages = _stages(measured)
    totals = _whole_model(stages)
    finite = totals[np.isfinite(totals)]
    return GradientFacts(
        steps=len(totals),
        first=_median(finite[:MIN_NORMS]),
        usual=_median(finite),
        last=float(finite[-1]) if len(finite) else None,
        bad_to_the_end=len(totals) - _bad_from(totals),
        bad_value=bad_value,
        rise=min(rises, key=lambda each: each.layer_step, default=None),
        layer_norms=_layer_norms(stages),
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """A part of the model, as the rank with the most steps measured it."""

    records: LayerRecords
    places: tuple[int, ...]
    """Its layers: those with a norm that no stage before it has."""


def _stages(measured: Sequence[LayerRecords]) -> list[_Stage]:
    """Returns the parts of the model that have other layers than one another, such as the stages of
    a pipeline; a single one where all ranks have the same layers."""
    stages: list[_Stage] = []
    seen: set[str] = set()
    for each in sorted(measured, key=lambda each: -len(each.norms.steps)):
        owners = np.flatnonzero(~np.isnan(each.norms.values).all(axis=0)).tolist()
        places = tuple(place for place in owners if each.names[place] not in seen)
        if places or not stages:
            stages.append(_Stage(each, places))
            seen.update(each.names[place] for place in places)
    return stages


def _whole_model(stages: Sequence[_Stage]) -> Values:
    """Returns the norm of the whole model in each step that was measured on all stages; infinity
    where not finite."""
    steps = sorted(set.intersection(*(set(stage.records.norms.steps) for stage in stages)))
    squares = np.zeros(len(steps))
    for stage in stages:
        row_of = {step: row for row, step in enumerate(stage.records.norms.steps)}
        rows = [row_of[step] for step in steps]
        values = stage.records.norms.values[np.ix_(rows, stage.places)]
        squares += np.nansum(values**2, axis=1)
    return np.asarray(np.sqrt(squares))


def _totals(records: LayerRecords) -> Values:
    """Returns the norm of a rank's layers in each measured step; infinity where not finite."""
    return np.asarray(np.sqrt(np.nansum(records.norms.values**2, axis=1)))


def _median(values: Values) -> float | None:
    return float(np.median(values)) if len(values) else None


def _layer_norms(stages: Sequence[_Stage]) -> dict[str, float]:
    found = {}
    for stage in stages:
        for place in stage.places:
            values = stage.records.norms.values[:, place]
            finite = values[np.isfinite(values)]
            if len(finite):
                found[stage.records.names[place]] = float(np.median(finite))
    return found


# What became non-finite


def _bad_from(totals: Values) -> int:
    """Returns where the non-finite norms begin that go on to the end; the length if none do."""
    finite = np.flatnonzero(np.isfinite(totals))
    return int(finite[-1]) + 1 if len(finite) else 0


def _bad_value(records: LayerRecords, rank: int) -> BadValue | None:
    """Returns the first bad value that training did not recover from.

    A step that a scaler or the script skips leaves gradients finite again, and counts for nothing.
    """
    totals = _totals(records) if records.norms.steps else np.zeros(0)
    row = _bad_from(totals)
    if row == len(totals):
        return None
    step = records.norms.steps[row]
    before = records.norms.steps[row - 1] if row else None
    norms = records.norms.values[row]
    seen_in_loss = _seen_in_loss(records, rank, before, step)
    if seen_in_loss is not None:
        return seen_in_loss
    seen = _bad_activation(records, step, before)
    is_scaled = step in records.scaled_steps
    if seen is not None:
        step, place = seen
        name, kind = records.names[place], records.kinds[place]
        if BadLayer(step, place) in records.bad_layers:
            before = step - 1  # where losses are looked at, it is every one of them
        return BadValue(rank, step, "forward", name, kind, None, before, is_scaled)
    if np.isinf(norms[~np.isnan(norms)]).all():
        return BadValue(rank, step, "forward", None, None, None, before, is_scaled)
    place, finite = _backward_layer(records, norms)
    name, kind = records.names[place], records.kinds[place]
    finite_name = None if finite is None else records.names[finite]
    return BadValue(rank, step, "backward", name, kind, finite_name, before, is_scaled)


def _seen_in_loss(
    records: LayerRecords, rank: int, finite_step: int | None, step: int
) -> BadValue | None:
    """Returns what the graph of the first loss that was not finite says, where that is of the batch
    or of parameters: then no layer's forward pass made the value."""
    after = finite_step or 0
    inputs = [each for each in records.bad_inputs if after < each <= step]
    updates = [each for each in records.bad_parameters if after <= each.step <= step]
    layers = [each.step for each in records.bad_layers if after < each.step <= step]
    first = min([*inputs, *(each.step for each in updates), *layers], default=None)
    if first is None or first in layers:
        return None
    if first in inputs:
        return BadValue(rank, first, "forward", None, finite_step=first - 1, is_of_inputs=True)
    norms = np.zeros(len(records.names))
    norms[list(updates[0].layers)] = np.inf
    owners = {place for each in records.norms.values for place in np.flatnonzero(~np.isnan(each))}
    norms[[place not in owners for place in range(len(norms))]] = np.nan
    place, finite = _backward_layer(records, norms)
    return BadValue(
        rank,
        first,
        "backward",
        records.names[place],
        records.kinds[place],
        None if finite is None else records.names[finite],
        first - 1,
    )


def _bad_activation(
    records: LayerRecords, step: int, finite_step: int | None
) -> tuple[int, int] | None:
    """Returns the step and the layer that first returned a non-finite value, where that was seen no
    later than a gradient was: after it, parameters are no longer finite either."""
    for bad in records.bad_layers:
        if (finite_step or 0) < bad.step <= step:
            return bad.step, bad.layer
    for row, seen in enumerate(records.largest.steps):
        bad_places = set(np.flatnonzero(np.isinf(records.largest.values[row])).tolist())
        if bad_places and (finite_step or 0) < seen <= step:
            order = [*records.return_order, *_never_returned(records)]
            return seen, next(place for place in order if place in bad_places)
    return None


def _backward_layer(records: LayerRecords, norms: Values) -> tuple[int, int | None]:
    """Returns the layer in whose backward pass a gradient became non-finite, and the one before.

    Backward goes against the order in which layers return. The last layer with a bad gradient got
    or made the first bad value; a layer without parameters that lies behind it may have made it: of
    those, one that the script itself defines is named rather than one of a library's.
    """
    order = _backward_order(records)
    bad = [number for number, place in enumerate(order) if np.isinf(norms[place])][-1]
    behind = order[bad + 1 :]
    finite = next((place for place in behind if np.isfinite(norms[place])), None)
    between = behind if finite is None else behind[: behind.index(finite)]
    suspects = [
        place
        for place in between
        if place not in records.of_library and not _has_below(records.names, place)
    ]
    return (suspects[0] if suspects else order[bad]), finite


def _backward_order(records: LayerRecords) -> list[int]:
    """Returns all layers, those last that backward reaches first.

    One that is never called, its parameters used directly, must not pass for one of those.
    """
    return [*_never_returned(records), *records.return_order]


def _never_returned(records: LayerRecords) -> list[int]:
    """Returns the layers that were not called in the step whose order is known."""
    known = set(records.return_order)
    return [place for place in range(len(records.names)) if place not in known]


def _has_below(names: Sequence[str], place: int) -> bool:
    """Returns whether a layer holds others."""
    prefix = f"{names[place]}." if names[place] else ""
    return any(name.startswith(prefix) for number, name in enumerate(names) if number != place)


# What grew


def _rise(records: LayerRecords, rank: int) -> GradientRise | None:
    totals, steps = _totals(records), records.norms.steps
    end = _bad_from(totals)
    found = _explosion(totals[:end])
    if found is None:
        return None
    at, usual_at = found
    layers = records.norms.values[:end]
    usual_rows = slice(usual_at, usual_at + MIN_NORMS)
    usual = float(np.median(totals[usual_rows]))
    place, first = _first_to_rise(layers, at, usual_rows, usual, _backward_order(records))
    largest = totals[at:end]
    return GradientRise(
        rank=rank,
        step=steps[at],
        usual=usual,
        norm=float(np.max(largest[np.isfinite(largest)])),
        layer=records.names[place],
        layer_step=steps[first],
        layer_usual=float(np.median(layers[usual_rows, place])),
        layer_norm=float(layers[at, place]),
        lasts=end == len(totals),
    )


def _explosion(totals: Values) -> tuple[int, int] | None:
    """Returns where the norm explodes for good, and where the norms that are usual begin."""
    if len(totals) <= MIN_NORMS:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(totals, MIN_NORMS)
    medians = np.median(windows, axis=1)
    lowest = np.minimum.accumulate(medians)
    # What a norm is compared with: the lowest median of the norms before it.
    usual = np.concatenate([np.full(MIN_NORMS, np.inf), lowest[:-1]])
    stays = np.minimum.accumulate(totals[::-1])[::-1]
    is_exploded = (
        (totals >= EXPLODED * usual)
        & (totals >= ABOVE_START * medians[0])
        & (stays >= ROSE * usual)
        & (_tail_means(totals) >= EXPLODED * usual)
        & np.isfinite(totals)
        & (usual > 0)
    )
    if not is_exploded.any():
        return None
    at = int(np.argmax(is_exploded))
    return at, int(np.argmin(medians[: at - MIN_NORMS + 1]))


def _tail_means(totals: Values) -> Values:
    """Returns the geometric mean of each norm and all finite ones after it: a single high norm
    among many that scatter widely is no explosion."""
    is_finite = np.isfinite(totals)
    logs = np.log(
        np.maximum(totals, np.finfo(float).tiny), where=is_finite, out=np.zeros(len(totals))
    )
    sums, counts = np.cumsum(logs[::-1]), np.cumsum(is_finite[::-1])
    means: Values = np.exp(sums / np.maximum(counts, 1))[::-1]
    return means


def _first_to_rise(
    layers: Values, at: int, usual_rows: slice, usual_total: float, order: Sequence[int]
) -> tuple[int, int]:
    """Returns the layer that rose first, and the row in which it did.

    A layer whose gradient is small even then is no cause: it must reach the usual norm of all. Of
    those that rose together, the one that backward reaches first passes it on to the others.
    """
    usual = np.median(layers[usual_rows], axis=0)
    is_risen = layers[: at + 1] >= ROSE * np.maximum(usual, np.finfo(float).tiny)
    stays = np.minimum.accumulate(is_risen[::-1], axis=0)[::-1]
    first = np.where(stays.any(axis=0), np.argmax(stays, axis=0), at + 1)
    first[~(layers[at] >= usual_total)] = at + 1
    earliest = int(first.min())
    if earliest > at:
        return int(np.nanargmax(layers[at])), at
    return next(place for place in reversed(order) if first[place] == earliest), earliest
