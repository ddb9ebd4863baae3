"""A benchmark that stops when its answer is clear is wrong no more often than one that does not."""

from __future__ import annotations

import random

import pytest

from compared_runs import runs
from traceml.compare.pair import compare_groups
from traceml.compare.sequential_looks import is_clear, planned_looks, turns
from traceml.compare.statistics import between_groups
from traceml.compare.terms import Terms

BENCHMARKS, MAX_RUNS, SPREAD = 400, 12, 0.02


@pytest.mark.parametrize(
    ("max_runs", "looks"),
    [(2, (2,)), (3, (3,)), (4, (3, 4)), (8, (3, 5, 8)), (12, (3, 5, 8, 12))],
)
def test_looks_are_few_and_the_last_one_sees_all_runs(max_runs: int, looks: tuple[int, ...]):
    assert planned_looks(max_runs) == looks


def test_both_sides_go_first_equally_often():
    assert "".join(side for side, _ in turns(4)) == "abbaabba"
    assert [number for side, number in turns(4) if side == "b"] == [1, 2, 3, 4]


def found_changes(confidence: float, ratio: float) -> float:
    """The share of benchmarks in which some look finds a change."""
    rng = random.Random(15)
    found = 0
    for _ in range(BENCHMARKS):
        a = [rng.lognormvariate(0, SPREAD) for _ in range(MAX_RUNS)]
        b = [ratio * rng.lognormvariate(0, SPREAD) for _ in range(MAX_RUNS)]
        estimates = (between_groups(a[:n], b[:n], confidence) for n in planned_looks(MAX_RUNS))
        found += any(each is not None and each.excludes_none for each in estimates)
    return found / BENCHMARKS


def test_looking_several_times_raises_no_more_false_alarms_than_looking_once():
    looks = planned_looks(MAX_RUNS)
    assert found_changes(Terms(looks=len(looks)).confidence, ratio=1.0) < 0.05
    assert found_changes(Terms().confidence, ratio=1.0) > 0.07, "without the correction it would"


def test_a_real_change_is_found_all_the_same():
    assert found_changes(Terms(looks=len(planned_looks(MAX_RUNS))).confidence, ratio=1.05) > 0.98


A, B = [100.0, 100.6, 99.4], [101.7, 102.3, 101.1]
"""Their 95 % intervals exclude "no change"; those of one look among several do not."""


def test_what_one_look_would_show_is_not_clear_yet_for_one_of_several():
    once, thrice = (
        compare_groups(runs(A), runs(B), ("a", "b"), Terms(looks=looks)) for looks in (1, 3)
    )
    assert (once.verdict.status, is_clear(once)) == ("REGRESSION", True)
    assert (thrice.verdict.status, is_clear(thrice)) == ("INCONCLUSIVE", False)
    assert once.verdict.ratio == thrice.verdict.ratio


def test_the_interval_says_how_sure_it_is():
    verdict = compare_groups(runs(A), runs(B), ("a", "b"), Terms(looks=3)).verdict
    assert verdict.confidence == pytest.approx(1 - 0.05 / 3)
    assert "98.3% interval" in verdict.why


def test_the_table_keeps_the_interval_of_all_its_metrics():
    found = compare_groups(runs(A), runs(B), ("a", "b"), Terms(looks=3))
    once = compare_groups(runs(A), runs(B), ("a", "b"))
    assert found.sections == once.sections
