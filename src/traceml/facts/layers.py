"""The layers of the model: how long each takes, and what it holds, over steps and ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.facts.burst_times import (
    layer_bursts,
    longest_layers,
    max_steps_per_row,
    steps_of_rows,
)
from traceml.facts.gradients import NO_GRADIENTS, GradientFacts, gradient_facts
from traceml.facts.layer_growth import LayerGrowth, layer_growth
from traceml.facts.layer_memory import LayerMemory, layer_memory
from traceml.facts.slow_layers import (
    SlowedLayer,
    SlowLayer,
    slow_kernels,
    slow_on_one_rank,
    slowed_down,
)
from traceml.model.device_peaks import device_peak
from traceml.model.layer_names import (
    COMPILED_INSIDE,
    COMPILED_PARTLY,
    COMPILED_WHOLE,
    outer_name,
)
from traceml.model.quantities import count
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.layer_records import HELD, PHASES, TIMES, Launches, LayerRecords

MAX_BUSY_SHARE = 0.5
"""A layer whose kernels run for less of its time than this waits for their launches."""
SHARDED = ("FSDP", "FSDP2", "DeepSpeed")
"""Their layers wait for the parameters that other ranks hold: a long time may be waiting."""
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
    total_s: float | None
    """Its own time and that of every layer below its name; `None` where none was timed, as inside
    compiled code."""
    held_bytes: Mapping[str, int]
    """What it holds itself on the rank that holds the most, by the names of `HELD`; what was not
    measured is missing."""
    busy_s: float | None = None
    """Time in which the kernels that it launched ran; `None` where that was not recorded."""
    kernels: float | None = None
    """How many those are."""
    flops: float | None = None
    """Floating-point operations per step of itself, without those below; `None` where they were
    not counted."""
    recompute_flops: float | None = None
    """Those that it does once more in backward (activation checkpointing)."""
    moved_bytes: float | None = None
    """Bytes that all these operations read and write per step, where each starts from memory."""
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
    """Its own time on the median of the ranks that have it."""
    compiled: str | None = None
    """How it is compiled: `whole`, `partly` or `inside` (see `COMPILED_WHOLE`); `None` where it is
    not. Nothing is known of the time of a layer inside, nor of what it keeps for backward."""

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
    rest_s: Mapping[str, float] = field(default_factory=dict)
    """By phase (`forward`, `backward`): how much of it lies in no layer, in seconds per step, in
    the very steps that were timed; a phase that was not seen as a whole is missing."""
    activity: GpuActivity | None = None
    """`None` where the GPU's activity was not recorded."""
    flops: float | None = None
    """Floating-point operations of a whole step of one rank, in layers or not, without those below;
    `None` where they were not counted."""
    recompute_flops: float | None = None
    """Those that are done once more in backward (activation checkpointing)."""
    peak_flops: float | None = None
    """What the device can do per second at most in the dtype in use; `None` where it is unknown."""
    gradients: GradientFacts = NO_GRADIENTS
    """The gradients and activations of layers: what became non-finite, what grew."""
    memory: LayerMemory | None = None
    """What layers hold and keep for backward; `None` where that was not looked at."""
    slow_on_rank: tuple[SlowLayer, ...] = ()
    """Layers that take longer on one rank than on the others, the most expensive first."""
    slow_kernels: tuple[SlowLayer, ...] = ()
    """The same of the kernels of a layer."""
    slowed_down: tuple[SlowedLayer, ...] = ()
    """Layers that became slower during the run, the most expensive first."""
    growth: tuple[LayerGrowth, ...] = ()
    """The modules that hold more and more memory, those that grow fastest first."""
    slowed_kernels: tuple[SlowedLayer, ...] = ()
    """The same of the kernels of a layer."""
    notes: tuple[str, ...] = ()

    def phase_s(self, phase: str) -> float | None:
        """Returns how much of a phase lies in layers, in seconds per step."""
        found = [layer.own_s[phase] for layer in self.layers if phase in layer.own_s]
        return sum(found) if found else None


NO_LAYERS = LayerProfile()

FIRST_LOOK_STEPS = 8
"""A run of fewer steps may end before its layers are looked at for the first time."""


NORMS_OF_PARTS = (
    "Gradient norms are those of a rank's own part of the parameters, which are spread over ranks "
    "({how}): the norms of whole layers are larger. That they grow, or are not finite, shows in "
    "the parts too."
)


def sharding_of(settings: Settings) -> str:
    """Returns what spreads each parameter over ranks (`FSDP2`); empty where nothing does."""
    kinds = (settings.parallelism or "").split(" + ")
    return ", ".join(kind for kind in kinds if kind in SHARDED)


