"""The layers that take the most time, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from traceml.compare.layer_changes import own_time_ms
from traceml.model.layer_names import (
    COMPILED_INSIDE,
    COMPILED_PARTLY,
    COMPILED_WHOLE,
    MODEL,
    names_of_groups,
    repeated_name,
)
from traceml.model.printable import one_line
from traceml.model.quantities import (
    count,
    factor_words,
    memory,
    milliseconds,
    operations,
    percent,
    significant,
)
from traceml.summaries.layer_record import ActivitySummary, LayersSummary, LayerSummary

MAX_SHOWN = 8
MAX_KERNELS = 5
MAX_SLOW = 3
MAX_WAITS = 3
MIN_SHARE = 0.01
"""Of the time in layers: what takes less is left out."""
OUTLIER_FACTOR, OUTLIER_SHARE = 3.0, 0.05
"""Times the median of those that repeat it, and of the time in layers, from which on a layer has a
row of its own: among four blocks the slow one is named …"""
OUTLIER_ERRORS = 2.0
"""… where its time less so many standard errors still is: a single interruption is none."""
MIN_RANK_FACTOR = 1.2
"""A rank that is slower than the median one by less is not told."""
NAME, CELL = 37, 10
BOUNDS = {
    "compute": "compute-bound",
    "bandwidth": "bandwidth-bound",
    "launch": "launch-bound",
}


@dataclass(frozen=True, slots=True)
class _LayerRow:
    """A layer, or all layers of one kind whose names differ in a number alone."""

    name: str
    layers: int
    forward_ms: float | None
    backward_ms: float | None
    """With what is computed again; `None` where none of it was measured."""
    saved_bytes: int | None
    bound: str | None
    """What limits them; `None` where that is not known, or differs."""
    flops_per_s: float | None
    """How fast they compute; `None` where that is not known, or they compute nothing."""
    communication_ms: float = 0.0
    """How long they waited for other ranks, in none of the other times."""

    @property
    def own_ms(self) -> float:
        return (self.forward_ms or 0.0) + (self.backward_ms or 0.0)


def layer_lines(found: LayersSummary | None) -> list[str]:
    """Returns a table of the layers that take the most time; empty without a deep profile."""
    if found is None:
        return []
    notes = [*_gradient_lines(found), *(line for note in found.notes for line in _wrapped(note))]
    seen = {n: each for n, each in found.layers.items() if each.compiled != COMPILED_INSIDE}
    rows = sorted(_rows(seen), key=lambda row: -row.own_ms)
    total_ms = sum(row.own_ms for row in rows)
    if not total_ms:
        return ["  Layers", *notes] if notes else []
    clock = f", {one_line(found.clock or '', 8).upper()} clock" if found.clock else ""
    lines = [
        f"  Layers (own time in {count(found.steps, 'step')} looked at{clock})",
        f"  {'':<{NAME}}{'forward':>{CELL}}{'backward':>{CELL}}{'share':>7}{'saved':>{CELL + 2}}",
    ]
    shown = [row for row in rows[:MAX_SHOWN] if row.own_ms >= MIN_SHARE * total_ms]
    for row in shown:
        many = f" ×{row.layers}" if row.layers > 1 else ""
        name = one_line(row.name or MODEL, NAME - 1 - len(many)) + many
        lines.append(
            f"  {name:<{NAME}}{milliseconds(row.forward_ms):>{CELL}}"
            f"{milliseconds(row.backward_ms):>{CELL}}{percent(row.own_ms / total_ms):>7}"
            f"{'' if row.saved_bytes is None else memory(row.saved_bytes):>{CELL + 2}}"
        )
    hidden = len(rows) - len(shown)
    if hidden > 0:
        left = sum(row.own_ms for row in rows) - sum(row.own_ms for row in shown)
        lines.append(f"  … and {count(hidden)} more with {milliseconds(left)} in all")
    return [
        *lines,
        *_phase_lines(found),
        *_communication_lines(found, rows),
        *_compiled_lines(found.layers),
        *(_slow_lines(found) or _rank_lines(found.layers, total_ms)),
        *_slowed_lines(found),
        *_limit_lines(found, shown),
        *_activity_lines(found.activity),
        *notes,
    ]


def _compiled_lines(layers: Mapping[str, LayerSummary]) -> list[str]:
    """Returns which layers are compiled and measured as a whole; empty where none is."""
    whole, partly = (
        list(dict.fromkeys(repeated_name(name) or MODEL for name in _compiled(layers, how)))
        for how in (COMPILED_WHOLE, COMPILED_PARTLY)
    )
    inside = len(_compiled(layers, COMPILED_INSIDE))
    lines = []
    if whole:
        lines.append(f"compiled, measured as a whole: {', '.join(whole)}")
    if partly:
        lines.append(f"with compiled functions in their own time: {', '.join(partly)}")
    if inside:
        hidden = f"{count(inside, 'layer')} inside are not seen one by one"
        lines.append(f"{hidden}; TORCH_COMPILE_DISABLE=1 shows them")
    return ["  " + one_line(line, 78) for line in lines]


def _compiled(layers: Mapping[str, LayerSummary], how: str) -> list[str]:
    return [name for name, layer in layers.items() if layer.compiled == how]


def _phase_lines(found: LayersSummary) -> list[str]:
    """Returns of each phase how much lies in layers and what is left, in the steps looked at,
    beside its mean over all steps, both without waiting for other ranks; nothing of a phase that
    was not seen as a whole."""
    lines = []
    for phase, in_layers, again, rest, mean in (
        ("forward", found.forward_ms, None, found.rest_forward_ms, found.mean_forward_ms),
        (
            "backward",
            found.backward_ms,
            found.recompute_ms,
            found.rest_backward_ms,
            found.mean_backward_ms,
        ),
    ):
        if in_layers is None or rest is None:
            continue
        repeated = "" if again is None else f", {milliseconds(again)} computed again"
        usual = "" if mean is None else f"; mean of all steps {milliseconds(mean)}"
        lines += _wrapped(
            f"{phase} {milliseconds(in_layers + (again or 0.0) + rest)}: "
            f"{milliseconds(in_layers)} in layers{repeated}, {milliseconds(rest)} rest{usual}"
        )
    return lines


def _communication_lines(found: LayersSummary, rows: Sequence[_LayerRow]) -> list[str]:
    """Returns how long a rank waits for others beside these times, and where the most."""
    in_layers, rest = found.communication_ms, found.rest_communication_ms
    whole_ms = (in_layers or 0.0) + (rest or 0.0)
    places = [(_name_of(row), row.communication_ms) for row in rows if row.communication_ms]
    if rest:
        places.append(("no layer", rest))
    places.sort(key=lambda place: -place[1])
    shown = [
        f"{milliseconds(waited_ms)} in {one_line(name, NAME)}"
        for name, waited_ms in places[:MAX_WAITS]
        if waited_ms >= MIN_SHARE * whole_ms
    ]
    if not whole_ms:
        return []
    said = f"communication {milliseconds(whole_ms)} beside these times: {', '.join(shown)}"
    return _wrapped(said)


def _name_of(row: _LayerRow) -> str:
    return (row.name or MODEL) + (f" ×{row.layers}" if row.layers > 1 else "")


def _wrapped(said: str) -> list[str]:
    """Returns a sentence on as many lines as it needs."""
    return textwrap.wrap(
        one_line(said),
        80,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _slow_lines(found: LayersSummary) -> list[str]:
    """Returns the layers and kernels that are slow on one rank alone, the most expensive first."""
    lines = []
    for each in found.slow_on_rank[:MAX_SLOW]:
        kernel = "" if each.kernel is None else f", kernel {each.kernel}"
        factor = factor_words(each.factor, each.interval)
        # The name comes last: it is what may be cut.
        said = f"rank {each.rank} takes {factor} what the others take, in "
        lines.append("  " + one_line(f"{said}{each.layer or MODEL}{kernel}", 78))
    return lines


def _slowed_lines(found: LayersSummary) -> list[str]:
    """Returns the layers that became slower during the run, the most expensive first."""
    lines = []
    for each in found.slowed_down[:MAX_SLOW]:
        factor = factor_words(each.factor, each.interval)
        said = f"since step {count(each.since_step)} rank {each.rank} takes {factor} for "
        kernel = "" if each.kernel is None else f", kernel {each.kernel}"
        lines.append("  " + one_line(f"{said}{each.layer or MODEL}{kernel}", 78))
    return lines


def _rank_lines(layers: Mapping[str, LayerSummary], total_ms: float) -> list[str]:
    """Returns the layer in which a rank is behind the median rank, or the other of two, the most;
    empty where none is."""
    gaps = {
        name: layer.worst_ms - layer.median_ms
        for name, layer in layers.items()
        if layer.worst_ms is not None and layer.median_ms is not None
    }
    name = max(gaps, key=lambda name: gaps[name], default=None)
    if name is None or gaps[name] < MIN_SHARE * total_ms:
        return []
    layer = layers[name]
    worst_ms, median_ms = layer.worst_ms or 0.0, layer.median_ms or 0.0
    if worst_ms < MIN_RANK_FACTOR * median_ms:
        return []
    # The name comes last: it is what may be cut.
    other = "the median rank" if layer.other_rank is None else f"rank {layer.other_rank}"
    said = f"rank {layer.worst_rank} takes {milliseconds(worst_ms)}, {other}"
    return ["  " + one_line(f"{said} {milliseconds(median_ms)}, in {name or MODEL}", 78)]


def _limit_lines(found: LayersSummary, shown: Sequence[_LayerRow]) -> list[str]:
    """Returns how close to the device's limits a step comes, and what limits the layers shown."""
    lines = []
    if found.flops_per_step is not None:
        said = f"{operations(found.flops_per_step)} per step"
        if found.flops_per_s is not None:
            said += f", {operations(found.flops_per_s, '/s')}"
        if found.mfu is not None and found.peak_flops_per_s is not None:
            most = operations(found.peak_flops_per_s, "/s")
            said += f": {percent(found.mfu)} of the device's {most} (MFU)"
        lines.append(f"  {said}")
        if found.recompute_flops_per_step:
            again = operations(found.recompute_flops_per_step)
            lines.append(f"  {again} more are computed again in backward (checkpointing)")
    speeds = [
        f"{row.name or MODEL} {operations(row.flops_per_s, '/s')}"
        for row in shown
        if row.flops_per_s is not None
    ]
    if speeds:
        lines += _wrapped(f"operations per second: {', '.join(speeds)}")
    for bound, words in BOUNDS.items():
        names = [row.name or MODEL for row in shown if row.bound == bound]
        if names:
            lines.append("  " + one_line(f"{words}: {', '.join(names)}", 78))
    return lines


