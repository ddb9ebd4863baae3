"""Numbers with intervals: bars from zero, dots where zero is far, and numbers beyond all axes."""

from __future__ import annotations

import math

import pytest

from traceml.figures.estimates import estimates_of
from traceml.figures.exploration_record import EstimateRow, Estimates


def shown(*values: float | None) -> Estimates:
    rows = [EstimateRow(str(n), value, value, value, "") for n, value in enumerate(values)]
    return estimates_of("id", "title", "loss", rows)


@pytest.mark.parametrize(
    ("values", "is_bar"),
    [
        ((0.1, 1.0), True),
        ((2.31, 2.33), False),
        ((-0.2, 0.3), True),
        ((-5.0, -4.9), False),
        ((0.0,), True),
        ((None,), True),
    ],
)
def test_bars_stand_on_zero_where_zero_is_near(values, is_bar: bool) -> None:
    found = shown(*values)
    assert found.is_bar is is_bar
    low, high = found.axis.low, found.axis.high
    assert low is not None and high is not None and low < high
    known = [value for value in values if value is not None]
    assert all(low <= value <= high for value in known)
    assert not is_bar or low <= 0 <= high


def test_a_number_beyond_all_axes_is_said_and_not_drawn() -> None:
    found = shown(1e308, 1.0)
    assert [row.value for row in found.rows] == [None, 1.0]
    assert found.axis.high is not None and math.isfinite(found.axis.high)
