"""How close to its device's limits a model comes: its floating-point operations, what limits each
layer, and why any of it is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from traceml.facts.layer_means import Bound, LayerFacts, mean_of_rows
from traceml.model.device_peaks import (
    NO_PEAK,
    STATED_BY,
    DevicePeak,
    UnknownPeaks,
    device_peak,
    stated_peak,
)
from traceml.model.layer_names import MODEL, SAME_SIZE, repeated_name
from traceml.model.settings import Settings
from traceml.store.layer_records import LayerRecords

MAX_BUSY_SHARE = 0.5
"""A layer whose kernels run for less of its time than this waits for their launches."""
MAX_NAMED = 4
"""Operations, and layers of each, that a note names."""
_NOT_COUNTED = "Floating-point operations are not counted: {}."
_NO_STEP = "the run ended before the step that is counted"
_OTHER_SIZE = (
    "Operations, MFU and limits of layers are not shown: floating-point operations were counted in "
    "step {step}, where the model was given {counted:,.0f} numbers; the steps whose layers were "
    "timed had {times} times as many on average."
)
_UNCOUNTED = (
    "Floating-point operations are not counted for {}. Neither torch nor TraceML knows how many "
    "these are, so their layers and the step have no number. "
    "torch.utils.flop_counter.register_flop_formula tells both."
)
_NO_PEAK = (
    "The peak speed of {device} in {dtype} is not known: there is no MFU, and nothing on what "
    f"limits a layer. Set {STATED_BY} to state the peak."
)


def number_type(settings: Settings) -> tuple[str | None, bool]:
    """Returns the dtype that matrix products run in, and whether TF32 may be used."""
    dtype = settings.autocast_dtype or settings.parameter_dtype
    return dtype, settings.matmul_precision not in (None, "highest")


def peak_of(records: Sequence[LayerRecords], device: str | None) -> tuple[DevicePeak, list[str]]:
    """Returns the limits of the device, as the user states them or else as its maker does, and what
    is wrong with what the user stated."""
    found = device_peak(device) or NO_PEAK
    wrong = []
    for text in dict.fromkeys(each.stated_peaks for each in records if each.stated_peaks):
        try:
            found = stated_peak(text, found)
        except UnknownPeaks as error:
            wrong.append(f"{error}.")
    return found, wrong


def step_flops(timed: Sequence[LayerRecords], phases: Sequence[str]) -> float | None:
    """Returns the operations of these phases, in layers or not, as a mean over the ranks that
    counted; `None` where none did, or not all could be counted."""
    if any(each.uncounted for each in timed):
        return None
    counted = [
        sum(
            int(each.counted[key].sum()) + each.counted_outside.get(key, 0)
            for phase in phases
            if (key := f"{phase}_flops") in each.counted
        )
        for each in timed
        if _has_counted(each)
    ]
    return sum(counted) / len(counted) if counted else None


def of_other_size_note(timed: Sequence[LayerRecords]) -> tuple[str, ...]:
    """Returns a note where operations were counted in a step with a batch of another size than that
    of the timed steps, as a mean over ranks; empty where they are alike, or sizes are not known."""
    known = [
        each for each in timed if each.counted_elements and np.isfinite(each.given_elements).any()
    ]
    if not known:
        return ()
    counted = sum(each.counted_elements or 0 for each in known)
    given = sum(float(mean_of_rows(each, each.given_elements[:, None])[0]) for each in known)
    ratio = given / counted
    if 1 / SAME_SIZE <= ratio <= SAME_SIZE:
        return ()
    times = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
    step, elements = known[0].counted_step, counted / len(known)
    return (_OTHER_SIZE.format(step=step, counted=elements, times=times),)


def without_counts(records: LayerRecords) -> LayerRecords:
    """Returns the records without the operations that were counted."""
    return replace(records, counted={}, counted_outside={}, uncounted={})


def with_limits(
    layers: Iterable[LayerFacts], fastest: float | None, bandwidth: float | None
) -> tuple[LayerFacts, ...]:
    """Returns the layers with how fast each computes, and what limits it where the device's
    operations and bytes per second are known."""
    return tuple(_with_limit(layer, fastest, bandwidth) for layer in layers)


def _with_limit(layer: LayerFacts, fastest: float | None, bandwidth: float | None) -> LayerFacts:
    time_s = layer.busy_s if layer.busy_s is not None else layer.time_s
    if layer.flops is None or time_s <= 0:
        return layer
    speed = layer.flops / time_s
    share = None if fastest is None else speed / fastest
    return replace(
        layer, flops_per_s=speed, peak_share=share, bound=_bound(layer, fastest, bandwidth)
    )


def _bound(layer: LayerFacts, fastest: float | None, bandwidth: float | None) -> Bound | None:
    """Returns what limits a layer, by the time that its work takes at least."""
    if layer.flops is None or layer.moved_bytes is None or fastest is None or bandwidth is None:
        return None
    if layer.busy_s is not None and layer.busy_s < MAX_BUSY_SHARE * layer.time_s:
        return Bound.LAUNCH
    computing_s = (layer.flops + (layer.recompute_flops or 0.0)) / fastest
    return Bound.COMPUTE if computing_s > layer.moved_bytes / bandwidth else Bound.BANDWIDTH


# Why it is not known


def no_peak_note(device: str, settings: Settings) -> str:
    """Returns the note that the device's limits are not known."""
    dtype, has_tf32 = number_type(settings)
    tf32 = " with TF32" if dtype == "float32" and has_tf32 else ""
    return _NO_PEAK.format(device=device, dtype=f"{dtype or 'its dtype'}{tf32}")


def counting_notes(records: Sequence[LayerRecords]) -> tuple[str, ...]:
    """Returns notes on operations that were not counted, with the reason; empty where all were
    counted, or no reason was recorded."""
    reasons = [each.why_uncounted for each in records if each.why_uncounted]
    found = [_NOT_COUNTED.format(reason) for reason in dict.fromkeys(reasons)]
    places: dict[str, set[str]] = {}
    for each in records:
        for operation, of_layers in each.uncounted.items():
            names = (each.names[place] or MODEL for place in of_layers if place >= 0)
            places.setdefault(operation, set()).update(map(repeated_name, names))
    if places:
        told = [
            f"{operation} (in {_some(sorted(names))})" if names else operation
            for operation, names in sorted(places.items())
        ]
        found.append(_UNCOUNTED.format(_some(told)))
    return tuple(found)


def no_step_notes(records: Sequence[LayerRecords]) -> tuple[str, ...]:
    """Returns the note that a finished run had no step whose operations were counted; empty where
    one was, or where another reason was recorded."""
    if any(_has_counted(each) or each.why_uncounted for each in records):
        return ()
    return (_NOT_COUNTED.format(_NO_STEP),)


def _has_counted(records: LayerRecords) -> bool:
    return "forward_flops" in records.counted


def _some(names: Sequence[str]) -> str:
    """Returns the first names as a list, and how many more there are."""
    more = len(names) - MAX_NAMED
    return ", ".join([*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])])
