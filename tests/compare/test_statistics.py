"""The tests agree with scipy's, and say nothing where there is nothing to test."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from traceml.compare.statistics import (
    between_groups,
    between_pairs,
    holm,
    rank_test,
)

A, B = [100.0, 101.0, 99.5, 100.7], [104.0, 106.0, 103.1]


def test_groups_are_compared_by_welch_on_logarithms() -> None:
    change = between_groups(A, B)
    exact = stats.ttest_ind([math.log(x) for x in B], [math.log(x) for x in A], equal_var=False)
    interval = exact.confidence_interval(0.95)
    assert change is not None and change.p == pytest.approx(exact.pvalue)
    assert math.log(change.low) == pytest.approx(interval.low, rel=5e-3)
    assert math.log(change.high) == pytest.approx(interval.high, rel=5e-3)
    assert change.excludes_none


def test_pairs_are_compared_by_the_paired_test_on_logarithms() -> None:
    a, b = [100.0, 120.0, 90.0], [103.0, 123.0, 93.0]
    change = between_pairs(a, b)
    exact = stats.ttest_rel([math.log(x) for x in b], [math.log(x) for x in a])
    assert change is not None and change.p == pytest.approx(exact.pvalue)
    whole = between_groups(a, b)
    assert whole is not None and whole.high - whole.low > change.high - change.low
    assert (change.freedom, whole.freedom) == (2, 4)


def test_one_run_is_judged_by_the_spread_of_the_others() -> None:
    change = between_groups([100.0], [110.0, 111.0, 109.0])
    assert change is not None and change.low < 110 / 100 < change.high
    assert change.method.startswith("one run against")


def test_swapping_the_sides_mirrors_the_interval() -> None:
    there, back = between_groups(A, B), between_groups(B, A)
    assert there is not None and back is not None
    assert there.low == pytest.approx(1 / back.high)
    assert there.p == pytest.approx(back.p)


@pytest.mark.parametrize("runs", [3, 4])
def test_too_few_runs_get_no_rank_test(runs: int) -> None:
    assert rank_test(list(range(1, runs + 1)), list(range(11, 11 + runs)), False) is None


def test_enough_runs_get_the_rank_test_that_suits_them() -> None:
    a, b = [float(x) for x in range(1, 7)], [float(x) + 10.5 for x in range(1, 7)]
    plain, paired = rank_test(a, b, False), rank_test(a, b, True)
    assert plain is not None and plain[0] == "Mann-Whitney" and plain[1] < 0.01
    assert paired is not None and paired[0] == "Wilcoxon signed-rank" and paired[1] < 0.05
    assert rank_test(a, a, True) is None


def test_the_rank_tests_of_runs_are_scipys() -> None:
    a, b = [1.2, 1.9, 0.7, 2.2, 1.1, 1.7, 0.9], [1.8, 2.9, 1.3, 2.0, 2.4, 3.1, 1.0]
    plain, paired = rank_test(a, b, False), rank_test(a, b, True)
    assert plain is not None and paired is not None
    assert plain[1] == pytest.approx(float(stats.mannwhitneyu(a, b).pvalue))
    assert paired[1] == pytest.approx(float(stats.wilcoxon(a, b).pvalue))


def test_holm_is_that_of_r() -> None:
    """p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") prints 0.05 0.08 0.09 0.09 0.09."""
    raw = {str(place): place / 100 for place in range(1, 6)}
    assert list(holm(raw).values()) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])


def test_holm_is_holms_own_example() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8))
def test_holm_only_ever_raises_p_and_keeps_the_order(p_values: dict[str, float]) -> None:
    found = holm(p_values)
    assert all(p <= found[name] <= 1 for name, p in p_values.items())
    ordered = sorted(p_values, key=lambda name: p_values[name])
    assert [found[name] for name in ordered] == sorted(found.values())


def test_room_for_the_next_run_is_the_same_share_both_ways() -> None:
    change = between_groups(A, B)
    assert change is not None
    wide = change.widened(0.03)
    assert math.log(wide.high / change.high) == pytest.approx(math.log1p(0.03))
    assert math.log(change.low / wide.low) == pytest.approx(math.log1p(0.03))


def test_ratios_without_a_number_are_no_change() -> None:
    assert between_groups([5e-324, 6e-324], [1e308, 1e308]) is None