def _gradient_lines(found: LayersSummary) -> list[str]:
    """Returns the gradient norm of the whole model, and the layers with the largest."""
    gradients = found.gradients
    if gradients is None or gradients.usual_norm is None:
        return []
    bad = gradients.bad_value
    last = "last" if bad is None else "last finite"
    at = "" if gradients.last_norm_step is None else f" at step {count(gradients.last_norm_step)}"
    said = (
        f"gradient norm {significant(gradients.usual_norm)} (first "
        f"{significant(gradients.first_norm)}, {last} {significant(gradients.last_norm)}{at}) "
        f"in {count(gradients.steps, 'step')}"
    )
    if bad is not None:
        first = bad.step + 1 if bad.phase == "optimizer" else bad.step  # parameters came before it
        said += f"; not finite from step {count(first)} on"
    lines = _wrapped(said)
    largest = max(found.layers.items(), key=lambda item: item[1].gradient_norm or 0.0, default=None)
    if largest is not None and largest[1].gradient_norm:
        # The name comes last: it is what may be cut.
        of_layer = f"largest of a layer: {significant(largest[1].gradient_norm)},"
        lines.append("  " + one_line(f"{of_layer} {largest[0] or MODEL}", 78))
    return lines


def _activity_lines(found: ActivitySummary | None) -> list[str]:
    """Returns how busy the GPU was by its own record, and the kernels that take the longest."""
    if found is None:
        return []
    kernels = f"{count(round(found.kernels_per_step))} kernels"
    said = f"GPU busy {milliseconds(found.busy_ms)} of a step by its own record, in {kernels}"
    for what, took_ms, alone_ms, least_ms in (
        ("communication", found.communication_ms, found.communication_alone_ms, 0.0),
        ("copies", found.copies_ms, found.copies_alone_ms, MIN_SHARE * found.busy_ms),
    ):
        if took_ms > least_ms:
            alone = "" if alone_ms is None else f", {milliseconds(alone_ms)} of it alone"
            said += f"; {what} {milliseconds(took_ms)}{alone}"
    lines = _wrapped(said)
    for kernel in found.kernels[:MAX_KERNELS]:
        name = one_line(kernel.name, NAME + CELL - 2)
        calls = f"×{kernel.calls:,.0f}"
        lines.append(
            f"  {name:<{NAME + CELL}}{milliseconds(kernel.time_ms):>{CELL}}"
            f"{percent(kernel.time_ms / found.busy_ms if found.busy_ms else None):>8}"
            f"{calls:>{CELL + 2}}"
        )
    return lines


