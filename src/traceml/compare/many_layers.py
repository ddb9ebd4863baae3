"""Which layers take more or less time, or memory, in each of many runs than in the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from traceml.compare.layer_changes import MAX_LISTED, held_bytes, own_time_ms
from traceml.compare.many_record import LayerOfRuns, ManyLayers
from traceml.compare.record import Comparison, Delta, LayerChange, LayerMemoryChange
from traceml.model.layer_names import repeated_name
from traceml.summaries.layer_record import LayersSummary, LayerSummary

Runs = Sequence[LayersSummary | None]
Unit = tuple[str, str, str | None, int]
"""What it is about (`time`, `saved`, …), name, class, and how many layers it stands for."""


def many_layers(
    by_label: Mapping[str, Runs], comparisons: Sequence[Comparison]
) -> ManyLayers | None:
    """Returns the layers that moved in some entry; `None` where no pair has layers on both sides.

    `by_label` holds the runs of each entry, the baseline first; `comparisons` those of the baseline
    with each other entry.
    """
    baseline, *others = by_label
    compared = {
        label: each.layers
        for label, each in zip(others, comparisons, strict=True)
        if each.layers is not None
    }
    if not compared:
        return None
    moved: dict[Unit, dict[str, Delta]] = {}
    for label, found in compared.items():
        for each in (*found.moved, *found.memory):
            change = _corrected(each.change, len(compared))
            if each.change.p is None or change.significant:
                moved.setdefault(_unit(each), {})[label] = change
    rows = [_row(unit, changes, by_label, baseline) for unit, changes in moved.items()]
    rows.sort(key=_order)
    whole = {label: found.time_ms for label, found in compared.items()}
    known = [each.lhs for each in whole.values() if each.lhs is not None]
    own = known[0] if known else None
    return ManyLayers(
        time_ms={baseline: Delta.between(own, own), **whole},
        rows=tuple(rows[:MAX_LISTED]),
        rows_in_all=len(rows),
        compared={label: found.compared for label, found in compared.items()},
        new={label: found.new for label, found in compared.items() if found.new.layers},
        gone={label: found.gone for label, found in compared.items() if found.gone.layers},
        notes={label: found.notes for label, found in compared.items() if found.notes},
    )


def _unit(each: LayerChange) -> Unit:
    what = each.what if isinstance(each, LayerMemoryChange) else "time"
    return what, each.name, each.kind, each.layers


def _corrected(change: Delta, comparisons: int) -> Delta:
    """Returns a change whose p is corrected for the number of entries as well (Bonferroni)."""
    return change if change.p is None else change.judged(min(1.0, change.p * comparisons))


def _order(row: LayerOfRuns) -> tuple[bool, float, str]:
    largest = max(abs(change.delta or 0.0) for change in row.changes.values())
    return row.what != "time", -largest, row.name


def _row(
    unit: Unit, moved: Mapping[str, Delta], by_label: Mapping[str, Runs], baseline: str
) -> LayerOfRuns:
    """Returns a layer of every entry; where it did not move, its value is there all the same."""
    what, name, kind, layers = unit
    values = {label: _value(runs, unit) for label, runs in by_label.items()}
    changes = {
        label: moved.get(label, Delta.between(values[baseline], value))
        for label, value in values.items()
    }
    return LayerOfRuns(name=name, kind=kind, layers=layers, what=what, changes=changes)


def _value(runs: Runs, unit: Unit) -> float | None:
    """Returns what the layers of a unit take or hold together, as a mean over runs; `None` where a
    run has not as many of them."""
    found = [_value_of_run(run, unit) for run in runs if run is not None]
    known = [value for value in found if value is not None]
    return fmean(known) if known and len(known) == len(found) else None


def _value_of_run(run: LayersSummary, unit: Unit) -> float | None:
    what, name, kind, layers = unit
    if layers == 1:
        members = [run.layers[name]] if name in run.layers else []
    else:
        members = [
            layer
            for each, layer in run.layers.items()
            if layer.kind == kind and repeated_name(each) == name
        ]
    values = [_quantity(layer, what) for layer in members]
    known = [value for value in values if value is not None]
    if len(known) != layers:
        return None
    return max(known) if what == "peak" else sum(known)


def _quantity(layer: LayerSummary, what: str) -> float | None:
    return own_time_ms(layer) if what == "time" else held_bytes(layer, what)
