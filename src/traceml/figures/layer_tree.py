"""Makes the tree of a model's layers: by name, and with layers that repeat as one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traceml.compare.layer_changes import own_time_ms
from traceml.figures.layer_record import LayerBar, LayerColumn, LayerRows, LayerTree, LayerTreeRow
from traceml.figures.page import Row, Table
from traceml.figures.units import PERCENT, PLAIN, Floats, Unit
from traceml.figures.words import cell
from traceml.model.layer_names import (
    COMPILED_INSIDE,
    COMPILED_PARTLY,
    COMPILED_WHOLE,
    MODEL,
    outer_name,
    repeated_name,
)
from traceml.model.quantities import NOT_MEASURED, count
from traceml.summaries.layer_record import LayersSummary, LayerSummary

MAX_LAYERS = 10_000
"""A page with more would be too large to open; those further out come first."""
MAX_TOP = 8
MAX_DECIMALS = 2
SMALL = 10.0
"""Where no value of a kind is larger, they have one decimal more."""
SMALL_NUMBER = 0.1
"""Where no number without a unit is larger, too few of its digits would be left."""
DIGITS = 6
"""Significant digits of the largest value: a layer may take a thousandth of what all take."""
MILLISECONDS, MICROSECONDS = Unit("ms", 1e-3), Unit("µs", 1e-6)
TERAFLOPS, GIGAFLOPS = Unit("TFLOP/s", 1e12), Unit("GFLOP/s", 1e9)
MEBIBYTES, KIBIBYTES = Unit("MiB", 2.0**20), Unit("KiB", 2.0**10)

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_COMPILED = {
    COMPILED_WHOLE: "compiled",
    COMPILED_PARTLY: "calls compiled functions",
    COMPILED_INSIDE: "inside compiled code",
}
_BOUNDS = ("compute", "bandwidth", "launch")
_SHORT = ("own", "forward", "backward", "over-median", "saved")
_TIME = (
    ("forward", "forward"),
    ("recompute", "series-6"),
    ("backward", "backward"),
    ("communication", "communication"),
)
_MEMORY = (
    ("parameters", "series-1"),
    ("gradients", "series-5"),
    ("optimizer", "series-3"),
    ("saved", "series-2"),
)
"""The pieces of a row's bars, as columns and colours."""


@dataclass(slots=True)
class _Node:
    """A row of the tree that is being made."""

    name: str
    label: str
    parent: int
    kind: str
    members: list[LayerSummary] = field(default_factory=list)


def layer_tree(found: LayersSummary) -> LayerTree | None:
    """Returns the tree; `None` where no layer was seen."""
    listed = sorted(found.layers.items(), key=lambda item: _depth(item[0]))[:MAX_LAYERS]
    if not listed:
        return None
    layers = dict(listed)
    single = _rows(_single(layers), found.peak_flops_per_s)
    grouped = _grouped(layers)
    known = {column.id for column in single.columns}
    return LayerTree(
        id="layer-tree",
        title="Time and memory by layer",
        single=single,
        grouped=_rows(grouped, found.peak_flops_per_s) if len(grouped) < len(layers) else None,
        bars=tuple(
            LayerBar(label, *map(tuple, zip(*shown, strict=True)))
            for label, pieces in (("Time", _TIME), ("Memory", _MEMORY))
            if (shown := [piece for piece in pieces if piece[0] in known])
        ),
        flames=tuple(
            name for name in ("total", "forward", "recompute", "backward") if name in known
        ),
        caption=_caption(len(found.layers) - len(layers)),
    )


def _caption(hidden: int) -> str:
    said = (
        "Per step. In the tree a row counts everything below it, in the list a layer counts by "
        "itself; own time is without the layers below."
    )
    return f"{said} {count(hidden, 'more layer')} in the JSON file." if hidden > 0 else said


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _single(layers: Mapping[str, LayerSummary]) -> list[_Node]:
    """Returns a row per layer; rows come after the one above them."""
    places: dict[str, int] = {}
    nodes: list[_Node] = []
    for name, layer in layers.items():
        outer = outer_name(name, places)
        parent = -1 if outer is None else places[outer]
        places[name] = len(nodes)
        nodes.append(_Node(name, _label(name, outer), parent, _kind(layer), [layer]))
    return nodes