def _rows(layers: Mapping[str, LayerSummary]) -> Iterable[_LayerRow]:
    """Returns layers that repeat as one row each: `blocks.*.attn`; `net.* (Linear)` where there are
    such of several classes. One that takes far longer than those that repeat it has its own."""
    groups: dict[tuple[str, str | None], dict[str, LayerSummary]] = {}
    for name, layer in layers.items():
        groups.setdefault((repeated_name(name), layer.kind), {})[name] = layer
    starred = names_of_groups(groups)
    total_ms = sum(map(_own_ms, layers.values()))
    for key, of_group in groups.items():
        for name in _outliers(of_group, total_ms):
            yield _row(name, [of_group.pop(name)])
        only = next(iter(of_group)) if len(of_group) == 1 else None
        yield _row(starred[key] if only is None else only, list(of_group.values()))


def _outliers(of_group: Mapping[str, LayerSummary], total_ms: float) -> list[str]:
    """Returns the layers of a group that take far longer than most of it; of two, neither does."""
    if len(of_group) <= 2:
        return []
    usual_ms = median(map(_own_ms, of_group.values()))
    least_ms = max(OUTLIER_FACTOR * usual_ms, OUTLIER_SHARE * total_ms)
    surely_ms = {
        name: _own_ms(layer) - OUTLIER_ERRORS * (layer.own_stderr_ms or 0.0)
        for name, layer in of_group.items()
    }
    return [name for name, own_ms in surely_ms.items() if 0 < least_ms <= own_ms]


