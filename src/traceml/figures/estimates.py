"""Numbers with intervals as rows of a figure: bars from zero, or dots where zero is far away."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from traceml.facts.metric_history import MAX_DRAWN
from traceml.figures.exploration_record import EstimateRow, Estimates
from traceml.figures.page import Axis
from traceml.figures.units import NEAR_ZERO

MARGIN = 0.05
"""Room at both ends of an axis that does not begin at zero, as a share of what is shown."""


def estimates_of(
    id_: str,
    title: str,
    label: str,
    rows: Sequence[EstimateRow],
    caption: str | None = None,
) -> Estimates:
    """Returns the rows with an axis that holds all of them.

    Where the smallest is close to the largest, a bar from zero would hide what differs: dots are
    drawn then. A number that an axis cannot hold is said and not drawn.
    """
    drawn = [_drawable(row) for row in rows]
    ends = [each for row in drawn for each in (row.value, row.low, row.high) if each is not None]
    least, most = min(ends, default=0.0), max(ends, default=1.0)
    is_bar = _is_near_zero(least, most)
    if is_bar:
        least, most = min(least, 0.0), max(most, 0.0)
    room = 0.0 if is_bar else MARGIN * (most - least) or MARGIN * abs(most) or 1.0
    low, high = least - room, most + room
    if low == high:
        high = low + 1.0
    return Estimates(
        id=id_,
        title=title,
        axis=Axis(label, low=low, high=high),
        rows=tuple(drawn),
        is_bar=is_bar,
        caption=caption,
    )


def _is_near_zero(least: float, most: float) -> bool:
    """Returns whether bars from zero show the differences."""
    if least <= 0 <= most:
        return True
    sizes = sorted((abs(least), abs(most)))
    return sizes[0] < NEAR_ZERO * sizes[1]


def _drawable(row: EstimateRow) -> EstimateRow:
    if row.value is not None and abs(row.value) > MAX_DRAWN:
        return structs.replace(row, value=None, low=None, high=None)
    if any(each is not None and abs(each) > MAX_DRAWN for each in (row.low, row.high)):
        return structs.replace(row, low=None, high=None)
    return row