def why_no_layers(forward_s: float | None, steps_taken: int) -> str:
    """Returns why a deep profile has no layers; `forward_s` is what the calls of models took in a
    step, `None` where no call was seen."""
    if forward_s is None:
        return (
            "No layers: no torch.nn.Module was called in a training step. Work by functions of "
            "torch alone is in the phases above; a model that TraceML has not found by itself is "
            "named with traceml.trace_model_instance(model)."
        )
    if steps_taken < FIRST_LOOK_STEPS:
        return (
            f"No layers: the run took {count(steps_taken, 'step')}, and layers are looked at after "
            "the first few of a run."
        )
    return "No layers: none of the steps could be looked at layer by layer."


def layer_profile(
    records: Sequence[LayerRecords],
    ranks: Mapping[int, int],
    device: str | None = None,
    settings: Settings = NOT_RECORDED,
) -> LayerProfile:
    """Returns the layers of a run; `ranks` are the ranks of its processes, by pid.

    The device's name and the settings say how close to its limits the layers come.

    Ranks with other layers than most (the stages of a pipeline) are added with their own names:
    each layer's numbers are means over the ranks that have it.
    """
    notes = tuple(dict.fromkeys(note for each in records for note in each.notes))
    gradients = gradient_facts(records, ranks)
    memory, growth = layer_memory(records), layer_growth(records, ranks)
    timed = [each for each in records if each.steps and each.names]
    if not timed:
        return LayerProfile(gradients=gradients, memory=memory, growth=growth, notes=notes)
    has_gpu = all("gpu_forward" in each.times_ns for each in timed)
    clock = "gpu" if has_gpu else "host"
    names = _all_names(timed)
    placed = _placed(timed, names)
    own = {phase: _by_rank(placed, f"{clock}_{phase}") for phase in TIMES}
    layers = _layers(placed, names, own, ranks, clock)
    # A process that is no rank, such as one of an earlier attempt, is no peer of one.
    of_ranks = [each for each in placed if each.records.pid in ranks] or placed[:1]
    slow, slowed = _slow_layers(of_ranks, list(names), own, ranks, clock)
    if len(timed) > 1 and sharding_of(settings):
        slow, slowed = (), ()
    kernels, slowed_kernels = slow_kernels([each.records for each in of_ranks], ranks)
    peak = device_peak(device) if has_gpu else None
    fastest = None if peak is None else peak.operations(*_number_type(settings))
    if peak is not None and fastest is not None:
        layers = tuple(_with_limit(layer, fastest, peak.memory) for layer in layers)
    return LayerProfile(
        clock="gpu" if has_gpu else "cpu",
        steps=min(_steps_seen(each) for each in timed),
        layers=layers,
        rest_s=_rest(timed, clock),
        activity=_activity(timed),
        flops=_step_flops(timed, _ONCE),
        recompute_flops=_step_flops(timed, ("recompute",)),
        peak_flops=fastest,
        gradients=gradients,
        memory=memory,
        slow_on_rank=slow,
        slow_kernels=kernels,
        slowed_down=slowed,
        growth=growth,
        slowed_kernels=slowed_kernels,
        notes=notes,
    )


def _slow_layers(
    placed: Sequence[_PlacedRecords],
    names: Sequence[str],
    own: Mapping[str, Values],
    ranks: Mapping[int, int],
    clock: str,
) -> tuple[tuple[SlowLayer, ...], tuple[SlowedLayer, ...]]:
    """Returns the layers that are slow on one rank, and those that became slow."""
    chosen = longest_layers(_sum_of_phases(own))
    steps_per_row = max_steps_per_row(each.records for each in placed)
    bursts = [
        layer_bursts(
            each.records,
            ranks.get(each.records.pid, 0),
            clock,
            each.own_places()[chosen],
            steps_per_row,
        )
        for each in placed
    ]
    compared = [names[place] for place in chosen]
    return slow_on_one_rank(compared, bursts), slowed_down(compared, bursts)


def _steps_seen(records: LayerRecords) -> int:
    """Returns how many steps were timed, also where some of them share a row."""
    return int(records.row_steps.sum()) or len(records.steps)


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
            means = _mean_of_rows(each.records, each.records.times_ns[key]) / 1e9
            found[row] = each.spread(means)
    return found