def _own_ms(layer: LayerSummary) -> float:
    """Returns a layer's own time for orders and shares, where one that was not measured is 0."""
    return own_time_ms(layer) or 0.0


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    """Returns the sum of what was measured; `None` where nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _row(name: str, layers: Sequence[LayerSummary]) -> _LayerRow:
    bounds = {layer.bound for layer in layers}
    saved = [layer.saved_bytes for layer in layers]
    return _LayerRow(
        name=name,
        layers=len(layers),
        forward_ms=_sum_of_known(layer.forward_ms for layer in layers),
        backward_ms=_sum_of_known(
            part for layer in layers for part in (layer.backward_ms, layer.recompute_ms)
        ),
        saved_bytes=None if None in saved else sum(filter(None, saved)),
        bound=bounds.pop() if len(bounds) == 1 else None,
        flops_per_s=_flops_per_s(layers),
        communication_ms=sum(layer.communication_ms or 0.0 for layer in layers),
    )


def _flops_per_s(layers: Sequence[LayerSummary]) -> float | None:
    """Returns how fast layers compute together: one that takes longer counts for more."""
    if any(layer.flops is None or layer.flops_per_s is None for layer in layers):
        return None
    flops, seconds = 0.0, 0.0
    for layer in layers:
        if layer.flops and layer.flops_per_s:
            flops, seconds = flops + layer.flops, seconds + layer.flops / layer.flops_per_s
    return flops / seconds if seconds else None
