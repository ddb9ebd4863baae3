"""Gradients and activations by layer: which became non-finite first, and which grew before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from traceml.facts.gradient_curves import (
    NormCurves,
    median_norms,
    model_stages,
    norm_curves,
    whole_model,
)
from traceml.store.layer_records import BadLayer, BadLoss, BadParameters, LayerRecords

Values = npt.NDArray[np.float64]

MIN_NORMS = 8
"""Norms that say what is usual; with fewer nobody can say."""
EXPLODED = 100.0
"""Times the usual norm of the whole model, for it to have exploded …"""
ABOVE_START = 10.0
"""… and times what it was at first: gradients that had vanished may come back."""
ROSE = 10.0
"""Times its usual norm, for a single layer to have risen; below it an explosion is over."""
RISING = 3.0
"""Times its usual norm, for a layer to rise together with one that has risen: which of two passes a
threshold in the same step is left to their noise. Above it noise is no reason."""


class NamedLayer(NamedTuple):
    """A layer as sentences name it."""

    name: str
    kind: str | None = None
    """Its class."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """The first value of a rank that was infinite or not a number, as far as it was looked for."""

    rank: int
    step: int
    phase: str
    """`forward`: a layer returned it, or the loss was computed from finite numbers. `backward`: the
    loss was finite, a gradient was not. `optimizer`: no gradient that was not finite is known, and
    parameters were not after the step. `start`: parameters were not before the first step."""
    layer: str | None
    """The layer that made it, or whose parameters they are; `None` where only the step and the
    phase are known."""
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
    is_of_loss: bool = False
    """Whether it was seen in the loss alone: which layer made it, or none, is not known …"""
    are_layers_finite: bool = False
    """… unless every layer is known to have returned finite values in that step: none did."""
    own_kinds: tuple[str, ...] = ()
    """The classes of the script's own layers, any of which may have made it, …"""
    is_packed: bool = False
    """… and whether none is known because of what packs or hides what layers save for backward."""
    is_of_parameters: bool = False
    """Whether it was seen in parameters alone, because the gradients of that step were not
    measured: the phase is the likely one."""
    grown_norm: float | None = None
    """In backward: the norm of `finite_layer`, where the gradient had exploded before it got to the
    first layer in which it was not finite: none of these layers made it so …"""
    usual_norm: float | None = None
    """… and what that norm usually was."""
    others: tuple[NamedLayer, ...] = ()
    """Further layers that are as likely to have made it, be it in what is computed between them."""
    or_loss: bool = False
    """In forward: whether the loss function is as likely to have made it."""


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
    """… and the last finite one, …"""
    last_step: int | None = None
    """… with its step."""
    bad_value: BadValue | None = None
    rise: GradientRise | None = None
    layer_norms: Mapping[str, float] | None = None
    """The median norm of each layer that has parameters, of the rank with the most steps that has
    it."""
    curves: NormCurves | None = None
    """The norms over steps; `None` where fewer than two steps were measured."""

    def counted_from(self, first: int) -> GradientFacts:
        """Returns the same facts with steps numbered in the run: `first` steps came before the
        first step of these processes."""
        bad, rise, curves = self.bad_value, self.rise, self.curves
        return replace(
            self,
            last_step=_shifted(self.last_step, first),
            bad_value=None
            if bad is None
            else replace(bad, step=bad.step + first, finite_step=_shifted(bad.finite_step, first)),
            rise=None
            if rise is None
            else replace(rise, step=rise.step + first, layer_step=rise.layer_step + first),
            curves=None
            if curves is None
            else replace(curves, steps=tuple(step + first for step in curves.steps)),
        )


def _shifted(step: int | None, first: int) -> int | None:
    return None if step is None else step + first


NO_GRADIENTS = GradientFacts()


def gradient_facts(records: Sequence[LayerRecords], ranks: Mapping[int, int]) -> GradientFacts:
    """Returns what the norms and activations say of the layers that the model had at the end;
    `ranks` are the run's processes' by pid."""
    records = [each.at_end for each in records]
    measured = [each for each in records if each.norms.steps]
    rank_of = {each.pid: ranks.get(each.pid, 0) for each in records}
    bad = [_bad_value(each, rank_of[each.pid]) for each in records]
    bad_value = min(
        filter(None, bad), key=lambda each: (each.step, each.layer is None), default=None
    )
    if not measured:
        return GradientFacts(bad_value=bad_value)
    rises = filter(None, (_rise(each, rank_of[each.pid]) for each in measured))
    rise = min(rises, key=lambda each: each.layer_step, default=None)
    stages = model_stages(measured)
    steps, totals = whole_model(stages)
    norms = median_norms(stages)
    wanted = [each.layer for each in (rise, bad_value) if each is not None and each.layer]
    is_finite = np.isfinite(totals)
    finite = totals[is_finite]
    return GradientFacts(
        steps=len(totals),
        first=_median(finite[:MIN_NORMS]),
        usual=_median(finite),
        last=float(finite[-1]) if len(finite) else None,
        last_step=steps[np.flatnonzero(is_finite)[-1]] if len(finite) else None,
        bad_value=bad_value,
        rise=rise,
        layer_norms=norms,
        curves=norm_curves(stages, norms, wanted),
    )


