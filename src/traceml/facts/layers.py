"""The profile of the model's layers: each of them, those that are or became slow, and the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traceml.facts.attempts import Attempt
from traceml.facts.burst_times import layer_bursts, longest_layers, max_steps_per_row
from traceml.facts.gpu_activity import GpuActivity, gpu_activity
from traceml.facts.gradients import NO_GRADIENTS, GradientFacts, gradient_facts
from traceml.facts.interrupted_steps import interrupted_note, without_interrupted
from traceml.facts.layer_growth import LayerGrowth, layer_growth
from traceml.facts.layer_limits import (
    counting_notes,
    no_peak_note,
    no_step_notes,
    number_type,
    of_other_size_note,
    peak_of,
    step_flops,
    with_limits,
    without_counts,
)
from traceml.facts.layer_means import (
    ONCE,
    LayerFacts,
    PlacedRecords,
    layer_means,
    mean_of_rows,
    own_s_by_rank,
    place_layers,
    sum_of_phases,
)
from traceml.facts.layer_memory import LayerMemory, layer_memory
from traceml.facts.robust_statistics import Values
from traceml.facts.slow_layers import (
    SlowedLayer,
    SlowLayer,
    slow_kernels,
    slow_on_one_rank,
    slowed_down,
)
from traceml.facts.times import StepTimes
from traceml.model.environment import DEEP
from traceml.model.layer_names import PHASES
from traceml.model.phase import Phase
from traceml.model.quantities import count
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.layer_records import COMMUNICATION, TIMES, LayerRecords
from traceml.store.records import RankRecords, RunRecords

SHARDED = ("FSDP", "FSDP2", "DeepSpeed")
"""Their layers wait for the parameters that other ranks hold: a long time may be waiting."""
FIRST_LOOK_STEPS = 8
"""A run of fewer steps may end before its layers are looked at for the first time."""
_NOT_COMPARED = (
    "Layers are not compared between ranks: their parameters are spread over ranks ({how}), and "
    "the time of a layer may include waiting for other ranks."
)
MAX_SLOWED_BY_LOOKING = 1.2
"""From here on looking at a step changes it so much that a reader has to know."""
MIN_RATIOS = 4
"""With fewer steps looked at, it is not known how much looking slows them down."""
_SLOWED_BY_LOOKING = (
    "Steps that are looked at layer by layer take {ratio:.1f} times as long as others. "
    "TraceML's hooks count for no layer, but what runs right after one is slower."
)
_NORMS_OF_PARTS = (
    "Gradient norms are those of a rank's own part of the parameters, which are spread over ranks "
    "({how}): the norms of whole layers are larger. Where they grow, or are not finite, the "
    "parts show it too."
)


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What the deep profile saw."""

    clock: str | None = None
    """`gpu` or `cpu`; `None` where no step was timed."""
    steps: int = 0
    """How many steps of the rank with the fewest were timed."""
    slowed_by_looking: float | None = None
    """How long a step takes that is timed layer by layer, as a multiple of those just before it:
    the median over such steps and ranks; `None` where that is not known."""
    layers: tuple[LayerFacts, ...] = ()
    """Outer layers before those below them."""
    rest_s: Mapping[str, float] = field(default_factory=dict)
    """By phase (`forward`, `backward`): how much of it lies in no layer, in seconds per step, in
    the very steps that were timed; a phase that was not seen as a whole is missing. Waiting for
    other ranks is in none of them, and has its own (`communication`)."""
    activity: GpuActivity | None = None
    """`None` where the GPU's activity was not recorded."""
    flops: float | None = None
    """Floating-point operations of a whole step of one rank, in layers or not, without those below;
    `None` where they were not counted, or not all of them."""
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

    @property
    def communication_s(self) -> float | None:
        """How long layers wait for other ranks, in seconds per step; `None` where none does."""
        waits = [each.communication_s for each in self.layers if each.communication_s is not None]
        return sum(waits) if waits else None


