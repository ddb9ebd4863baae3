"""The layers that moved between two runs, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceml.compare.record import (
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
    return _headline(found), [
        *(_time_words(each) for each in found.moved[:MAX_TIMES]),
        *_more(found.moved_in_all - MAX_TIMES, "layer that moved", "layers that moved"),
        *_memory_lines(found),
        *names_told(found),
        *found.notes,
    ]


def _headline(found: LayerComparison) -> str:
    whole = found.time_ms
    words = f"Layers, by their own time per step ({count(found.compared)} compared"
    if whole.lhs is not None and whole.rhs is not None:
        words += f", {milliseconds(whole.lhs)} → {milliseconds(whole.rhs)} in all"
    nothing = not found.moved and not found.notes
    return f"{words}):" + (" none is shown to take more or less." if nothing else "")


def unit_name(each: LayerChange) -> str:
    """Returns a layer's name as people read it, with how many it stands for."""
    name = shown_name(each.name)
    many = f" ×{each.layers}" if each.layers > 1 else ""
    was = f" (was {shown_name(each.was)})" if each.was is not None else ""
    return f"{name}{many}{was}"


def shown_name(name: str) -> str:
    """Returns a name on one line, its middle left out where it is long."""
    return shorten_middle(one_line(name), MAX_NAME_CHARS) or MODEL


def _time_words(each: LayerChange) -> str:
    change = each.change
    delta = change.delta or 0.0
    share = None if change.pct_change is None else change.pct_change / 100
    how = "more" if delta > 0 else "less"
    takes = "takes" if each.layers == 1 else "take"
    by = "" if share is None else f" ({percent(share, signed=True)})"
    interval = interval_words(each)
    return (
        f"{unit_name(each)} {takes} {milliseconds(abs(delta))} {how}{by}: "
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


def _memory_lines(found: LayerComparison) -> Iterator[str]:
    """Yields a line per layer, with everything that it holds more or less of."""
    by_unit: dict[tuple[str, int], list[LayerMemoryChange]] = {}
    for each in found.memory:
        by_unit.setdefault((each.name, each.layers), []).append(each)
    for changes in list(by_unit.values())[:MAX_MEMORY]:
        said = (f"{HELD[each.what]} {signed_memory(each.change.delta)}" for each in changes)
        verb = "holds" if changes[0].layers == 1 else "hold"
        yield f"{unit_name(changes[0])} {verb}: {', '.join(said)}."
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
