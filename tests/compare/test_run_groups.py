"""Groups of runs: who belongs together, and what is said of each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from traceml.compare.run_groups import aggregate, group_runs, is_more_better
from traceml.model.run_values import RunValue


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_the_interval_is_students(values: list[float]):
    found = aggregate(values, more_is_better=False)
    error = stats.sem(values)
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert found.low is not None and found.high is not None
    if error > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=found.mean, scale=error)
        # Student's t is expanded from 3 degrees of freedom on, to half a percent.
        assert found.high - found.low == pytest.approx(high - low, rel=0.006)
    assert found.best == min(values)


def test_one_run_has_no_interval_and_none_has_no_mean():
    one = aggregate([3.0], more_is_better=True)
    assert (one.mean, one.low, one.high, one.best) == (3.0, None, None, 3.0)
    none = aggregate([None, "text", True], more_is_better=True)
    assert (none.count, none.mean, none.best) == (0, None, None)


def test_numbers_near_the_largest_give_no_infinity():
    found = aggregate([1.7e308, 1.7e308, -1.7e308], more_is_better=None)
    assert found.mean is not None and math.isfinite(found.mean)
    assert (found.low, found.high, found.best) == (None, None, None)


def test_nan_and_infinity_are_counted_apart():
    found = aggregate([1.0, math.nan, math.inf, 3], more_is_better=True)
    assert (found.count, found.mean, found.maximum, found.not_finite) == (2, 2.0, 3.0, 2)


def test_groups_are_in_the_order_of_their_values_or_of_a_mean():
    by: dict[str, list[RunValue | None]] = {"params.x": [3, "text", 3, None, math.nan, -1]}
    loss: dict[str, list[RunValue | None]] = {"metrics.loss": [1.0, 5.0, 2.0, None, 0.5, 9.0]}
    numbers = [0, 1, 0, 2, 3, 4]
    groups = group_runs(numbers, by, loss)
    assert [group.rows for group in groups] == [(5,), (0, 2), (1,), (4,), (3,)]
    largest = group_runs(numbers, by, loss, [("metrics.loss", True)], limit=3)
    assert [group.rows for group in largest] == [(5,), (1,), (0, 2)]
    smallest = group_runs(numbers, by, loss, [("metrics.loss", False)])
    assert [group.rows for group in smallest] == [(4,), (0, 2), (1,), (5,), (3,)]


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("facts.step_time_ms", False),
        ("facts.samples_per_s", True),
        ("facts.throughput", True),
        ("facts.world_size", None),
        ("metrics.val/loss", False),
        ("min.accuracy", True),
        ("metrics.epoch", None),
        ("params.loss", None),
    ],
)
def test_which_direction_is_better(key: str, more: bool | None):
    assert is_more_better(key) is more
