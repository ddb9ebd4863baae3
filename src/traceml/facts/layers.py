"""The layers of the model: how long each takes, and what it holds, over steps and ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.facts.gradients import NO_GRADIENTS, GradientFacts, gradient_facts
from traceml.facts.layer_memory import LayerMemory, layer_memory
from traceml.model.device_peaks import device_peak
from traceml.model.layer_names import outer_name
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.layer_records import HELD, TIMES, LayerRecords

MAX_BUSY_SHARE = 0.5
"""A layer whose kernels run for less of its time than this waits for their launches."""
Values = npt.NDArray[np.float64]


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
    total_s: float
    """Its own time and that of every layer below its name."""
    held_bytes: Mapping[str, int]
    """What it holds itself on the rank that holds the most, by the names of `HELD`; what was not
    measured is missing."""
    busy_s: float | None = None
    """Time in which the kernels that it launched ran; `None` where that was not recorded."""
    kernels: float | None = None
    """How many those are."""
    flops: float | None = None
    """Floating-point operations per step of itself; `None` where they were not counted."""
    moved_bytes: float | None = None
    """Bytes that its operations read and write per step, where each starts from memory."""
    bound: Bound | None = None
    """What limits it; `None` where that is not known, or it takes no time."""
    peak_share: float | None = None
    """Its operations per second as a share of what the device can do, 0–1."""
    worst_rank: int | None = None
    """The rank on which its own time is the longest, and how long; `None` with one rank."""
    worst_s: float | None = None
    median_s: float | None = None
    """Its own time on the median rank."""

    @property
    def time_s(self) -> float:
        """Its own time in all phases."""
        return sum(self.own_s.values())


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernels of one name, as means over the steps that were recorded."""

    name: str
    calls: float
    time_s: float
    layer: str | None
    """The layer that launched most of them; `None` where none did, such as the optimizer."""


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """What the GPU did in a mean step, as it recorded it itself; seconds per step and rank."""

    steps: int
    busy_s: float
    """Time in which at least one kernel or copy ran."""
    kernels_per_step: float
    copies_s: float
    communication_s: float
    communication_alone_s: float
    """Communication beside which nothing else ran."""
    kernels: tuple[KernelFacts, ...]
    """The longest first."""


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What the deep profile saw."""

    clock: str | None = None
    """`gpu` or `cpu`; `None` where no step was timed."""
    steps: int = 0
    """How many steps of the rank with the fewest were timed."""
    layers: tuple[LayerFacts, ...] = ()
    """Outer layers before those below them."""
    activity: GpuActivity | None = None
    """`None` where the GPU's activity was not recorded."""
    flops: float | None = None
    """Floating-point operations of a whole step of one rank, in layers or not; `None` where they
    were not counted."""
    peak_flops: float | None = None
    """What the device can do per second at most in the dtype in use; `None` where it is unknown."""
    gradients: GradientFacts = NO_GRADIENTS
    """The gradients and activations of layers: what became non-finite, what grew."""
    memory: LayerMemory | None = None
    """What layers hold and keep for backward; `None` where that was not looked at."""
    notes: tuple[str, ...] = ()

    def phase_s(self, phase: str) -> float | None:
        """Returns how much of a phase lies in layers, in seconds per step."""
        found = [layer.own_s[phase] for layer in self.layers if phase in layer.own_s]
        return sum(found) if found else None


NO_LAYERS = LayerProfile()


def layer_profile(
    records: Sequence[LayerRecords],
    ranks: Mapping[int, int],
    device: str | None = None,
    settings: Settings = NOT_RECORDED,
) -> LayerProfile:
    """Returns the layers of a run; `ranks` are the ranks of its processes, by pid.

    The device's name and the settings say how close to its limits the layers come.

    Ranks with other layers than most (the stages of a pipeline) are added with their own names.
    """
    notes = tuple(dict.fromkeys(note for each in records for note in each.notes))
    gradients = gradient_facts(records, ranks)
    memory = layer_memory(records)
    timed = [each for each in records if each.steps and each.names]
    if not timed:
        return LayerProfile(gradients=gradients, memory=memory, notes=notes)
    has_gpu = all("gpu_forward" in each.times_ns for each in timed)
    layers = _layers(timed, ranks, "gpu" if has_gpu else "host")
    peak = device_peak(device) if has_gpu else None
    fastest = None if peak is None else peak.operations(*_number_type(settings))
    if peak is not None and fastest is not None:
        layers = tuple(_with_limit(layer, fastest, peak.memory) for layer in layers)
    return LayerProfile(
        clock="gpu" if has_gpu else "cpu",
        steps=min(len(each.steps) for each in timed),
        layers=layers,
        activity=_activity(timed),
        flops=_step_flops(timed),
        peak_flops=fastest,
        gradients=gradients,
        memory=memory,
        notes=notes,
    )