NO_LAYERS = LayerProfile()


def layers_of_run(
    records: RunRecords,
    used: Sequence[RankRecords],
    settings: Settings,
    mean: StepTimes,
    steps_taken: int,
    attempts: Sequence[Attempt] = (),
) -> LayerProfile:
    """Returns the layers of the run; a deep profile without any says why, and one of parameters
    that are spread over ranks what its gradient norms are of."""
    found = layer_profile(
        records.layers,
        {rank.rank.pid: rank.rank.rank for rank in records.ranks},
        next((rank.rank.accelerator for rank in used), None),
        settings,
    )
    if found.layers:
        found = replace(found, notes=(*found.notes, *no_step_notes(records.layers)))
    if records.attempt_firsts:
        found = replace(found, gradients=_gradients_of_last(records.layers, attempts))
    is_sliced = any(rank.place.tensor_slice for rank in used)
    spread_by = _sharding_of(settings) or ("tensor parallelism" if is_sliced else "")
    if spread_by and len(used) > 1 and found.gradients.steps:
        found = replace(found, notes=(*found.notes, _NORMS_OF_PARTS.format(how=spread_by)))
    if records.manifest.profile != DEEP or found.layers or found.notes or not steps_taken:
        return found
    return replace(found, notes=(_why_no_layers(mean.phase(Phase.FORWARD), steps_taken),))


def _gradients_of_last(
    records: Sequence[LayerRecords], attempts: Sequence[Attempt]
) -> GradientFacts:
    """Returns the gradients of the last attempt that measured any: those of two have nothing to do
    with each other, and what went wrong before the ranks were started again is over."""
    for attempt in reversed(attempts):
        ranks = {each.rank.pid: each.rank.rank for each in attempt.processes}
        found = gradient_facts([each for each in records if each.pid in ranks], ranks)
        if found != NO_GRADIENTS:
            return found.counted_from(attempt.first_number)
    return NO_GRADIENTS


def _sharding_of(settings: Settings) -> str:
    """Returns what spreads each parameter over ranks (`FSDP2`); empty where nothing does."""
    kinds = (settings.parallelism or "").split(" + ")
    return ", ".join(kind for kind in kinds if kind in SHARDED)


