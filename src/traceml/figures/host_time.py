"""The part of a run's page about the host's time: sampled stacks as a flame graph by phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traceml.compare.record import HostTimeComparison
from traceml.facts.user_time import share_interval
from traceml.figures.colours import PALETTE
from traceml.figures.page import FlameBox, FlameGraph, FlameView, Part, Row, Table
from traceml.figures.words import cell, joined
from traceml.model.printable import shorten_middle
from traceml.model.quantities import count, milliseconds, percent
from traceml.model.sample import LOADER_WORKERS, OTHER_THREADS
from traceml.summaries.host_time_record import (
    HostCallSummary,
    HostPhaseSummary,
    HostPlaceSummary,
    HostTimeSummary,
)
from traceml.text.host_time import PHASE_LABELS, moved_points

MAX_PLACE_CHARS = 72
MAX_ROWS = 12
"""Of the table; the graph and the JSON file have all."""
MANY_TORN = 0.1
"""Of all looks: a larger share of torn ones is said, because deep stacks are torn more often."""
_BESIDE = (LOADER_WORKERS, OTHER_THREADS)
_COLOURS = {LOADER_WORKERS: "input"}


def host_time_part(found: HostTimeSummary | None) -> Part | None:
    """Returns where the host's time goes; `None` where no stack was kept."""
    if found is None or not found.phases:
        return None
    training = {name: phase for name, phase in found.phases.items() if name not in _BESIDE}
    beside = {name: phase for name, phase in found.phases.items() if name in _BESIDE}
    graphs = (
        _graph("host-flame", "The training thread's calls, by phase", training),
        _graph("beside-flame", "Beside the training thread", beside),
    )
    return Part(
        id="host-time",
        title="Where the host's time goes",
        note=_note(found),
        figures=tuple(graph for graph in graphs if graph is not None),
        tables=(_places(found),),
        is_wide=True,
    )


def _note(found: HostTimeSummary) -> str | None:
    """Returns how many samples there are, how they were taken and at which cost."""
    taken = found.looks + found.outside + found.torn
    rate = "" if found.rate_hz is None else f", {found.rate_hz:.0f} per second"
    cost = None if found.core_share is None else f"{percent(found.core_share)} of another core"
    torn = f"{count(found.torn)} torn" if found.torn > MANY_TORN * taken else None
    by = None if found.by is None else f"by {cell(found.by)}"
    return joined((f"{count(found.looks, 'stack sample')}{rate}", by, cost, torn)) or None


def host_time_changes_part(found: HostTimeComparison | None) -> Part | None:
    """Returns the functions that moved between two runs; `None` where none did."""
    if found is None or not found.moved:
        return None
    rows = tuple(
        Row(
            tuple(
                map(
                    cell,
                    (
                        f"{each.function} ({each.file})",
                        PHASE_LABELS.get(each.phase, each.phase),
                        percent(each.change.lhs or 0.0),
                        percent(each.change.rhs or 0.0),
                        moved_points(each),
                    ),
                )
            )
        )
        for each in found.moved
    )
    return Part(
        id="host-time",
        title="Where the host's time goes",
        note=f"{count(found.compared, 'function')} compared by their stack samples",
        tables=(
            Table(
                id="host-time-table",
                title="Functions that take more or less of a phase",
                columns=("Function", "Phase", "A", "B", "Change, 95% CI"),
                rows=rows,
                note="p < 0.05, corrected for all functions.",
            ),
        ),
        is_wide=True,
    )


# The graph


@dataclass(slots=True)
class _Box:
    """A box that is being made."""

    label: str
    place: str
    is_pale: bool
    looks: int = 0
    below: dict[tuple[str, str], _Box] = field(default_factory=dict)


def _graph(id_: str, title: str, phases: Mapping[str, HostPhaseSummary]) -> FlameGraph | None:
    if not phases:
        return None
    views = (
        ("own", "Your code", "Your own functions; what they call in packages is theirs"),
        ("all", "All calls", "Calls in packages too, paler"),
    )
    return FlameGraph(
        id=id_,
        title=title,
        views=tuple(
            FlameView(name, label, said, tuple(_boxes(phases, is_own=name == "own")))
            for name, label, said in views
        ),
        caption=(
            "As wide as the share of the samples. What is written in C is part of the line that "
            "calls it."
        ),
    )