def _all_names(timed: Sequence[LayerRecords]) -> dict[str, str]:
    """Returns every layer's class by its name, in the model's order."""
    return {name: kind for each in timed for name, kind in zip(each.names, each.kinds, strict=True)}


@dataclass(frozen=True, slots=True)
class _PlacedRecords:
    """What one process wrote, and where its layers stand among those of all processes."""

    records: LayerRecords
    places: npt.NDArray[np.intp]
    count: int
    """How many layers all processes have."""

    def spread(self, values: npt.NDArray[Any], elsewhere: float = 0.0) -> Values:
        """Returns values of its own layers as a row of all layers."""
        row = np.full(self.count, elsewhere)
        row[self.places] = values
        return row


def _placed(timed: Sequence[LayerRecords], names: Mapping[str, str]) -> list[_PlacedRecords]:
    places = {name: place for place, name in enumerate(names)}
    return [
        _PlacedRecords(each, np.array([places[name] for name in each.names]), len(names))
        for each in timed
    ]


def _by_rank(placed: Sequence[_PlacedRecords], key: str) -> Values:
    """Returns mean seconds per step, by process and layer; NaN where it was not measured."""
    found = np.full((len(placed), placed[0].count), np.nan)
    for row, each in enumerate(placed):
        if key in each.records.times_ns:
            means = _mean(each.records.times_ns[key], axis=0) / 1e9
            found[row] = each.spread(means, np.nan)
    return found


