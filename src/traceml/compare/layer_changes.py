"""Which layers take more or less time, or hold more or less memory, from A to B.

A layer is compared by its own time, without the layers below it, so that no time counts twice.
Layers that repeat are also compared together: twelve small changes of one kind are one large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import structs

from traceml.compare.layer_pairs import LayerUnit, paired_layers, repeated_units, single_units
from traceml.compare.measured import delta_of, factor_between
from traceml.compare.record import (
    Delta,
    LayerChange,
    LayerComparison,
    LayerMemoryChange,
    LayersOfOneSide,
)
from traceml.compare.sides import Sides
from traceml.compare.statistics import holm
from traceml.compare.students_t import MeanError, reach, together, two_sided_p
from traceml.model.layer_names import PHASES
from traceml.summaries.layer_record import LayersSummary, LayerSummary

MIN_SHARE = 0.005
"""Of the time of all layers: smaller layers, and smaller changes, are not looked at. Each test that
is made makes the others weaker."""
MIN_MEMORY_SHARE = 0.01
"""The same of memory, of what all layers hold of a kind."""
MIN_RELATIVE_CHANGE = 0.01
"""With several runs per side: less is no change worth a line."""
ONE_FOR_ALL = 0.6
"""A layer that makes up this share of its group's change is listed by itself."""
MAX_LISTED = 100
"""Changes of each kind in the JSON file; the largest come first."""
MAX_NAMES = 20
MEMORY = ("saved", "parameters", "gradients", "optimizer", "buffers", "peak")

Runs = Sequence["LayersSummary | None"]


@dataclass(frozen=True, slots=True)
class _Compared:
    """The layers of both sides."""

    sides: Sides
    a: Runs
    """By run, in the order of the sides; `None` for a run without a deep profile."""
    b: Runs
    pairs: list[tuple[str, str]]
    last_b: Mapping[str, LayerSummary]

    def units(self) -> list[LayerUnit]:
        return [*single_units(self.pairs, self.last_b), *repeated_units(self.pairs, self.last_b)]


def layer_changes(sides: Sides, allowance: float) -> LayerComparison | None:
    """Returns which layers moved; `None` where a side has no run with layers.

    `allowance` is the share by which two equal runs may differ; it holds for one run per side.
    """
    a, b = ([run.layers for run in side] for side in (sides.a, sides.b))
    last_a, last_b = _last(a), _last(b)
    if last_a is None or last_b is None:
        return None
    found = _Compared(sides, a, b, paired_layers(last_a.layers, last_b.layers), last_b.layers)
    note = _why_not_timed(found)
    moved = _moved(found, allowance) if note is None else []
    memory = _memory(found)
    renamed = [(was, name) for was, name in found.pairs if was != name]
    return LayerComparison(
        compared=len(found.pairs),
        time_ms=delta_of(list(map(_time_of_all, a)), list(map(_time_of_all, b)), sides)
        if note is None
        else Delta(),
        moved=tuple(moved[:MAX_LISTED]),
        moved_in_all=len(moved),
        memory=tuple(memory[:MAX_LISTED]),
        memory_in_all=len(memory),
        renamed=tuple(renamed[:MAX_LISTED]),
        renamed_in_all=len(renamed),
        new=_of_one_side(last_b.layers, {name for _, name in found.pairs}),
        gone=_of_one_side(last_a.layers, {was for was, _ in found.pairs}),
        notes=tuple(_notes(found)) if note is None else (note,),
    )


def _last(runs: Runs) -> LayersSummary | None:
    """Returns the layers of the last run that has any."""
    return next((run for run in reversed(runs) if run is not None and run.layers), None)