def _totals(records: LayerRecords) -> Values:
    """Returns the norm of a rank's layers in each measured step; infinity where not finite."""
    return np.asarray(np.sqrt(np.nansum(records.norms.values**2, axis=1)))


def _median(values: Values) -> float | None:
    return float(np.median(values)) if len(values) else None


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
        if seen in records.bad_layers:
            before = seen.step - 1  # where losses are looked at, it is every one of them
        first, *others = _named(records, [seen.layer, *seen.others])
        found = BadValue(rank, seen.step, "forward", first.name, first.kind, None, before)
        return replace(found, is_scaled=is_scaled, others=tuple(others), or_loss=seen.or_loss)
    if np.isinf(norms[~np.isnan(norms)]).all():
        return BadValue(rank, step, "forward", None, None, None, before, is_scaled)
    found = BadValue(rank, step, "backward", None, None, None, before, is_scaled)
    return _lost_in_backward(records, found, norms)


def _seen_in_loss(
    records: LayerRecords, rank: int, finite_step: int | None, step: int
) -> BadValue | None:
    """Returns the first bad value that was found by looking at a non-finite loss; `None` where
    there is none, or where the loss's graph names a layer whose forward pass made it."""
    after = finite_step or 0
    inputs = [each for each in records.bad_inputs if after < each <= step]
    updates = [each for each in records.bad_parameters if after <= each.step <= step]
    layers = [each.step for each in records.bad_layers if after < each.step <= step]
    losses = {each.step: each for each in records.bad_losses if after < each.step <= step}
    first = min([*inputs, *(each.step for each in updates), *layers, *losses], default=None)
    if first is None or first in layers:
        return None
    if first in inputs:
        return BadValue(rank, first, "forward", None, finite_step=first - 1, is_of_inputs=True)
    if first in losses:
        return _bad_loss(records, rank, losses[first])
    return _bad_after(records, rank, updates[0])


def _bad_loss(records: LayerRecords, rank: int, lost: BadLoss) -> BadValue:
    """Returns the bad value of a step whose loss was non-finite and whose graph names no layer: the
    first layer that returned such a value, else the loss itself."""
    step = lost.step
    found = _bad_value_of(records, rank, step, "forward", _first_bad_returned(records, step))
    if found.layer is not None:
        return found
    if _is_model_finite(records, step):
        return replace(found, is_of_loss=True, are_layers_finite=True)
    kinds = _own_kinds(records)
    return replace(found, is_of_loss=True, is_packed=lost.is_packed, own_kinds=kinds)


def _own_kinds(records: LayerRecords) -> tuple[str, ...]:
    """Returns the classes of the layers that the script itself defines, innermost layers first."""
    own = [place for place in range(len(records.names)) if place not in records.of_library]
    holders = set(filter(lambda place: _has_below(records.names, place), own))
    ordered = sorted(own, key=lambda place: place in holders)
    return tuple(dict.fromkeys(records.kinds[place] for place in ordered))


def _is_model_finite(records: LayerRecords, step: int) -> bool:
    """Returns whether what the model returned in a step is known to have been finite."""
    if step not in records.largest.steps:
        return False
    row = records.largest.values[records.largest.steps.index(step)]
    names = records.names
    outer = [place for place, name in enumerate(names) if "." not in name]
    if "" in names:
        outer = [names.index("")]
    return bool(outer) and bool(np.isfinite(row[outer]).all())


def _first_bad_returned(records: LayerRecords, step: int) -> int | None:
    """Returns the layer that was the first to return a non-finite value in a step; `None` where
    none did, or what they returned was not looked at."""
    if step not in records.largest.steps:
        return None
    row = records.largest.values[records.largest.steps.index(step)]
    bad_places = set(np.flatnonzero(np.isinf(row)).tolist())
    order = [*records.return_order, *_never_returned(records)]
    return next((place for place in order if place in bad_places), None)