def _boxes(phases: Mapping[str, HostPhaseSummary], is_own: bool) -> Iterator[FlameBox]:
    """Yields the boxes of every phase, each after the one above it, wider ones first."""
    number = 0
    for name, phase in phases.items():
        colour = name if name in PALETTE else _COLOURS.get(name, "muted")
        root = _tree(PHASE_LABELS.get(name, name), phase, is_own)
        waiting = [(root, -1)]
        while waiting:
            box, parent = waiting.pop()
            words = _words(box.looks, phase) if parent >= 0 else _phase_words(phase)
            yield FlameBox(
                label=cell(box.label),
                place=cell(box.place),
                parent=parent,
                value=box.looks,
                colour=colour,
                is_pale=box.is_pale,
                words=words,
            )
            below = sorted(box.below.values(), key=lambda each: each.looks)
            waiting += [(each, number) for each in below]  # the last is taken first
            number += 1


def _tree(label: str, phase: HostPhaseSummary, is_own: bool) -> _Box:
    """Returns a phase's calls; of the user's own alone, those of one function become one."""
    root = _Box(label, "", False, phase.looks)
    boxes: list[_Box] = []
    for call in phase.calls:
        # A damaged or foreign file may name a call that comes later.
        above = boxes[call.parent] if 0 <= call.parent < len(boxes) else root
        if is_own and not call.is_users:
            boxes.append(above)
            continue
        place = _place_of(call)
        box = above.below.setdefault((call.function, place), _Box(call.function, place, True))
        box.looks += call.looks
        box.is_pale = not call.is_users
        boxes.append(box)
    return root


def _place_of(call: HostCallSummary | HostPlaceSummary) -> str:
    return f"{call.file}:{call.line}" if call.file else ""


def _words(looks: int, phase: HostPhaseSummary) -> str:
    share = looks / max(phase.looks, 1)
    worth = phase.independent_looks or max(phase.looks, 1)
    low, high = share_interval(min(share, 1.0) * worth, worth)
    time = None
    if phase.per_step_ms is not None:
        time = f"{milliseconds(share * phase.per_step_ms)} per step"
    interval = f"{percent(share)} of the phase ({100 * low:.0f}–{100 * high:.0f}%)"
    return joined((interval, time, count(looks, "sample")))


def _phase_words(phase: HostPhaseSummary) -> str:
    share = (
        None if phase.share is None else f"{percent(phase.share)} of the training thread's samples"
    )
    per_step = phase.per_step_ms
    time = None if per_step is None else f"{milliseconds(per_step)} per step"
    return joined((share, time, count(phase.looks, "sample")))


# The table


def _places(found: HostTimeSummary) -> Table:
    """Returns the functions that take the most, for where there is no room for a graph."""
    ordered = sorted(
        ((name, phase, place) for name, phase in found.phases.items() for place in phase.places),
        key=lambda each: -each[2].looks,
    )
    rows = tuple(_row(name, phase, place) for name, phase, place in ordered[:MAX_ROWS])
    hidden = len(ordered) - len(rows)
    return Table(
        id="host-places-table",
        title="Your functions, by phase",
        columns=("Function and line", "Phase", "Of the phase", "95% interval", "Per step", "From"),
        rows=rows,
        note=f"{count(hidden)} more, in the JSON file." if hidden > 0 else None,
    )


def _row(name: str, phase: HostPhaseSummary, place: HostPlaceSummary) -> Row:
    inside = "" if place.inside is None else f" in {place.inside.partition(' (')[0]}"
    time = phase.per_step_ms
    cells: Sequence[str] = (
        shorten_middle(f"{place.function} ({_place_of(place)}){inside}", MAX_PLACE_CHARS),
        PHASE_LABELS.get(name, name),
        percent(place.share),
        f"{100 * place.share_low:.0f}–{100 * place.share_high:.0f}%",
        "–" if time is None else milliseconds(place.share * time),
        place.called_by or "–",
    )
    return Row(tuple(map(cell, cells)))
