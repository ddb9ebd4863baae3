"""Metrics per segment on both sides: how many changed, the worst one, and their correction."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from scipy import stats

from compared_runs import run
from traceml.compare.logged_metrics import LOGGED
from traceml.compare.many_runs import MAX_SEGMENTS, Candidate, compare_many
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import Comparison, SegmentChanges, to_json
from traceml.compare.segment_changes import MAX_LISTED
from traceml.compare.statistics import holm
from traceml.compare.terms import Terms
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text
from traceml.text.many_runs import many_text


def logging(values: dict[str, float | None], step_ms: float = 100.0, **params: Any) -> Summary:
    logged = {name: {"count": 5, "last": last, "last_step": 9} for name, last in values.items()}
    return run({"step_time_ms": step_ms}, metrics=logged, params=params, duration_s=10.0)


def animals(overall: float | None, **classes: float | None) -> dict[str, float | None]:
    whole = {} if overall is None else {"accuracy": overall}
    return {**whole, **{f"accuracy[{name}]": value for name, value in classes.items()}}


def compared(a: dict[str, float | None], b: dict[str, float | None], **terms: Any) -> Comparison:
    return compare(logging(a), logging(b), ("a", "b"), Terms(**terms))


BEFORE = animals(0.90, cat=0.90, dog=0.80, bird=0.70)


def test_better_overall_but_worse_for_one_class_is_said() -> None:
    found = compared(BEFORE, animals(0.92, cat=0.95, dog=0.70, bird=0.90))
    said = "accuracy is 2.2% better (0.9 -> 0.92) overall, but worse for dog (0.8 -> 0.7)"
    assert said in found.verdict.why
    assert found.segments["accuracy"] == SegmentChanges(
        compared=3, better=2, worse=1, worst="dog", best="bird", listed=3
    )
    text = comparison_text(found)
    assert "accuracy by segment: 2 better (most of all bird), 1 worse (dog), of 3 segments." in text
    assert "accuracy[dog]" in text and "accuracy[cat]" not in text  # what got worse has a line


def test_worse_overall_names_the_class_that_lost_the_most() -> None:
    found = compared(BEFORE, animals(0.82, cat=0.60, dog=0.70, bird=0.90))
    said = "8.9% worse (0.9 -> 0.82), most of all for cat (0.9 -> 0.6) and 1 more of 3 segments"
    assert said in found.verdict.why


def test_without_a_value_for_all_the_segments_speak() -> None:
    a, b = animals(None, cat=0.5, dog=0.7), animals(None, cat=0.6, dog=0.4)
    found = compare(logging(a, 150.0), logging(b, 100.0), ("a", "b"))
    assert "but accuracy is worse for dog (0.7 -> 0.4)" in found.verdict.why
    assert found.verdict.next.endswith("accuracy is worse for dog.")
    gained = compared(a, animals(None, cat=0.6, dog=0.8)).verdict.why
    assert "accuracy is better for 2 of 2 segments" in gained


def test_a_segment_decides_the_gate_when_it_is_named() -> None:
    worse = animals(0.92, cat=0.95, dog=0.40, bird=0.90)
    terms: dict[str, Any] = {"max_regression": 0.05, "fail_on": ("regression",)}
    by_dog = compared(BEFORE, worse, metric="accuracy[dog]", **terms)
    by_all = compared(BEFORE, worse, metric="accuracy", **terms)
    assert by_dog.gate is not None and by_dog.gate.failed
    assert by_all.gate is not None and not by_all.gate.failed
    assert "overall, but worse for dog (0.8 -> 0.4)" in by_all.verdict.why


def test_what_the_user_says_of_a_metric_holds_for_its_segments() -> None:
    a, b = {"gap": 1.0, "gap[x]": 1.0}, {"gap": 0.5, "gap[x]": 2.0}
    found = compared(a, b, metric="gap", higher_is_better=False)
    assert "overall, but worse for x (1 -> 2)" in found.verdict.why
    assert compared(a, b).segments["gap"].worst is None  # nobody says which way it improves


def test_segments_are_corrected_among_themselves_and_hide_no_whole_metric() -> None:
    rng = random.Random(7)
    names = [f"accuracy[{n}]" for n in range(40)]

    def side(shift: float) -> list[Summary]:
        return [
            logging({"accuracy": 0.8 + shift + rng.gauss(0, 0.01), **dict.fromkeys(names, None)}
                    | {name: 0.5 + shift * (place < 3) * 3 + rng.gauss(0, 0.01)
                       for place, name in enumerate(names)})
            for _ in range(5)
        ]  # fmt: skip

    a, b = side(0.0), side(0.03)
    found = compare_groups(a, b, ("a", "b"))
    deltas = found.sections[LOGGED].metrics
    alone = {
        name: float(
            stats.ttest_ind(
                [each.metrics[name].last for each in b],
                [each.metrics[name].last for each in a],
                equal_var=False,
            ).pvalue
        )
        for name in names
    }
    for name, p in holm(alone).items():
        assert deltas[name].p == pytest.approx(p)
    whole = stats.ttest_ind(
        [each.metrics["accuracy"].last for each in b],
        [each.metrics["accuracy"].last for each in a],
        equal_var=False,
    )
    assert deltas["accuracy"].p == pytest.approx(float(whole.pvalue))
    assert found.segments["accuracy"].better == 3
    assert found.segments["accuracy"].worse == 0


@pytest.mark.slow
def test_false_alarms_over_all_segments_stay_at_their_rate() -> None:
    """Of 200 comparisons of 4 + 4 runs, 20 segments each and none of them changed, at most 5 %
    name one."""
    rng = random.Random(11)
    names = [f"accuracy[{n}]" for n in range(20)]
    wrong = 0
    for _ in range(200):
        a, b = (
            [logging({name: rng.gauss(0.8, 0.05) for name in names}) for _ in range(4)]
            for _ in range(2)
        )
        found = compare_groups(a, b, ("a", "b")).segments["accuracy"]
        wrong += bool(found.better or found.worse)
    assert wrong <= stats.binom.ppf(0.999, 200, 0.05)


def test_swapping_the_sides_mirrors_the_segments() -> None:
    after = animals(0.92, cat=0.95, dog=0.70, bird=0.90)
    there, back = compared(BEFORE, after), compared(after, BEFORE)
    one, other = there.segments["accuracy"], back.segments["accuracy"]
    assert (one.better, one.worse, one.best, one.worst) == (
        other.worse,
        other.better,
        other.worst,
        other.best,
    )


def test_a_value_that_is_missing_or_not_finite_is_not_compared() -> None:
    found = compared(BEFORE, animals(0.92, cat=None, dog=0.70, fish=0.3))
    assert found.segments["accuracy"].compared == 1


def test_of_ten_thousand_segments_those_that_changed_most_are_listed() -> None:
    values: dict[str, float | None] = {f"accuracy[{n}]": 0.5 for n in range(10_000)}
    changed = {**values, "accuracy[9999]": 0.1, "accuracy[5]": 0.9}
    found = compared(values, changed, metric="accuracy[7777]")
    listed = found.sections[LOGGED].metrics
    assert len(listed) == MAX_LISTED + 1
    assert {"accuracy[9999]", "accuracy[5]", "accuracy[7777]"} <= set(listed)
    assert (found.segments["accuracy"].compared, found.segments["accuracy"].worst) == (
        10_000,
        "9999",
    )
    assert len(comparison_text(found).splitlines()) < 40


def test_a_comparison_with_segments_reads_back_as_it_was_written() -> None:
    found = compared(BEFORE, animals(0.92, cat=0.95, dog=0.70, bird=0.90))
    assert msgspec.json.decode(to_json(found), type=Comparison).segments == found.segments


def test_among_many_runs_whole_metrics_come_first_and_thousands_of_segments_not_at_all() -> None:
    def candidates(classes: int) -> list[Candidate]:
        segments = {f"accuracy[{n}]": 0.5 for n in range(classes)}
        return [
            Candidate(f"r{n}", logging({**segments, "accuracy": 0.5 + n / 10}, lr=n))
            for n in range(3)
        ]

    few, lots = compare_many(candidates(3)), compare_many(candidates(MAX_SEGMENTS + 1))
    assert set(few.metrics) == {"accuracy", "accuracy[0]", "accuracy[1]", "accuracy[2]"}
    assert set(lots.metrics) == {"accuracy"}
    assert many_text(lots).startswith("Best accuracy: 0.7")
    assert {name for effect in few.effects for name in effect.changes} == {
        "accuracy",
        "step_time_ms",
    }


def test_runs_that_logged_segments_alone_are_compared_by_them() -> None:
    runs = [
        Candidate(f"r{n}", logging({f"acc[{c}]": 0.1 * n + c / 1000 for c in range(500)}, lr=n))
        for n in range(3)
    ]
    found = compare_many(runs)
    assert len(found.metrics) == MAX_SEGMENTS
    assert found.pareto is not None and found.pareto.metric in found.metrics