def _why_no_layers(forward_s: float | None, steps_taken: int) -> str:
    """Returns why a deep profile has no layers; `forward_s` is what the calls of models took in a
    step, `None` where no call was seen."""
    if forward_s is None:
        return (
            "No layers: no torch.nn.Module was called in a training step. Work by functions of "
            "torch alone is in the phases above; name a model that TraceML has not found by itself "
            "with traceml.trace_model_instance(model)."
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
    said = (note for each in records for note in each.notes)
    notes = tuple(dict.fromkeys((*said, *counting_notes(records))))
    gradients = gradient_facts(records, ranks)
    memory, growth = layer_memory(records), layer_growth(records, ranks)
    timed = [each for each in records if each.steps and each.names]
    if not timed:
        return LayerProfile(gradients=gradients, memory=memory, growth=growth, notes=notes)
    has_gpu = all("gpu_forward" in each.times_ns for each in timed)
    clock = "gpu" if has_gpu else "host"
    names = _all_names(timed)
    # Slow layers are judged by each burst's shortest time, which an interruption does not lengthen.
    placed = place_layers(timed, names)
    steady = [replace(each, records=without_interrupted(each.records)) for each in placed]
    if of_other_size := of_other_size_note([each.records for each in steady]):
        steady = [replace(each, records=without_counts(each.records)) for each in steady]
    of_steady = [each.records for each in steady]
    own = {phase: own_s_by_rank(steady, f"{clock}_{phase}") for phase in TIMES}
    layers = layer_means(steady, names, own, ranks, clock)
    # A process that is no rank, such as one of an earlier attempt, is no peer of one.
    of_ranks = [each for each in placed if each.records.pid in ranks] or placed[:1]
    slow, slowed = _slow_layers(of_ranks, list(names), own, ranks, clock)
    if len(timed) > 1 and (how := _sharding_of(settings)):
        slow, slowed = (), ()
        layers = tuple(map(_without_ranks, layers))
        notes = (*notes, _NOT_COMPARED.format(how=how))
    ratio = _slowed_by_looking(timed)
    if ratio is not None and ratio > MAX_SLOWED_BY_LOOKING:
        notes = (*notes, _SLOWED_BY_LOOKING.format(ratio=ratio))
    notes = (*notes, *interrupted_note(timed, of_steady), *of_other_size)
    kernels, slowed_kernels = slow_kernels([each.records for each in of_ranks], ranks)
    flops, fastest = step_flops(of_steady, ONCE), None
    if has_gpu or not device:  # else the host times what another device computes
        peak, wrong = peak_of(records, device)
        fastest = peak.operations(*number_type(settings))
        layers = with_limits(layers, fastest, peak.memory)
        is_missing = bool(device) and fastest is None and flops is not None
        notes = (*notes, *wrong, *((no_peak_note(device or "", settings),) if is_missing else ()))
    return LayerProfile(
        clock="gpu" if has_gpu else "cpu",
        steps=min(map(_steps_seen, of_steady)),
        slowed_by_looking=ratio,
        layers=layers,
        rest_s=_rest(of_steady, clock),
        activity=gpu_activity(timed),
        flops=flops,
        recompute_flops=step_flops(of_steady, ("recompute",)),
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
    placed: Sequence[PlacedRecords],
    names: Sequence[str],
    own: Mapping[str, Values],
    ranks: Mapping[int, int],
    clock: str,
) -> tuple[tuple[SlowLayer, ...], tuple[SlowedLayer, ...]]:
    """Returns the layers that are slow on one rank, and those that became slow."""
    chosen = longest_layers(sum_of_phases(own))
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


def _without_ranks(layer: LayerFacts) -> LayerFacts:
    return replace(layer, worst_rank=None, worst_s=None, median_s=None, other_rank=None)


def _all_names(timed: Sequence[LayerRecords]) -> dict[str, str]:
    """Returns every layer's class by its name, in the model's order."""
    return {name: kind for each in timed for name, kind in zip(each.names, each.kinds, strict=True)}


def _steps_seen(records: LayerRecords) -> int:
    """Returns how many steps were timed, also where some of them share a row."""
    return int(records.row_steps.sum()) or len(records.steps)


def _slowed_by_looking(timed: Sequence[LayerRecords]) -> float | None:
    """Returns how long a timed step takes as a multiple of others; `None` where too few lengths are
    known. The first two rows of each rank are left out: they warm up our own code."""
    rows = []
    for each in timed:
        known = np.isfinite(each.took_ns) & (each.usual_ns > 0)
        ratios = each.took_ns[known] / each.usual_ns[known]
        rows.append(ratios[2:])
    found = np.concatenate(rows)
    return float(np.median(found)) if len(found) >= MIN_RATIOS else None


def _rest(timed: Sequence[LayerRecords], clock: str) -> dict[str, float]:
    """Returns how much of each phase, and of the wait for other ranks, is spent outside of all
    layers: means over steps and ranks."""
    found = {}
    for phase in (*PHASES, COMMUNICATION):
        rows = [_outside_ns(each, f"{clock}_{phase}") for each in timed]
        is_known = [bool(np.isfinite(row).any()) for row in rows]
        if phase == COMMUNICATION and any(is_known):  # nobody waits in a step without such a time
            rows, is_known = [np.nan_to_num(row) for row in rows], [True]
        if all(is_known):
            means = [
                float(mean_of_rows(each, row[:, None])[0])
                for each, row in zip(timed, rows, strict=True)
            ]
            found[phase] = sum(means) / len(means) / 1e9
    return found


def _outside_ns(records: LayerRecords, key: str) -> Values:
    return records.outside_ns.get(key, np.full(len(records.steps), np.nan))
