"""Metrics per segment or class: the accuracy of the class cat is the metric `accuracy[cat]`.

A segment's values are a metric with a name of this form, so that whatever keeps, lists, queries or
draws metrics has them too; only who wants to tell segments from whole metrics asks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

MAX_SEGMENT = 100
"""Characters of a segment's name."""

_NO_BRACKETS = str.maketrans("[]", "()")


class SegmentOf(NamedTuple):
    """A metric, and one of its segments."""

    metric: str
    segment: str


def segment_name(metric: str, segment: object) -> str:
    """Returns the name of a metric's values of one segment: `accuracy[cat]`.

    Square brackets in the segment's name become round ones, and a long name is cut, so that the
    name can be taken apart again.
    """
    return f"{metric}[{cut_name(str(segment).translate(_NO_BRACKETS), MAX_SEGMENT)}]"


def cut_name(name: str, max_chars: int) -> str:
    """Returns a name of at most so many characters; a long one ends in its checksum, so that two
    that begin alike stay two."""
    if len(name) <= max_chars:
        return name
    return f"{name[: max_chars - 9]}…{crc32(name.encode(errors='replace')):08x}"


def split_segment(name: str) -> SegmentOf | None:
    """Returns what the name of a segment's values is made of; `None` for any other name."""
    if not name.endswith("]"):
        return None
    metric, _, segment = name[:-1].rpartition("[")
    return SegmentOf(metric, segment) if metric and segment and "]" not in segment else None


def metric_of(name: str) -> str:
    """Returns the metric that a name belongs to: of a segment's values the whole one, else the name
    itself."""
    found = split_segment(name)
    return name if found is None else found.metric


def segments_by_metric(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names that are of segments, by their metric; in the order given."""
    found: dict[str, list[str]] = {}
    for name in names:
        if split_segment(name) is not None:
            found.setdefault(metric_of(name), []).append(name)
    return found