def _mean(values: Values, axis: int) -> Values:
    """Returns means of what was measured; NaN where nothing was."""
    counts = np.sum(~np.isnan(values), axis=axis)
    sums = np.nansum(values, axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _layers(
    timed: Sequence[LayerRecords], ranks: Mapping[int, int], clock: str
) -> tuple[LayerFacts, ...]:
    names = _all_names(timed)
    placed = _placed(timed, names)
    own = {phase: _by_rank(placed, f"{clock}_{phase}") for phase in TIMES}
    phases = {phase: _mean(values, axis=0) for phase, values in own.items()}
    by_rank = reduce(np.add, (np.nan_to_num(values) for values in own.values()))
    totals = _totals(list(names), by_rank.mean(axis=0))
    errors = _standard_errors(placed, clock)
    calls = _mean(
        np.array([each.spread(each.records.calls.mean(axis=0), np.nan) for each in placed]), axis=0
    )
    held = _held(placed)
    flops, moved = (_counted(placed, what) for what in ("flops", "bytes"))
    busy, kernels = (_kernel_means(placed, key) for key in ("busy_ns", "kernels"))
    worst, medians = by_rank.argmax(axis=0), np.median(by_rank, axis=0)
    several = len(timed) > 1
    return tuple(
        LayerFacts(
            name=name,
            kind=kind,
            calls=float(np.nan_to_num(calls[place])),
            own_s={
                phase: float(means[place])
                for phase, means in phases.items()
                if not np.isnan(means[place])
            },
            stderr_s=None if np.isnan(errors[place]) else float(errors[place]),
            total_s=float(totals[place]),
            held_bytes={key: int(values[place]) for key, values in held.items()},
            busy_s=None if busy is None else float(busy[place]) / 1e9,
            kernels=None if kernels is None else float(kernels[place]),
            flops=None if flops is None else float(flops[place]),
            moved_bytes=None if moved is None else float(moved[place]),
            worst_rank=ranks.get(timed[worst[place]].pid, 0) if several else None,
            worst_s=float(by_rank[worst[place], place]) if several else None,
            median_s=float(medians[place]) if several else None,
        )
        for place, (name, kind) in enumerate(names.items())
    )


def _totals(names: Sequence[str], own_s: Values) -> Values:
    """Returns each layer's time with that of all layers below its name."""
    places = {name: place for place, name in enumerate(names)}
    totals: Values = own_s.copy()
    for place in sorted(range(len(names)), key=lambda place: -_depth(names[place])):
        outer = outer_name(names[place], places)
        if outer is not None:
            totals[places[outer]] += totals[place]
    return totals


def _depth(name: str) -> int:
    return 0 if not name else name.count(".") + 1


def _standard_errors(placed: Sequence[_PlacedRecords], clock: str) -> Values:
    """Returns the standard error of each layer's own time over the steps of all ranks; NaN with
    fewer than two steps."""
    count, total, squares = (np.zeros(placed[0].count) for _ in range(3))
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
        count[each.places] += len(steps_s)
        total[each.places] += steps_s.sum(axis=0)
        squares[each.places] += (steps_s**2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.maximum(squares - total**2 / count, 0.0) / (count - 1)
        errors: Values = np.where(count > 1, np.sqrt(variance / count), np.nan)
    return errors


def _held(placed: Sequence[_PlacedRecords]) -> dict[str, Values]:
    """Returns what each layer holds on the rank that holds the most, by the names of `HELD`."""
    found: dict[str, Values] = {}
    for each in placed:
        for key in HELD:
            if key in each.records.held_bytes:
                values = each.spread(each.records.held_bytes[key])
                found[key] = np.maximum(found.get(key, 0.0), values)
    return found


def _kernel_means(placed: Sequence[_PlacedRecords], what: str) -> Values | None:
    """Returns a mean over steps and ranks by layer; `None` where no activity was recorded."""
    rows = [
        each.spread(getattr(step, f"layer_{what}"))
        for each in placed
        for step in each.records.kernels
    ]
    return np.mean(rows, axis=0) if rows else None


def _activity(timed: Sequence[LayerRecords]) -> GpuActivity | None:
    recorded = [(each, step) for each in timed for step in each.kernels]
    if not recorded:
        return None
    steps = [step for _, step in recorded]
    calls, took, layers = Counter[str](), Counter[str](), dict[str, Counter[str | None]]()
    for each, step in recorded:
        for kernel in step.by_kernel:
            calls[kernel.name] += kernel.calls
            took[kernel.name] += kernel.ns
            known = 0 <= kernel.layer < len(each.names)
            by_layer = layers.setdefault(kernel.name, Counter())
            by_layer[each.names[kernel.layer] if known else None] += kernel.ns
    count = len(steps)

    def mean_s(name: str) -> float:
        return float(sum(getattr(step, name) for step in steps)) / count / 1e9

    return GpuActivity(
        steps=count,
        busy_s=mean_s("busy_ns"),
        kernels_per_step=sum(step.kernels for step in steps) / count,
        copies_s=mean_s("copies_ns"),
        communication_s=mean_s("communication_ns"),
        communication_alone_s=mean_s("communication_alone_ns"),
        kernels=tuple(
            KernelFacts(
                name, calls[name] / count, ns / count / 1e9, layers[name].most_common(1)[0][0]
            )
            for name, ns in took.most_common()
        ),
    )


# How close to the device's limits


def _number_type(settings: Settings) -> tuple[str | None, bool]:
    """Returns the dtype that matrix products run in, and whether TF32 may be used."""
    dtype = settings.autocast_dtype or settings.parameter_dtype
    return dtype, settings.matmul_precision not in (None, "highest")


def _counted(placed: Sequence[_PlacedRecords], what: str) -> Values | None:
    """Returns operations or bytes of both passes by layer, as a mean over ranks; `None` where no
    rank counted."""
    rows = [
        each.spread(counted[f"forward_{what}"] + counted[f"backward_{what}"])
        for each in placed
        if f"forward_{what}" in (counted := each.records.counted)
    ]
    return np.mean(rows, axis=0) if rows else None


def _step_flops(timed: Sequence[LayerRecords]) -> float | None:
    counted = [
        sum(
            int(each.counted[key].sum()) + each.counted_outside.get(key, 0)
            for key in ("forward_flops", "backward_flops")
        )
        for each in timed
        if "forward_flops" in each.counted
    ]
    return sum(counted) / len(counted) if counted else None


def _with_limit(layer: LayerFacts, fastest: float, bandwidth: float) -> LayerFacts:
    """Returns a layer with what limits it, by the time that its work takes at least."""
    time_s = layer.busy_s if layer.busy_s is not None else layer.time_s
    if layer.flops is None or layer.moved_bytes is None or time_s <= 0:
        return layer
    computing_s, moving_s = layer.flops / fastest, layer.moved_bytes / bandwidth
    bound = Bound.COMPUTE if computing_s > moving_s else Bound.BANDWIDTH
    if layer.busy_s is not None and layer.busy_s < MAX_BUSY_SHARE * layer.time_s:
        bound = Bound.LAUNCH
    return replace(layer, bound=bound, peak_share=layer.flops / time_s / fastest)