def _grouped(layers: Mapping[str, LayerSummary]) -> list[_Node]:
    """Returns a row for all layers of one class below one row whose names differ in a number."""
    places: dict[str, int] = {}
    by_key: dict[tuple[int, str, str], int] = {}
    nodes: list[_Node] = []
    singles: list[str] = []
    for name, layer in layers.items():
        outer = outer_name(name, places)
        parent = -1 if outer is None else places[outer]
        label, kind = _label(name, outer), _kind(layer)
        place = by_key.setdefault((parent, repeated_name(label), kind), len(nodes))
        if place == len(nodes):
            nodes.append(_Node("", repeated_name(label), parent, kind))
            singles.append(label)
        nodes[place].members.append(layer)
        places[name] = place
    for place, node in enumerate(nodes):
        above = nodes[node.parent] if node.parent >= 0 else None
        alone = len(node.members) == (1 if above is None else len(above.members))
        if alone:
            node.label = singles[place]
        node.name = ".".join(part for part in (above.name if above else "", node.label) if part)
    return nodes


def _kind(layer: LayerSummary) -> str:
    """Returns a layer's class, and how it is compiled."""
    return ", ".join(word for word in (layer.kind, _COMPILED.get(layer.compiled or "")) if word)


def _label(name: str, outer: str | None) -> str:
    return name[len(outer) + 1 :] if outer else name


# The few that matter most


def top_layers(tree: LayerTree) -> Table:
    """Returns the layers that take the longest by themselves, repeated ones together, as a table
    for where there is no room for a tree."""
    data = tree.grouped or tree.single
    columns = [each for name in _SHORT for each in data.columns if each.id == name]
    own = next((each.whole for each in data.columns if each.id == "own"), ())
    known = [place for place, value in enumerate(own) if value]
    places = sorted(known, key=lambda place: -(own[place] or 0.0))[:MAX_TOP]
    return Table(
        id="top-layers-table",
        title="Layers by their own time",
        columns=("Layer", *(f"{each.label} ({each.unit})" for each in columns)),
        rows=tuple(
            Row((_with_count(data.rows[place]), *(_cell(each, place) for each in columns)))
            for place in places
        ),
        note=f"{count(len(known) - len(places))} more" if len(known) > len(places) else None,
    )


def _with_count(row: LayerTreeRow) -> str:
    return f"{row.name} ×{row.layers}" if row.layers > 1 else row.name


def _cell(column: LayerColumn, place: int) -> str:
    value = (column.whole if column.own is None else column.own)[place]
    return NOT_MEASURED if value is None else f"{value:,.{column.decimals}f}"


# Numbers


@dataclass(frozen=True, slots=True)
class _LayerQuantity:
    """What a column shows of a layer."""

    id: str
    label: str
    value: Callable[[LayerSummary], float | None]
    unit: str
    """`time` (ms), `memory` (bytes), `norm` (a number that may be very small) or `plain`."""
    is_peak: bool = False
    """The largest of several layers counts, and not their sum."""
    is_own: bool = False
    """It says nothing about the layers below."""

    @property
    def is_time(self) -> bool:
        return self.unit == "time"

    @property
    def is_memory(self) -> bool:
        return self.unit == "memory"

    @property
    def base(self) -> float:
        """How many of the summary's units are one second, one byte, one."""
        return 1e3 if self.is_time else 1.0


def _over_median_ms(layer: LayerSummary) -> float | None:
    if layer.worst_ms is None or layer.median_ms is None:
        return None
    return max(0.0, layer.worst_ms - layer.median_ms)