def _bad_after(records: LayerRecords, rank: int, found: BadParameters) -> BadValue:
    """Returns the bad value behind parameters that became non-finite in a step whose loss was
    finite.

    The gradients of that step tell where it came from, if they were measured. If they were not, the
    layers of these parameters tell it, unless all layers have such parameters: clipping by a
    non-finite total norm spreads it to every layer.
    """
    step = found.step
    norms = None if found.is_within_step else _norms_of(records, step)
    is_owner = np.any(~np.isnan(records.norms.values), axis=0)
    spoiled = [place for place in found.layers if is_owner[place]]
    only = found.layers[0] if len(found.layers) == 1 else None
    are_some = len(spoiled) < is_owner.sum()
    if step < 1:
        first = found.layers[0] if are_some else only
        return replace(_bad_value_of(records, rank, 1, "start", first), finite_step=None)
    is_measured = norms is not None and not np.isnan(norms[spoiled]).any()
    if not is_measured and not spoiled:
        return replace(_bad_value_of(records, rank, step, "optimizer", only), is_of_parameters=True)
    if norms is None or not is_measured:
        norms = np.where(is_owner, 0.0, np.nan)
        norms[spoiled] = np.inf
    if not np.isinf(norms).any():
        return _bad_value_of(records, rank, step, "optimizer", only)
    lost = _bad_value_of(records, rank, step, "backward", None)
    if np.isfinite(norms).any():
        lost = _lost_in_backward(records, lost, norms)
    return replace(lost, is_of_parameters=not is_measured)


def _bad_value_of(
    records: LayerRecords, rank: int, step: int, phase: str, place: int | None
) -> BadValue:
    """Returns a bad value of a step; the loss was checked in each step before it."""
    name, kind = (None, None) if place is None else (records.names[place], records.kinds[place])
    return BadValue(rank, step, phase, name, kind, finite_step=step - 1)


def _norms_of(records: LayerRecords, step: int) -> Values | None:
    """Returns the norms of a step; `None` where they were not measured."""
    if step not in records.norms.steps:
        return None
    found: Values = records.norms.values[records.norms.steps.index(step)]
    return found


def _bad_activation(records: LayerRecords, step: int, finite_step: int | None) -> BadLayer | None:
    """Returns the step and the layer that first returned a non-finite value, where that was seen no
    later than a gradient was: after it, parameters are no longer finite either."""
    for bad in records.bad_layers:
        if (finite_step or 0) < bad.step <= step:
            return bad
    for seen in records.largest.steps:
        place = _first_bad_returned(records, seen) if (finite_step or 0) < seen <= step else None
        if place is not None:
            return BadLayer(seen, place)
    return None


def _lost_in_backward(records: LayerRecords, found: BadValue, norms: Values) -> BadValue:
    """Returns a bad value of backward with the layer that made it, unless the gradient was on its
    way to infinity when it got there."""
    suspects, finite = _backward_suspects(records, norms)
    if finite is not None:
        found = replace(found, finite_layer=records.names[finite])
        usual = _usual_before(records, finite, found.step)
        if usual and norms[finite] >= EXPLODED * usual:
            return replace(found, grown_norm=float(norms[finite]), usual_norm=usual)
    first, *others = _named(records, suspects)
    return replace(found, layer=first.name, kind=first.kind, others=tuple(others))


def _named(records: LayerRecords, places: Sequence[int]) -> list[NamedLayer]:
    return [NamedLayer(records.names[place], records.kinds[place]) for place in places]


def _usual_before(records: LayerRecords, place: int, step: int) -> float | None:
    """Returns the median norm of a layer in the steps before one; `None` where it has none."""
    earlier = np.array(records.norms.steps) < step
    known = records.norms.values[earlier, place]
    return _median(known[np.isfinite(known)])


def _backward_suspects(records: LayerRecords, norms: Values) -> tuple[list[int], int | None]:
    """Returns the layers in one of whose backward passes a gradient became non-finite, and the last
    one with a finite gradient of its parameters.

    Backward goes against the order in which layers return. The last layer with a bad gradient got
    or made the first bad value; one without parameters that lies behind it may have made it, or the
    one whose parameters' gradient was finite: that of its inputs may not have been. Of those, the
    ones that the script itself defines are suspects; if none is, the two with known gradients are.
    """
    order = _backward_order(records)
    bad = [number for number, place in enumerate(order) if np.isinf(norms[place])][-1]
    behind = order[bad + 1 :]
    finite = next((place for place in behind if np.isfinite(norms[place])), None)
    between = behind if finite is None else behind[: behind.index(finite)]
    leaves = [place for place in between if not _has_below(records.names, place)]
    ends = [order[bad]] if finite is None else [order[bad], finite]
    own = [place for place in (*leaves, *ends) if place not in records.of_library]
    return own or ends, finite


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
    usual = np.maximum(np.median(layers[usual_rows], axis=0), np.finfo(float).tiny)
    with np.errstate(over="ignore"):  # of a layer whose usual norm is zero
        times = layers[: at + 1] / usual
    # From here on it is never below, by row and layer.
    lowest = np.minimum.accumulate(times[::-1], axis=0)[::-1]
    lowest[:, ~(layers[at] >= usual_total)] = 0
    has_risen = lowest >= ROSE
    if not has_risen.any():
        return int(np.nanargmax(layers[at])), at
    earliest = int(np.argmax(has_risen.any(axis=1)))
    return next(place for place in reversed(order) if lowest[earliest, place] >= RISING), earliest