def _why_not_timed(found: _Compared) -> str | None:
    """Returns why the times of the two sides are not compared; `None` where they are."""
    clocks = {run.clock for run in (*found.a, *found.b) if run is not None and run.clock}
    if len(clocks) > 1:
        return "Layers were timed on different clocks (GPU and CPU): their times are not compared."
    sides = {
        name: [run for run in runs if run is not None and run.layers]
        for name, runs in (("A", found.a), ("B", found.b))
    }
    for phase in PHASES:
        lacking = {
            name: sum(not _is_measured(run, phase) for run in runs) for name, runs in sides.items()
        }
        if 0 < sum(lacking.values()) < sum(map(len, sides.values())):
            places = " and ".join(
                f"{count} of {len(sides[name])} runs of {name}" if len(sides[name]) > 1 else name
                for name, count in lacking.items()
                if count
            )
            return f"Layers have no time in {phase} in {places}: their times are not compared."
    return None


def _is_measured(run: LayersSummary, phase: str) -> bool:
    """Returns whether a phase was measured for any layer of a run."""
    return any(getattr(layer, f"{phase}_ms") is not None for layer in run.layers.values())


def _notes(found: _Compared) -> Iterable[str]:
    if not found.sides.several:
        for side, runs in (("A", found.a), ("B", found.b)):
            if any(run is not None and run.steps < 2 for run in runs):
                yield f"Layers of {side} were timed in fewer than two steps: none can be judged."


def own_time_ms(layer: LayerSummary) -> float | None:
    """Returns a layer's own time in all phases; `None` where none was measured."""
    parts = (layer.forward_ms, layer.recompute_ms, layer.backward_ms)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _time_of_all(run: LayersSummary | None) -> float | None:
    if run is None:
        return None
    known = [time for layer in run.layers.values() if (time := own_time_ms(layer)) is not None]
    return sum(known) if known else None


def _of_one_side(layers: Mapping[str, LayerSummary], known: set[str]) -> LayersOfOneSide:
    times = {name: own_time_ms(layer) or 0.0 for name, layer in layers.items() if name not in known}
    longest = sorted(times, key=lambda name: -times[name])
    return LayersOfOneSide(len(times), sum(times.values()), tuple(longest[:MAX_NAMES]))


# Time


def _moved(found: _Compared, allowance: float) -> list[LayerChange]:
    """Returns the layers, or groups of them, whose time changed, the largest change first."""
    whole = max(fmean(known) if known else 0.0 for known in _known_totals(found))
    compared = {}
    for unit in found.units():
        change = _time_change(unit, found)
        if change.delta is not None and max(change.lhs or 0.0, change.rhs or 0.0) > (
            MIN_SHARE * whole
        ):
            compared[unit] = change
    corrected = holm({unit: each.p for unit, each in compared.items() if each.p is not None})
    least = MIN_RELATIVE_CHANGE if found.sides.several else allowance
    moved = {
        unit: change
        for unit, p in corrected.items()
        if (change := compared[unit].judged(p)).significant
        and abs(change.delta or 0.0) > MIN_SHARE * whole
        and _is_beyond(change, least)
    }
    chosen = _chosen(moved)
    return [
        LayerChange(
            name=unit.name,
            was=unit.was,
            kind=unit.kind,
            layers=len(unit.members),
            change=moved[unit],
        )
        for unit in chosen
    ]


def _known_totals(found: _Compared) -> list[list[float]]:
    return [
        [total for total in map(_time_of_all, runs) if total is not None]
        for runs in (found.a, found.b)
    ]


def _is_beyond(change: Delta, share: float) -> bool:
    factor = factor_between(change.lhs, change.rhs)
    return factor is None or factor > 1 + share


def _time_change(unit: LayerUnit, found: _Compared) -> Delta:
    """Returns the change of a unit's own time; by the runs where there are several, else by the
    steps of both."""
    a = [_time(run, (was for was, _ in unit.members)) for run in found.a]
    b = [_time(run, (name for _, name in unit.members)) for run in found.b]
    change = delta_of(a, b, found.sides)
    if found.sides.several or change.delta is None:
        return change
    errors = (
        _error(found.a[0], (was for was, _ in unit.members)),
        _error(found.b[0], (name for _, name in unit.members)),
    )
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return change
    error = together(known)
    away = reach(error) if error.size else 0.0
    return structs.replace(
        change,
        interval=(change.delta - away, change.delta + away),
        p=two_sided_p(change.delta, error),
    )


