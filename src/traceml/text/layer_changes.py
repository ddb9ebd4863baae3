"""The layers that moved between two runs, in words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from traceml.compare.many_record import LayerOfRuns, ManyLayers
from traceml.compare.record import (
    Delta,
    LayerChange,
    LayerComparison,
    LayerMemoryChange,
    LayersOfOneSide,
)
from traceml.model.layer_names import MODEL
from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import count, memory, milliseconds, percent

MAX_TIMES = 8
MAX_MEMORY = 6
MAX_NAMES = 3
MAX_NAME_CHARS = 48
HELD = {
    "saved": "saved for backward",
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
    "peak": "peak while inside",
}


def layer_sentences(found: LayerComparison) -> tuple[str, list[str]]:
    """Returns a headline and a sentence for each layer that moved, the largest change first."""
    alike = _of_several_classes((*found.moved, *found.memory))
    return _headline(found), [
        *(_time_words(each, alike) for each in found.moved[:MAX_TIMES]),
        *_more(found.moved_in_all - MAX_TIMES, "layer that moved", "layers that moved"),
        *_memory_lines(found, alike),
        *names_told(found),
        *found.notes,
    ]


def _headline(found: LayerComparison) -> str:
    whole = found.time_ms
    words = f"Layers, by their own time per step ({count(found.compared)} compared"
    if whole.lhs is not None and whole.rhs is not None:
        words += f", {milliseconds(whole.lhs)} → {milliseconds(whole.rhs)} in all"
    said = none_moved(found)
    return f"{words}):" + (f" {said[0].lower()}{said[1:]}" if said else "")


def none_moved(found: LayerComparison) -> str:
    """Returns the sentence that no layer moved, or that none is on both sides; empty where some
    moved, or where notes say why nothing is known."""
    if found.moved or found.notes:
        return ""
    if not found.compared:
        return "No layer is on both sides."
    return "No layer is shown to take more or less time."


def none_moved_in_runs(found: ManyLayers, baseline: str) -> str:
    """Returns the sentence that no layer moved, or could be compared, in many runs; empty where
    some layer moved."""
    if found.rows:
        return ""
    if found.compared and not any(found.compared.values()):
        return f"No layer of {baseline} is in any of the other runs."
    return f"No layer is shown to take more or less than in {baseline}."


def _of_several_classes(found: Iterable[LayerChange | LayerOfRuns]) -> set[str]:
    """Returns the names that layers of several classes have, such as `layers.*`."""
    kinds: dict[str, set[str | None]] = {}
    for each in found:
        kinds.setdefault(each.name, set()).add(each.kind)
    return {name for name, of_name in kinds.items() if len(of_name) > 1}


def _name_and_class(each: LayerChange | LayerOfRuns, alike: Container[str]) -> str:
    """Returns a layer's name, with its class where the name is among those that are alike."""
    kind = f" ({one_line(each.kind)})" if each.kind and each.name in alike else ""
    return f"{shown_name(each.name)}{kind}"


def unit_name(each: LayerChange, alike: Container[str] = ()) -> str:
    """Returns a layer's name as people read it, with how many it stands for; with its class where
    the name is among those that are alike."""
    many = f" ×{each.layers}" if each.layers > 1 else ""
    was = f" (was {shown_name(each.was)})" if each.was is not None else ""
    return f"{_name_and_class(each, alike)}{many}{was}"


def row_names(rows: Sequence[LayerOfRuns]) -> list[str]:
    """Returns the names of layers of many runs, each with how many it stands for and what is
    compared where that is not its time."""
    alike = _of_several_classes(rows)
    return [_row_name(row, alike) for row in rows]


def _row_name(row: LayerOfRuns, alike: Container[str]) -> str:
    many = f" ×{row.layers}" if row.layers > 1 else ""
    what = "" if row.what == "time" else f", {HELD.get(row.what, row.what)}"
    return f"{_name_and_class(row, alike)}{many}{what}"


def row_value(row: LayerOfRuns, value: float | None) -> str:
    """Returns the time or the bytes of a layer in words."""
    return milliseconds(value) if row.what == "time" else memory(value)


