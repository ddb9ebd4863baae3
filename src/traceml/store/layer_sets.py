"""A model may have different layers over time, a set after another. This says which set the table
of layers is of, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceml.model.layer_names import MODEL, outer_name

MAX_NAMED = 4
"""Layers that are left out are named up to here, the outermost of them; then counted."""


@dataclass(frozen=True, slots=True)
class LayerSet:
    """The layers that the model had in some of the steps looked at."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    timed: tuple[int, ...]
    """The steps whose layers were timed; of several in one row the first."""
    steps: int
    """How many steps that is."""
    lines: int
    """How many lines are about these layers, timed or not."""

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key by which the table's set of layers is chosen: the set that most timed steps
        had."""
        return self.steps, self.lines


def note_on_others(chosen: LayerSet, others: Sequence[LayerSet]) -> str | None:
    """Returns which layers are not in the table of the chosen ones, and when the model had them;
    `None` where no step with others was timed."""
    timed = [each for each in others if each.steps]
    if not timed:
        return None
    count = sum(each.steps for each in timed)
    first, last = min(chosen.timed), max(chosen.timed)
    return (
        "The model's layers changed during the run. The times are of the layers that it had in "
        f"{chosen.steps:,} of the {count + chosen.steps:,} steps looked at, from step {first:,} to "
        f"step {last:,}.{_left_out(chosen, timed)}"
    )


def note_on_end(chosen: LayerSet, at_end: LayerSet) -> str | None:
    """Returns the note that the layers which the model had at the end were in no timed step; `None`
    where they were, or where no step was timed at all."""
    if not chosen.steps or at_end.steps or set(at_end.names) <= set(chosen.names):
        return None
    new = [name for name in at_end.names if name not in chosen.names]
    outer = [name or MODEL for name in new if outer_name(name, new) is None]
    return (
        f"The times are of layers that the model had from step {min(chosen.timed):,} to step "
        f"{max(chosen.timed):,}: later it had others ({_some(outer)}), in no timed step."
    )


def _left_out(chosen: LayerSet, others: Sequence[LayerSet]) -> str:
    steps: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for each in others:
        for name, kind in zip(each.names, each.kinds, strict=True):
            if name not in chosen.names:
                steps.setdefault(name, []).extend(each.timed)
                kinds[name] = kind
    begin, end = _first_and_last(step for each in (chosen, *others) for step in each.timed)
    said = [
        f"{name or MODEL} ({kinds[name]}{_span(_first_and_last(steps[name]), begin, end)})"
        for name in steps
        if outer_name(name, steps) is None
    ]
    if not said:
        return " It had no further layers in other steps."
    return f" Left out: {_some(said)}."


def _some(said: Sequence[str]) -> str:
    more = len(said) - MAX_NAMED
    return f"{', '.join(said[:MAX_NAMED])}{f' and {more:,} more' if more > 0 else ''}"


def _first_and_last(steps: Iterable[int]) -> tuple[int, int]:
    known = list(steps)
    return min(known), max(known)


def _span(steps: tuple[int, int], begin: int, end: int) -> str:
    """Returns since and until when a layer was seen; empty where that is the whole time from
    `begin` to `end`."""
    since = f", seen since step {steps[0]:,}" if steps[0] > begin else ""
    until = f", seen until step {steps[1]:,}" if steps[1] < end else ""
    return since + until
