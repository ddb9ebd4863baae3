"""A straggler that came, one that went, and the skew between ranks."""

from __future__ import annotations

from typing import Any

import pytest

from compared_runs import run
from traceml.compare.pair import compare_groups
from traceml.compare.record import RankChanges, StragglerRanks
from traceml.summaries.record import Summary

INPUT = {"kind": "INPUT_STRAGGLER", "status": "INPUT STRAGGLER", "ranks": [2]}
BACKWARD = {"kind": "COMPUTE_STRAGGLER", "status": "COMPUTE STRAGGLER", "ranks": [5, 1]}
BOUND = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND"}


def with_issues(*issues: dict[str, Any], worst_ms: float = 10.0) -> Summary:
    whole = {
        "worst": {"step_time_ms": {"value": worst_ms, "idx": "2"}},
        "median": {"step_time_ms": {"value": 10.0, "idx": "0"}},
    }
    section = {"issues": list(issues), "global": whole}
    return run({"step_time_ms": 10.0}, step_time=section, meta={"world_size": 8})


def changes(a: list[Summary], b: list[Summary]) -> RankChanges:
    return compare_groups(a, b, ("a", "b")).ranks


def test_a_straggler_that_came_and_one_that_went() -> None:
    found = changes([with_issues(INPUT, BOUND)], [with_issues(BACKWARD)])
    assert found.new == (StragglerRanks("COMPUTE_STRAGGLER", "COMPUTE STRAGGLER", (1, 5)),)
    assert found.gone == (StragglerRanks("INPUT_STRAGGLER", "INPUT STRAGGLER", (2,)),)


def test_the_same_straggler_is_no_change() -> None:
    found = changes([with_issues(INPUT)], [with_issues(INPUT)])
    assert (found.new, found.gone) == ((), ())


def test_a_straggler_in_other_words_is_the_same() -> None:
    reworded = {**INPUT, "status": "input straggler"}
    found = changes([with_issues(INPUT)], [with_issues(reworded)])
    assert (found.new, found.gone) == ((), ())
    worded_both_ways = [with_issues(INPUT), with_issues(reworded), with_issues()]
    assert [each.ranks for each in changes([with_issues()] * 3, worded_both_ways).new] == [(2,)]


def test_of_several_runs_most_have_to_report_it() -> None:
    sometimes = [with_issues(INPUT), with_issues(), with_issues()]
    mostly = [with_issues(INPUT), with_issues(INPUT), with_issues()]
    assert changes(sometimes, sometimes).new == ()
    assert [straggler.ranks for straggler in changes(sometimes, mostly).new] == [(2,)]


def test_the_skew_is_that_of_the_slowest_rank() -> None:
    found = changes([with_issues(worst_ms=11.0)], [with_issues(worst_ms=15.0)])
    assert found.skew_percent.lhs == pytest.approx(10)
    assert found.skew_percent.delta == pytest.approx(40)


def test_one_rank_has_no_skew() -> None:
    single = run({"step_time_ms": 1.0}, meta={"world_size": 1})
    assert changes([single], [single]).skew_percent.lhs is None