def row_change(change: Delta) -> str:
    """Returns a layer's change from the baseline as a share; empty where there is none."""
    if not change.delta or change.pct_change is None:
        return ""
    return percent(change.pct_change / 100, signed=True)


def layer_notes(found: ManyLayers) -> list[str]:
    """Returns notes on the layers that each run has and the baseline lacks, or the other way round,
    and on why layers could not be compared."""
    return [
        *(
            f"{opening} {label}: {_side_words(sides[label])}."
            for label in found.compared
            for opening, sides in (("New in", found.new), ("Gone in", found.gone))
            if label in sides
        ),
        *(f"{label}: {note}" for label, notes in found.notes.items() for note in notes),
    ]


def shown_name(name: str) -> str:
    """Returns a name on one line, its middle left out where it is long."""
    return shorten_middle(one_line(name), MAX_NAME_CHARS) or MODEL


def _time_words(each: LayerChange, alike: Container[str]) -> str:
    change = each.change
    delta = change.delta or 0.0
    share = None if change.pct_change is None else change.pct_change / 100
    how = "more" if delta > 0 else "less"
    takes = "takes" if each.layers == 1 else "take"
    by = "" if share is None else f" ({percent(share, signed=True)})"
    interval = interval_words(each)
    return (
        f"{unit_name(each, alike)} {takes} {milliseconds(abs(delta))} {how}{by}: "
        f"{milliseconds(change.lhs)} → {milliseconds(change.rhs)}"
        + (f", 95% CI {interval}" if interval else "")
        + "."
    )


def interval_words(each: LayerChange) -> str:
    """Returns the interval of a change of time; empty where there is none."""
    if each.change.interval is None:
        return ""
    low, high = (milliseconds(limit, signed=True) for limit in each.change.interval)
    return f"{low} … {high}"


def signed_memory(size_bytes: float | None) -> str:
    """Returns a change of memory with its sign."""
    words = memory(size_bytes)
    return words if words.startswith("-") or size_bytes is None else f"+{words}"


def _memory_lines(found: LayerComparison, alike: Container[str]) -> Iterator[str]:
    """Yields a line per layer, with everything that it holds more or less of."""
    by_unit: dict[tuple[str, str | None, int], list[LayerMemoryChange]] = {}
    for each in found.memory:
        by_unit.setdefault((each.name, each.kind, each.layers), []).append(each)
    for changes in list(by_unit.values())[:MAX_MEMORY]:
        said = (f"{HELD[each.what]} {signed_memory(each.change.delta)}" for each in changes)
        verb = "holds" if changes[0].layers == 1 else "hold"
        yield f"{unit_name(changes[0], alike)} {verb}: {', '.join(said)}."
    hidden = found.memory_in_all - sum(map(len, list(by_unit.values())[:MAX_MEMORY]))
    yield from _more(hidden, "change of memory", "changes of memory")


def names_told(found: LayerComparison) -> Iterator[str]:
    """Yields which layers one side has alone, and which have another name."""
    for opening, side in (("New in B", found.new), ("Gone in B", found.gone)):
        if side.layers:
            yield f"{opening}: {_side_words(side)}."
    if found.renamed_in_all:
        shown = ", ".join(
            f"{shown_name(was)} → {shown_name(name)}" for was, name in found.renamed[:MAX_NAMES]
        )
        more = found.renamed_in_all - len(found.renamed[:MAX_NAMES])
        yield (
            "Taken for the same under another name, by class and size: "
            f"{shown}{f' and {count(more)} more' if more > 0 else ''}."
        )


def _side_words(side: LayersOfOneSide) -> str:
    names = ", ".join(map(shown_name, side.names[:MAX_NAMES]))
    more = ", …" if side.layers > MAX_NAMES else ""
    return f"{count(side.layers, 'layer')} ({names}{more}) with {milliseconds(side.time_ms)}"


def _more(hidden: int, one: str, many: str) -> Sequence[str]:
    if hidden <= 0:
        return ()
    return (f"… and {count(hidden)} more {one if hidden == 1 else many}, in the JSON file.",)