_QUANTITIES = (
    _LayerQuantity("total", "Total", own_time_ms, "time"),
    _LayerQuantity("own", "Own", own_time_ms, "time", is_own=True),
    _LayerQuantity("forward", "Forward", lambda layer: layer.forward_ms, "time"),
    _LayerQuantity("recompute", "Recompute", lambda layer: layer.recompute_ms, "time"),
    _LayerQuantity("backward", "Backward", lambda layer: layer.backward_ms, "time"),
    _LayerQuantity("communication", "Communication", lambda each: each.communication_ms, "time"),
    _LayerQuantity("over-median", "Worst rank over median", _over_median_ms, "time", is_peak=True),
    _LayerQuantity("saved", "Saved for backward", lambda layer: layer.saved_bytes, "memory"),
    _LayerQuantity("peak", "Peak inside", lambda layer: layer.peak_bytes, "memory", is_peak=True),
    _LayerQuantity(
        "reached",
        "All memory in use inside, at least",
        lambda each: each.reached_bytes,
        "memory",
        is_peak=True,
    ),
    _LayerQuantity("parameters", "Parameters", lambda layer: layer.parameters_bytes, "memory"),
    _LayerQuantity("gradients", "Gradients", lambda layer: layer.gradients_bytes, "memory"),
    _LayerQuantity("optimizer", "Optimizer", lambda layer: layer.optimizer_bytes, "memory"),
    _LayerQuantity("buffers", "Buffers", lambda layer: layer.buffers_bytes, "memory"),
    _LayerQuantity("busy", "GPU busy", lambda layer: layer.busy_ms, "time"),
    _LayerQuantity("kernels", "Kernels", lambda layer: layer.kernels, "plain"),
    _LayerQuantity(
        "gradient-norm", "Gradient norm", lambda each: each.gradient_norm, "norm", True, is_own=True
    ),
    _LayerQuantity("calls", "Calls", lambda layer: layer.calls, "plain", is_own=True),
)


def _rows(nodes: Sequence[_Node], peak_flops: float | None) -> LayerRows:
    parents = [node.parent for node in nodes]
    columns: list[tuple[_LayerQuantity, Floats, Floats]] = []
    for quantity in _quantities(nodes):
        own = _own_values(nodes, quantity)
        if np.nan_to_num(own).any():  # a column of zeros says nothing
            whole = own if quantity.is_own else _with_below(own, parents, quantity.is_peak)
            columns.append((quantity, own, whole))
    scales = {
        "time": _Scale.of(
            MILLISECONDS, MICROSECONDS, [whole / 1e3 for each, _, whole in columns if each.is_time]
        ),
        "memory": _Scale.of(
            MEBIBYTES, KIBIBYTES, [whole for each, _, whole in columns if each.is_memory]
        ),
    }
    shown = [
        _column(
            each,
            scales.get(each.unit) or _Scale.of_numbers(whole, each.unit == "norm"),
            whole / each.base,
            None if each.is_own else own / each.base,
        )
        for each, own, whole in columns
    ]
    return LayerRows(
        rows=tuple(_row(node) for node in nodes),
        columns=(*shown, *_speeds(nodes, parents, peak_flops)),
    )


def _quantities(nodes: Sequence[_Node]) -> Iterator[_LayerQuantity]:
    """Yields what the columns show; of two ranks the slower one is compared with the other."""
    compared = [each for node in nodes for each in node.members if each.worst_ms is not None]
    is_of_two = bool(compared) and all(each.other_rank is not None for each in compared)
    for quantity in _QUANTITIES:
        is_renamed = is_of_two and quantity.id == "over-median"
        yield replace(quantity, label="Slower rank over the other") if is_renamed else quantity


def _own_values(nodes: Sequence[_Node], quantity: _LayerQuantity) -> Floats:
    combine = max if quantity.is_peak else sum
    found = np.full(len(nodes), np.nan)
    for place, node in enumerate(nodes):
        known = [value for each in node.members if (value := quantity.value(each)) is not None]
        if known:
            found[place] = float(combine(known))
    return found


def _with_below(own: Floats, parents: Sequence[int], is_peak: bool) -> Floats:
    """Returns values of rows with everything below them; NaN where none of it is known."""
    whole: Floats = own.copy()
    for place in range(len(parents) - 1, -1, -1):
        above = parents[place]
        if above >= 0 and not math.isnan(whole[place]):
            if math.isnan(whole[above]):
                whole[above] = whole[place]
            elif is_peak:
                whole[above] = max(whole[above], whole[place])
            else:
                whole[above] += whole[place]
    return whole


