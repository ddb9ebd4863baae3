"""Where the host's time goes, as text: a few lines per phase."""

from __future__ import annotations

from traceml.compare.record import HostTimeChange, HostTimeComparison
from traceml.model.phase import BETWEEN, PHASES
from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import count, milliseconds, percent
from traceml.model.sample import (
    CHECKPOINT,
    COMPILING,
    EVALUATION,
    LOADER_WORKERS,
    OTHER_THREADS,
)
from traceml.summaries.host_time_record import (
    HostPhaseSummary,
    HostPlaceSummary,
    HostTimeSummary,
)

MIN_PHASE_SHARE = 0.05
"""Of the training threads' samples: phases with less are not in the text."""
MIN_PLACE_SHARE = 0.1
"""Of a phase: places with less are not in the text."""
MAX_PLACES = 2
MAX_PHASES = 6
MAX_MOVED = 5
"""Functions of a comparison."""
NAME = 16

PHASE_LABELS = {
    **{phase.value: entry.label for phase, entry in PHASES.items()},
    BETWEEN: "Between steps",
    EVALUATION: "Evaluation",
    CHECKPOINT: "Checkpoint",
    COMPILING: "Compiling",
    LOADER_WORKERS: "Loader workers",
    OTHER_THREADS: "Other threads",
}
"""What phases of samples are called."""


def host_time_lines(found: HostTimeSummary | None) -> list[str]:
    """Returns the functions in which the host spends each phase; empty without samples."""
    if found is None:
        return []
    phases = [
        (name, phase)
        for name, phase in found.phases.items()
        if phase.share is None or phase.share >= MIN_PHASE_SHARE
    ]
    phases.sort(key=lambda each: -(each[1].share or 0.0))
    lines = [line for name, phase in phases[:MAX_PHASES] for line in _phase_lines(name, phase)]
    return [f"  {host_time_title(found)}", *lines] if lines else []


def host_time_title(found: HostTimeSummary) -> str:
    """Returns how much was looked at: the number of samples, and how often."""
    rate = "" if found.rate_hz is None else f", {found.rate_hz:.0f} per second"
    return f"Where the host's time goes ({count(found.looks, 'stack sample')}{rate})"


def _phase_lines(name: str, phase: HostPhaseSummary) -> list[str]:
    label = one_line(PHASE_LABELS.get(name, name), NAME - 1)
    share = "" if phase.share is None else percent(phase.share)
    shown = [place for place in phase.places[:MAX_PLACES] if place.share >= MIN_PLACE_SHARE]
    begin = f"  {label:<{NAME}}{share:>5}  "
    room = 80 - len(begin)
    words = [place_words(place, phase, room) for place in shown]
    return [
        f"{begin if not number else ' ' * len(begin)}{said}" for number, said in enumerate(words)
    ]


def place_words(place: HostPlaceSummary, phase: HostPhaseSummary, room: int) -> str:
    """Returns a place with its share of the phase: `83% (76–89%) 2.1 ms collate (train.py:31)`, the
    time per step only where the phase has one.

    The file and the line matter most. Where there is too little room, these are left out in turn:
    the caller or enclosing function, the folders, the interval, and at last the middle of the
    function's name.
    """
    interval = f" ({100 * place.share_low:.0f}–{100 * place.share_high:.0f}%)"
    time = "" if phase.per_step_ms is None else f" {milliseconds(place.share * phase.per_step_ms)}"
    via = f" from {place.called_by}" if place.called_by and place.inside is None else ""
    inside = f" in {place.inside.partition(' (')[0]}" if place.inside else ""
    folders, _, name = place.file.rpartition("/")
    far = f"({place.file}:{place.line})"
    near = f"(…/{name}:{place.line})" if folders else far
    begin = percent(place.share)
    for said in (
        f"{begin}{interval}{time} {place.function} {far}{via}{inside}",
        f"{begin}{interval}{time} {place.function} {far}",
        f"{begin}{interval}{time} {place.function} {near}",
    ):
        if len(said) <= room:
            return one_line(said, room)
    left = room - len(f"{begin}{time}  {near}")
    function = shorten_middle(place.function, max(1, left))
    return one_line(f"{begin}{time} {function} {near}", room)


def host_time_sentences(found: HostTimeComparison | None) -> tuple[str, list[str]]:
    """Returns the functions that moved between two runs, under a headline; none where none did."""
    moved = () if found is None else found.moved[:MAX_MOVED]
    said = [f"{PHASE_LABELS.get(each.phase, each.phase)}: {moved_words(each)}" for each in moved]
    hidden = 0 if found is None else found.moved_in_all - len(moved)
    more = [f"… and {count(hidden)} more, in the JSON file"] if hidden > 0 else []
    return "Where the host's time goes, by stack samples:", [*said, *more]


def moved_words(each: HostTimeChange) -> str:
    """Returns one change: `collate (train.py) 20% -> 62% of the phase (+30 to +53 points)`."""
    shares = f"{percent(each.change.lhs or 0.0)} -> {percent(each.change.rhs or 0.0)}"
    return f"{each.function} ({each.file}) {shares} of the phase ({moved_points(each)})"


def moved_points(each: HostTimeChange) -> str:
    """Returns the 95 % interval of a change in percentage points; the change without one."""
    change = each.change
    if change.interval is None:
        return f"{100 * (change.delta or 0.0):+.0f} points"
    return f"{100 * change.interval[0]:+.0f} to {100 * change.interval[1]:+.0f} points"
