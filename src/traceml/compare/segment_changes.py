"""Logged metrics per segment or class: in how many segments a metric got better or worse, and which
one lost the most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceml.compare.logged_metrics import is_evaluated, is_moved
from traceml.compare.record import LoggedDelta, SegmentChanges
from traceml.model.metric_direction import is_cost
from traceml.model.metric_segments import segment_name, split_segment

MAX_LISTED = 1000
"""Segments of one metric in a comparison; of more those are kept that changed the most."""


def segment_changes(logged: Mapping[str, LoggedDelta], several: bool) -> dict[str, SegmentChanges]:
    """Returns how the segments of each metric changed, by the metric's name.

    A segment counts as better or worse where several runs show it, with one run per side where it
    changed by a percent or more.
    """
    return {
        metric: _counted(found, several) for metric, found in by_segment(logged).items() if found
    }


def by_segment(logged: Mapping[str, LoggedDelta]) -> dict[str, dict[str, LoggedDelta]]:
    """Returns the changes by metric and segment, as far as both sides have a value."""
    found: dict[str, dict[str, LoggedDelta]] = {}
    for name, delta in logged.items():
        place = split_segment(name)
        if place is not None and delta.delta is not None:
            found.setdefault(place.metric, {})[place.segment] = delta
    return found


def _counted(found: Mapping[str, LoggedDelta], several: bool) -> SegmentChanges:
    moved = {
        segment: delta
        for segment, delta in found.items()
        if delta.higher_is_better is not None
        and (delta.significant if several else is_moved(delta))
    }
    worse = {segment: -gain(delta) for segment, delta in moved.items() if not delta.is_better}
    better = {segment: gain(delta) for segment, delta in moved.items() if delta.is_better}
    return SegmentChanges(
        compared=len(found),
        better=len(better),
        worse=len(worse),
        worst=max(worse, key=worse.__getitem__, default=None),
        best=max(better, key=better.__getitem__, default=None),
        listed=min(len(found), MAX_LISTED),
    )


def gain(delta: LoggedDelta) -> float:
    """Returns how much B is better, in the metric's own unit; less than zero where it is worse.

    Without a direction, how much more it is.
    """
    change = delta.delta or 0.0
    return -change if delta.higher_is_better is False else change


def most_changed(logged: Mapping[str, LoggedDelta], judged: str | None) -> dict[str, LoggedDelta]:
    """Returns the changes with at most `MAX_LISTED` segments of each metric, those that changed the
    most, and the one that is judged by."""
    dropped: set[str] = set()
    for metric, found in by_segment(logged).items():
        if len(found) > MAX_LISTED:
            by_size = sorted(found, key=lambda segment: -abs(found[segment].delta or 0.0))
            dropped.update(segment_name(metric, segment) for segment in by_size[MAX_LISTED:])
    dropped.discard(judged or "")
    return {name: delta for name, delta in logged.items() if name not in dropped}


def worst_first(logged: Mapping[str, LoggedDelta], metric: str) -> list[str]:
    """Returns the names of a metric's segments, those that lost the most first."""
    found = by_segment(logged).get(metric, {})
    ordered = sorted(found, key=lambda segment: gain(found[segment]))
    return [segment_name(metric, segment) for segment in ordered]


def harmed(segments: Mapping[str, SegmentChanges]) -> Iterator[str]:
    """Yields the metrics of which a segment got worse; where anything was evaluated on other data
    than that of training, only those."""
    named = [name for name, found in segments.items() if found.worse and not is_cost(name)]
    evaluated = [name for name in named if is_evaluated(name)]
    yield from evaluated or named