def _mean_of_rows(records: LayerRecords, values: npt.NDArray[Any]) -> Values:
    """Returns means by layer over the steps of all rows; NaN where nothing was measured."""
    weights = records.row_steps
    if not len(weights) or (weights == 1).all():
        return _mean(values, axis=0)
    weighed = np.where(np.isnan(values), 0, weights[:, None])
    sums = np.sum(np.nan_to_num(values) * weighed, axis=0)
    steps = weighed.sum(axis=0)
    means: Values = np.where(steps > 0, sums / np.maximum(steps, 1), np.nan)
    return means


def _mean(values: Values, axis: int) -> Values:
    """Returns means of what was measured; NaN where nothing was."""
    counts = np.sum(~np.isnan(values), axis=axis)
    sums = np.nansum(values, axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _sum_of_phases(own: Mapping[str, Values]) -> Values:
    """Returns the time of all phases, by process and layer; NaN where nothing was measured."""
    sums: Values = reduce(np.add, (np.nan_to_num(values) for values in own.values()))
    sums[np.all([np.isnan(values) for values in own.values()], axis=0)] = np.nan
    return sums


def _layers(
    placed: Sequence[_PlacedRecords],
    names: Mapping[str, str],
    own: Mapping[str, Values],
    ranks: Mapping[int, int],
    clock: str,
) -> tuple[LayerFacts, ...]:
    phases = {phase: _mean(values, axis=0) for phase, values in own.items()}
    by_rank = _sum_of_phases(own)
    totals = _totals(list(names), _mean(by_rank, axis=0))
    errors = _standard_errors(placed, clock)
    calls = _mean(
        np.array([each.spread(_mean_of_rows(each.records, each.records.calls)) for each in placed]),
        axis=0,
    )
    held = _held(placed)
    flops, again = _counted(placed, "flops", _ONCE), _counted(placed, "flops", ("recompute",))
    moved = _counted(placed, "bytes", TIMES)
    busy, kernels = (_kernel_means(placed, key) for key in ("busy_ns", "kernels"))
    rank_of = [ranks.get(each.records.pid, 0) for each in placed]
    worst_ranks, worst, medians = _compared_ranks(by_rank, rank_of)
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
            busy_s=_known(busy[place] / 1e9),
            kernels=_known(kernels[place]),
            flops=_known(flops[place]),
            recompute_flops=_known(again[place]),
            moved_bytes=_known(moved[place]),
            worst_rank=worst_ranks[place],
            worst_s=_known(worst[place]),
            median_s=_known(medians[place]),
            compiled=compiled.get(name),
        )
        for place, (name, kind) in enumerate(names.items())
    )
    return tuple(map(_without_unseen, layers))


def _known(value: float) -> float | None:
    """Returns a number as it is; `None` where it was not measured."""
    return None if np.isnan(value) else float(value)


def _compared_ranks(
    by_rank: Values, rank_of: Sequence[int]
) -> tuple[list[int | None], Values, Values]:
    """Returns for each layer the rank on which it takes the longest, how long, and the median over
    ranks; `None` and NaN where fewer than two ranks have it: there is nothing to compare."""
    is_known = ~np.isnan(by_rank)
    is_compared = is_known.sum(axis=0) > 1
    slowest = np.where(is_known, by_rank, -np.inf).argmax(axis=0)
    worst_ranks = [
        rank_of[row] if has else None for row, has in zip(slowest, is_compared, strict=True)
    ]
    worst, medians = np.full((2, by_rank.shape[1]), np.nan)
    if is_compared.any():
        worst[is_compared] = np.nanmax(by_rank[:, is_compared], axis=0)
        medians[is_compared] = np.nanmedian(by_rank[:, is_compared], axis=0)
    return worst_ranks, worst, medians


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
    unseen = ("saved", "peak")
    return replace(
        layer,
        own_s={},
        stderr_s=None,
        total_s=None,
        held_bytes={key: held for key, held in layer.held_bytes.items() if key not in unseen},
        busy_s=None,
        kernels=None,
        flops=None,
        recompute_flops=None,
        moved_bytes=None,
        worst_rank=None,
        worst_s=None,
        median_s=None,
    )


def _rest(timed: Sequence[LayerRecords], clock: str) -> dict[str, float]:
    """Returns what of each phase lies in no layer, as means over steps and ranks."""
    found = {}
    for phase in PHASES:
        rows = [each.outside_ns.get(f"{clock}_{phase}", np.zeros(0)) for each in timed]
        if all(np.isfinite(row).any() for row in rows):
            means = [
                float(_mean_of_rows(each, row[:, None])[0])
                for each, row in zip(timed, rows, strict=True)
            ]
            found[phase] = sum(means) / len(means) / 1e9
    return found


def _totals(names: Sequence[str], own_s: Values) -> Values:
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