def _time(run: LayersSummary | None, names: Iterable[str]) -> float | None:
    """Returns the own time of layers together; `None` where one of them was not measured."""
    if run is None:
        return None
    times = [own_time_ms(run.layers[name]) if name in run.layers else None for name in names]
    known = [time for time in times if time is not None]
    return sum(known) if len(known) == len(times) else None


def _error(run: LayersSummary | None, names: Iterable[str]) -> MeanError | None:
    """Returns the standard error of the own time of layers together.

    A slow step slows all of its layers, so that their errors add up.
    """
    if run is None or run.steps < 2:
        return None
    sizes = [run.layers[name].own_stderr_ms if name in run.layers else None for name in names]
    known = [size for size in sizes if size is not None]
    return MeanError(sum(known), run.steps - 1) if len(known) == len(sizes) else None


def _chosen(moved: Mapping[LayerUnit, Delta]) -> list[LayerUnit]:
    """Returns what is listed: a group instead of its layers, unless one of them stands for all."""
    hidden: set[LayerUnit] = set()
    singles = {unit.members[0]: unit for unit in moved if len(unit.members) == 1}
    for group in moved:
        if len(group.members) > 1:
            members = [singles[each] for each in group.members if each in singles]
            change = moved[group].delta or 0.0
            if any((moved[each].delta or 0.0) / change > ONE_FOR_ALL for each in members):
                hidden.add(group)
            else:
                hidden.update(members)
    listed = [unit for unit in moved if unit not in hidden]
    return sorted(listed, key=lambda unit: -abs(moved[unit].delta or 0.0))


# Memory


def _memory(found: _Compared) -> list[LayerMemoryChange]:
    """Returns what layers hold more or less of; exact numbers, so that nothing is tested."""
    units = found.units()
    listed = []
    for what in MEMORY:
        changes = {unit: _memory_change(unit, found, what) for unit in units}
        least = MIN_MEMORY_SHARE * _held_by_all(changes, what)
        moved = {
            unit: each for unit, each in changes.items() if each.delta and abs(each.delta) >= least
        }
        listed += [
            LayerMemoryChange(
                name=unit.name,
                was=unit.was,
                kind=unit.kind,
                layers=len(unit.members),
                what=what,
                change=moved[unit],
            )
            for unit in _chosen(moved)
        ]
    return sorted(listed, key=lambda each: -abs(each.change.delta or 0.0))


def _held_by_all(changes: Mapping[LayerUnit, Delta], what: str) -> float:
    """Returns what the layers of the side that holds more hold together, of a peak the highest."""
    singles = [change for unit, change in changes.items() if len(unit.members) == 1]
    held = [[each.lhs or 0.0 for each in singles], [each.rhs or 0.0 for each in singles]]
    return max(max(side, default=0.0) if what == "peak" else sum(side) for side in held)


def _memory_change(unit: LayerUnit, found: _Compared, what: str) -> Delta:
    return Delta.between(
        _held(found.a, [was for was, _ in unit.members], what),
        _held(found.b, [name for _, name in unit.members], what),
    )


def _held(runs: Runs, names: Sequence[str], what: str) -> float | None:
    """Returns the bytes of layers together, of a peak the highest, as a mean over runs."""
    totals = []
    for run in runs:
        if run is None:
            continue
        held = [held_bytes(run.layers[name], what) for name in names if name in run.layers]
        known = [size for size in held if size is not None]
        if known and len(known) == len(names):
            totals.append(float(max(known) if what == "peak" else sum(known)))
    return fmean(totals) if totals else None


def held_bytes(layer: LayerSummary, what: str) -> int | None:
    """Returns what a layer holds, by a name of `MEMORY`; `None` where that was not measured."""
    found: int | None = getattr(layer, f"{what}_bytes")
    return found