@dataclass(frozen=True, slots=True)
class _Scale:
    """How the values of a column are written: those of one kind alike, so that they compare."""

    unit: Unit
    decimals: int

    @classmethod
    def of(cls, usual: Unit, small: Unit, values: Sequence[Floats]) -> _Scale:
        """Returns the scale of all columns of a kind, by their largest value.

        The unit does not grow with the model: single layers are what is compared.
        """
        known = np.nan_to_num(np.concatenate([np.zeros(1), *values]))
        unit = small if known.max() < usual.size else usual
        return cls(unit, _decimals(known / unit.size))

    @classmethod
    def of_numbers(cls, values: Floats, may_be_small: bool) -> _Scale:
        """Returns the scale of numbers without a unit: those that are all small in thousandths,
        millionths, … of one, because no decimals would be left of them."""
        most = float(np.nan_to_num(values).max(initial=0.0))
        if not may_be_small or not 0 < most < SMALL_NUMBER:
            return cls(PLAIN, _decimals(values))
        power = 3 * math.floor(math.log10(most) / 3)
        unit = Unit(f"10{str(power).translate(_RAISED)}", 10.0**power)
        return cls(unit, _decimals(values / unit.size))


def _column(each: _LayerQuantity, scale: _Scale, whole: Floats, own: Floats | None) -> LayerColumn:
    def written(values: Floats) -> tuple[float | None, ...]:
        """Returns the values as they are shown, ready for JSON; sorting needs no more digits."""
        shown = np.round(values / scale.unit.size, scale.decimals).tolist()
        return tuple(value if math.isfinite(value) else None for value in shown)

    return LayerColumn(
        id=each.id,
        label=each.label,
        unit=scale.unit.symbol,
        decimals=scale.decimals,
        whole=written(whole),
        own=None if own is None else written(own),
    )


def _decimals(values: Floats) -> int:
    """Returns how many decimals tell the values of a column apart; none for whole numbers."""
    known = np.abs(values[np.isfinite(values)])
    if not known.size or np.array_equal(known, np.round(known)):
        return 0
    most = float(known.max())
    before = math.floor(math.log10(max(most, 1.0))) + 1
    return min(max(DIGITS - before, 0), MAX_DECIMALS + (most < SMALL))


def _speeds(
    nodes: Sequence[_Node], parents: Sequence[int], peak_flops: float | None
) -> Iterator[LayerColumn]:
    """Yields the operations per second that rows achieve, and their share of what the device can
    do. A row has neither where some layer in it was not counted."""
    if not any(_has_speed(each) for node in nodes for each in node.members):
        return
    flops, seconds = np.zeros(len(nodes)), np.zeros(len(nodes))
    for place, node in enumerate(nodes):
        counts = [each.flops for each in node.members]
        flops[place] = math.nan if None in counts else sum(count or 0.0 for count in counts)
        seconds[place] = sum(_running_ms(each) for each in node.members) / 1e3
    with np.errstate(invalid="ignore", divide="ignore"):
        own = flops / seconds
        whole = _added_up(flops, parents) / _added_up(seconds, parents)
    speed = _LayerQuantity("flops-per-s", "FLOP/s", lambda layer: layer.flops_per_s, "plain")
    yield _column(speed, _Scale.of(TERAFLOPS, GIGAFLOPS, [whole, own]), whole, own)
    if peak_flops:
        share = _LayerQuantity("mfu", "MFU", lambda layer: layer.peak_share, "plain")
        yield _column(share, _Scale(PERCENT, 1), whole / peak_flops, own / peak_flops)


def _has_speed(layer: LayerSummary) -> bool:
    """Whether it is known how fast a layer computes; earlier versions told the share alone."""
    return layer.flops_per_s is not None or layer.peak_share is not None


def _added_up(own: Floats, parents: Sequence[int]) -> Floats:
    """Returns the value of each row with all rows below it; NaN where one of them is not known."""
    whole: Floats = own.copy()
    for place in range(len(parents) - 1, -1, -1):
        if parents[place] >= 0:
            whole[parents[place]] += whole[place]
    return whole


def _running_ms(layer: LayerSummary) -> float:
    return layer.busy_ms if layer.busy_ms is not None else own_time_ms(layer) or 0.0


def _row(node: _Node) -> LayerTreeRow:
    bounds = {each.bound for each in node.members}
    bound = bounds.pop() if len(bounds) == 1 else None
    slowest = max(node.members, key=lambda each: _over_median_ms(each) or 0.0)
    is_slower = bool(_over_median_ms(slowest)) and slowest.worst_rank is not None
    return LayerTreeRow(
        name=cell(node.name) or MODEL,
        label=cell(node.label) or MODEL,
        parent=node.parent,
        kind=cell(node.kind),
        layers=len(node.members),
        bound=bound if bound in _BOUNDS else "",
        worst_rank=str(slowest.worst_rank) if is_slower else "",
    )