def _standard_errors(placed: Sequence[_PlacedRecords], clock: str) -> Values:
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


def _held(placed: Sequence[_PlacedRecords]) -> dict[str, Values]:
    """Returns what each layer holds on the rank that holds the most, by the names of `HELD`; NaN
    where that was not measured."""
    found: dict[str, Values] = {}
    for each in placed:
        for key in HELD:
            if key in each.records.held_bytes:
                values = each.spread(each.records.held_bytes[key])
                found[key] = np.fmax(found.get(key, np.nan), values)
    return found


def _kernel_means(placed: Sequence[_PlacedRecords], what: str) -> Values:
    """Returns a mean by layer over the steps of the ranks that have it; NaN where no activity was
    recorded."""
    total, steps = np.zeros((2, placed[0].count))
    for each in placed:
        for step in each.records.kernels:
            total[each.places] += getattr(step, f"layer_{what}") * step.steps
            steps[each.places] += step.steps
    means: Values = np.where(steps > 0, total / np.maximum(steps, 1), np.nan)
    return means


def _activity(timed: Sequence[LayerRecords]) -> GpuActivity | None:
    steps = [step for each in timed for step in each.kernels]
    count = sum(step.steps for step in steps)
    if not count:
        return None

    def mean(name: str) -> float:
        return float(sum(getattr(step, name) * step.steps for step in steps)) / count

    return GpuActivity(
        steps=count,
        busy_s=mean("busy_ns") / 1e9,
        kernels_per_step=mean("kernels"),
        copies_s=mean("copies_ns") / 1e9,
        communication_s=mean("communication_ns") / 1e9,
        communication_alone_s=mean("communication_alone_ns") / 1e9,
        kernels=_kernels_by_name(timed, count),
    )


def _kernels_by_name(timed: Sequence[LayerRecords], count: int) -> tuple[KernelFacts, ...]:
    """Returns the kernels of one name together, the longest first."""
    calls, took = Counter[str](), Counter[str]()
    layers: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for each in timed:
        for launches, times in _by_table(each).items():
            for name, layer, called, ns in zip(
                launches.names, launches.layers.tolist(), *times.tolist(), strict=True
            ):
                calls[name] += called
                took[name] += ns
                layers[name][each.names[layer] if layer >= 0 else None] += ns
    return tuple(
        KernelFacts(name, calls[name] / count, ns / count / 1e9, layers[name].most_common(1)[0][0])
        for name, ns in took.most_common()
        if calls[name]
    )


def _by_table(records: LayerRecords) -> dict[Launches, Values]:
    """Returns calls and nanoseconds of all steps, for each table of launches."""
    found: dict[Launches, Values] = {}
    for step in records.kernels:
        sums = found.setdefault(step.launches, np.zeros((2, len(step.launches.names))))
        sums += np.array([step.calls, step.ns]) * step.steps
    return found


# How close to the device's limits


def _number_type(settings: Settings) -> tuple[str | None, bool]:
    """Returns the dtype that matrix products run in, and whether TF32 may be used."""
    dtype = settings.autocast_dtype or settings.parameter_dtype
    return dtype, settings.matmul_precision not in (None, "highest")


_ONCE = ("forward", "backward")
"""What a model does in each step: MFU is of these alone, also where some is computed again."""


def _counted(placed: Sequence[_PlacedRecords], what: str, phases: Sequence[str]) -> Values:
    """Returns operations or bytes of these phases by layer, as a mean over the ranks that have it;
    NaN where no rank counted. Older records have what is computed again in `forward`."""
    keys = [f"{phase}_{what}" for phase in phases]
    rows = [
        each.spread(np.sum([counted[key] for key in keys if key in counted], axis=0))
        for each in placed
        if f"forward_{what}" in (counted := each.records.counted)
    ]
    return _mean(np.array([*rows, np.full(placed[0].count, np.nan)]), axis=0)


def _step_flops(timed: Sequence[LayerRecords], phases: Sequence[str]) -> float | None:
    counted = [
        sum(
            int(each.counted[key].sum()) + each.counted_outside.get(key, 0)
            for phase in phases
            if (key := f"{phase}_flops") in each.counted
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
    done = layer.flops + (layer.recompute_flops or 0.0)
    computing_s, moving_s = done / fastest, layer.moved_bytes / bandwidth
    bound = Bound.COMPUTE if computing_s > moving_s else Bound.BANDWIDTH
    if layer.busy_s is not None and layer.busy_s < MAX_BUSY_SHARE * layer.time_s:
        bound = Bound.LAUNCH
    return replace(layer, bound=bound, peak_share=layer.flops / time_s / fastest)
