"""An axis has one unit, and its numbers are as short as they can be."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.figures.units import (
    MAX_STEPS,
    PLAIN,
    Unit,
    fitted,
    memory_unit,
    moment_unit,
    next_round,
    rate_unit,
    rounded,
    scaled,
    time_unit,
)


@pytest.mark.parametrize(
    ("largest_s", "symbol"),
    [(0.0, "ms"), (84e-6, "µs"), (0.0438, "ms"), (0.9996, "s"), (1.24, "s"), (300.0, "s")],
)
def test_durations_have_the_unit_that_suits_the_longest(largest_s: float, symbol: str) -> None:
    assert time_unit(np.array([largest_s, largest_s / 7, np.nan])).symbol == symbol


@pytest.mark.parametrize(("last_s", "symbol"), [(40.0, "s"), (600.0, "min"), (40_000.0, "h")])
def test_time_gone_by_has_the_unit_that_suits_its_end(last_s: float, symbol: str) -> None:
    assert moment_unit(np.array([0.0, last_s])).symbol == symbol


def test_memory_and_traffic_are_in_binary_units() -> None:
    assert memory_unit(np.array([3.0 * 2**30])).symbol == "GiB"
    assert memory_unit(500 * 2.0**20, None).symbol == "MiB"
    assert rate_unit(5 * 2.0**20) == Unit("MiB/s", 2.0**20)


def test_four_digits_are_kept_and_what_is_no_number_is_a_gap() -> None:
    values = np.array([0.0123456, -98765.4, 0.0, np.nan, np.inf, 1.0])
    assert rounded(values) == (0.01235, -98770.0, 0.0, None, None, 1.0)
    assert scaled([0.0438123], Unit("ms", 1e-3)) == (43.81,)


SENSIBLE = st.floats(1e-9, 1e12) | st.floats(-1e12, -1e-9) | st.just(0.0)


@given(st.lists(SENSIBLE, min_size=1, max_size=20))
def test_rounding_is_close_and_short(values: list[float]) -> None:
    for value, near in zip(values, rounded(np.array(values)), strict=True):
        assert near is not None
        assert math.isclose(value, near, rel_tol=6e-4)
        digits = json.dumps(near).partition("e")[0].replace("-", "").replace(".", "").strip("0")
        assert len(digits) <= 4


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_whatever_a_script_logs_is_a_number_of_json_or_a_gap(values: list[float]) -> None:
    for value, near in zip(values, rounded(np.array(values)), strict=True):
        assert (near is None) == (not math.isfinite(value))
        assert near is None or math.isfinite(near)


@pytest.mark.parametrize(
    ("value", "end"), [(8.533, 10.0), (0.0111, 0.012), (50.0, 50.0), (0.3, 0.3), (1.0001, 1.2)]
)
def test_an_axis_that_is_cut_ends_at_a_round_number(value: float, end: float) -> None:
    assert next_round(value) == pytest.approx(end)


def test_an_axis_begins_at_zero_where_the_values_come_near_it() -> None:
    assert fitted("loss", PLAIN, np.array([0.1, 2.0])).low == 0.0


def test_an_axis_shows_a_small_trend_on_a_high_level() -> None:
    axis = fitted("memory", PLAIN, np.array([[400.0, 440.0, np.nan]]))
    assert (axis.low, axis.high) == (400.0, 440.0)


@given(st.floats(1e-6, 1e6), st.floats(0.05, 0.5))
def test_an_axis_has_round_labels(least: float, share: float) -> None:
    axis = fitted("loss", PLAIN, np.array([least, least * (1 + share)]))
    assert axis.low is not None and axis.high is not None
    steps = [(axis.high - axis.low) / count for count in range(2, MAX_STEPS + 1)]
    assert any(f"{step:.2e}"[:4] in ("1.00", "2.00", "2.50", "5.00") for step in steps)


def test_noise_is_not_drawn_as_large_as_a_trend() -> None:
    axis = fitted("memory", PLAIN, np.array([400.0, 400.1]))
    assert axis.low is not None and axis.high is not None
    assert axis.high - axis.low >= 20.0


@given(st.lists(SENSIBLE, min_size=1, max_size=20))
def test_an_axis_holds_all_values(values: list[float]) -> None:
    axis = fitted("any", PLAIN, np.array([*values, np.nan]))
    room = 2e-3 * max(map(abs, values))
    assert axis.low is None or axis.low <= min(values) + room
    assert axis.high is None or axis.high >= max(values) - room


@given(st.lists(st.floats(), max_size=20))
def test_an_axis_of_anything_is_an_axis(values: list[float]) -> None:
    axis = fitted("any", PLAIN, np.array(values))
    assert all(end is None or math.isfinite(end) for end in (axis.low, axis.high))
