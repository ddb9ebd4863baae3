"""Logged metrics on both sides: their change, its direction, its test, and the gate by one."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from scipy import stats

from compared_runs import run
from traceml.compare.logged_metrics import LOGGED
from traceml.compare.pair import compare, compare_groups
from traceml.compare.record import Comparison, LoggedDelta, to_json
from traceml.compare.statistics import holm
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.summaries.record import Summary
from traceml.text.comparison import comparison_text


def logging(step_ms: float = 100.0, seed: int | None = None, **metrics: Any) -> Summary:
    """A run that logged these last values; a pair is a value and its direction."""
    logged = {}
    for name, value in metrics.items():
        last, higher = value if isinstance(value, tuple) else (value, None)
        logged[name] = {"count": 5, "last": last, "last_step": 99, "higher_is_better": higher}
    params = {} if seed is None else {"seed": seed}
    return run({"step_time_ms": step_ms}, metrics=logged, params=params)


def one_each(a: Summary, b: Summary, **terms: Any) -> Comparison:
    return compare(a, b, ("a", "b"), Terms(**terms))


def groups(a: list[float], b: list[float], name: str = "loss", **terms: Any) -> Comparison:
    left, right = ([logging(**{name: value}) for value in side] for side in (a, b))
    return compare_groups(left, right, ("a", "b"), Terms(**terms))


def delta(comparison: Comparison, name: str = "loss") -> LoggedDelta:
    found = comparison.sections[LOGGED].metrics[name]
    assert isinstance(found, LoggedDelta)
    return found


def test_both_sides_of_a_logged_metric_and_its_change_are_in_the_file() -> None:
    found = delta(one_each(logging(loss=0.50, only_a=1.0), logging(loss=0.52)))
    assert (found.lhs, found.rhs) == (0.50, 0.52)
    assert found.delta == pytest.approx(0.02) and found.pct_change == pytest.approx(4.0)
    assert (found.higher_is_better, found.direction_from) == (False, "name")
    assert found.interval is None and found.significant is None  # one run per side shows no spread


def test_one_look_of_several_asks_for_more_than_a_single_one() -> None:
    a, b = [1.0, 1.006, 0.994], [1.017, 1.023, 1.011]
    once, thrice = (groups(a, b, metric="loss", looks=looks) for looks in (1, 3))
    assert (once.verdict.status, thrice.verdict.status) == ("REGRESSION", "INCONCLUSIVE")
    assert delta(once).interval == delta(thrice).interval  # the table has the 95 % one
    equal = [1.0, 1.0035, 0.9965]
    once, thrice = (groups(equal, equal[::-1], metric="loss", looks=looks) for looks in (1, 3))
    assert (once.verdict.status, thrice.verdict.status) == ("NO CHANGE", "INCONCLUSIVE")


def test_faster_but_worse_is_said_and_that_the_seed_is_not_known() -> None:
    found = one_each(logging(150.0, loss=0.50), logging(100.0, loss=0.52)).verdict
    assert found.status == "IMPROVEMENT"  # step time decides
    assert "but loss is 4.0% worse (0.5 -> 0.52)" in found.why
    assert "another seed" in found.why
    assert "loss is worse" in found.next


def test_slower_but_better_is_said_too() -> None:
    why = one_each(logging(100.0, accuracy=0.8), logging(150.0, accuracy=0.9)).verdict.why
    assert "but accuracy is 12.5% better" in why


def test_a_metric_without_a_direction_is_listed_and_called_neither_better_nor_worse() -> None:
    comparison = one_each(logging(loss=0.5, lr=0.1), logging(loss=0.5, lr=0.2))
    assert delta(comparison, "lr").pct_change == pytest.approx(100.0)
    assert "lr" not in comparison.verdict.why


def test_evaluation_speaks_before_training() -> None:
    a = logging(150.0, **{"train/loss": 0.5, "val/loss": 0.60})
    b = logging(100.0, **{"train/loss": 0.4, "val/loss": 0.66})
    why = one_each(a, b).verdict.why
    assert "val/loss is 10.0% worse" in why and "train/loss" not in why


def test_the_direction_that_a_script_says_beats_the_name() -> None:
    comparison = one_each(logging(150.0, loss=(1.0, True)), logging(100.0, loss=(2.0, True)))
    assert (delta(comparison).higher_is_better, delta(comparison).direction_from) == (
        True,
        "script",
    )
    assert "loss is 100.0% better" in comparison.verdict.why
    assert "guessed" not in comparison_text(comparison)


def test_a_guess_is_called_a_guess() -> None:
    text = comparison_text(one_each(logging(loss=0.5), logging(loss=0.6)))
    assert "guessed from the name of loss" in text


def test_the_table_has_a_line_for_it() -> None:
    text = comparison_text(one_each(logging(loss=0.5), logging(loss=0.52)))
    (line,) = [line for line in text.splitlines() if line.startswith("loss ")]
    assert line.split() == ["loss", "0.5", "0.52", "+0.02", "(+4.0%,", "worse)"]


def test_several_runs_are_tested_as_scipy_does() -> None:
    a, b = [0.50, 0.52, 0.51, 0.53], [0.55, 0.54, 0.57, 0.56]
    found = delta(groups(a, b))
    reference = stats.ttest_ind(b, a, equal_var=False)
    assert found.p == pytest.approx(reference.pvalue, rel=1e-9)
    low, high = reference.confidence_interval(0.95)
    # The product's quantile of Student's t is accurate to half a percent.
    assert found.interval == pytest.approx((low, high), rel=0.01)
    assert found.significant is True


def test_pairs_by_seed_are_tested_as_scipy_does() -> None:
    a, b = [0.50, 0.62, 0.71, 0.43], [0.52, 0.65, 0.72, 0.46]
    left = [logging(seed=seed, loss=value) for seed, value in enumerate(a)]
    right = [logging(seed=seed, loss=value) for seed, value in enumerate(b)]
    comparison = compare_groups(left, right, ("a", "b"))
    assert comparison.paired_by == "seed"
    assert delta(comparison).p == pytest.approx(stats.ttest_rel(b, a).pvalue, rel=1e-9)


def test_many_metrics_are_corrected_together_by_holm() -> None:
    chance = random.Random(7)
    names = [f"metric_{number}/loss" for number in range(12)]
    sides = tuple(
        [logging(**{name: chance.gauss(1.0, 0.1) for name in names}) for _ in range(4)]
        for _ in range(2)
    )
    found = compare_groups(*sides, ("a", "b")).sections[LOGGED].metrics

    def values(side: list[Summary], name: str) -> list[float]:
        return [each.metrics[name].last or math.nan for each in side]

    raw = {
        name: float(
            stats.ttest_ind(*(values(side, name) for side in sides), equal_var=False).pvalue
        )
        for name in names
    }
    assert {name: found[name].p for name in names} == pytest.approx(holm(raw), rel=1e-6)


def test_a_reward_may_be_negative() -> None:
    worse = groups([-100.0, -101.0, -99.0], [-120.0, -121.0, -119.5], "reward", metric="reward")
    assert worse.verdict.status == "REGRESSION"
    against_many = groups([-100.0, -101.0, -99.0, -100.5], [-150.0], "reward", metric="reward")
    assert against_many.verdict.status == "REGRESSION"


@pytest.mark.parametrize(
    ("a", "b", "terms", "status", "failed"),
    [
        pytest.param([0.5], [0.7], {}, "REGRESSION", True, id="far worse, one run each"),
        pytest.param([0.5], [0.52], {}, "INCONCLUSIVE", False, id="one run each"),
        pytest.param([0.5], [0.5], {}, "NO CHANGE", False, id="the same, one run each"),
        pytest.param([0.5], [0.3], {}, "IMPROVEMENT", False, id="far better, one run each"),
        pytest.param(
            [0.5], [0.52], {"max_regression": 0.02}, "REGRESSION", True, id="more than allowed"
        ),
        pytest.param(
            [0.5], [0.52], {"max_regression": 0.1}, "INCONCLUSIVE", False, id="as allowed"
        ),
        pytest.param(
            [0.50, 0.501, 0.502], [0.52, 0.521, 0.522], {}, "REGRESSION", True, id="shown"
        ),
        pytest.param(
            [0.50, 0.501, 0.502], [0.48, 0.481, 0.482], {}, "IMPROVEMENT", False, id="better"
        ),
        pytest.param([0.5, 0.6, 0.4], [0.55, 0.6, 0.45], {}, "INCONCLUSIVE", False, id="unclear"),
        pytest.param(
            [0.5, 0.5001, 0.4999], [0.5001, 0.5, 0.4998], {}, "NO CHANGE", False, id="equivalent"
        ),
        pytest.param(
            [0.50, 0.501, 0.502],
            [0.52, 0.521, 0.522],
            {"max_regression": 0.1},
            "NO CHANGE",
            False,
            id="shown to keep within what is allowed",
        ),
    ],
)
def test_a_logged_metric_decides_the_gate(
    a: list[float], b: list[float], terms: dict[str, float], status: str, failed: bool
) -> None:
    found = groups(a, b, metric="loss", fail_on=("regression",), **terms)
    assert (found.verdict.status, found.verdict.metric) == (status, "loss")
    assert found.gate is not None and found.gate.failed is failed
    if len(a) == 1 and a != b:
        assert "another seed" in found.verdict.why


def test_a_metric_of_our_own_name_is_reached_by_its_prefix() -> None:
    a, b = logging(throughput=100.0), logging(throughput=10.0)
    assert one_each(a, b, metric="metrics.throughput").verdict.status == "REGRESSION"


def test_no_such_metric_names_near_ones() -> None:
    with pytest.raises(UsageError, match="did you mean 'val_loss'"):
        one_each(logging(val_loss=1.0), logging(val_loss=1.0), metric="val_los")


def test_a_gate_needs_a_direction() -> None:
    a, b = logging(thing=1.0), logging(thing=2.0)
    with pytest.raises(UsageError, match="--better"):
        one_each(a, b, metric="thing")
    assert one_each(a, b, metric="thing", higher_is_better=True).verdict.status == "IMPROVEMENT"
    assert one_each(a, b, metric="thing", higher_is_better=False).verdict.status == "REGRESSION"


def test_a_loss_that_became_nan_is_not_passed() -> None:
    found = one_each(logging(loss=0.5), logging(loss=None), metric="loss", fail_on=("regression",))
    assert "NaN or infinite in B" in found.verdict.why
    assert found.gate is not None and found.gate.failed


def test_values_of_different_steps_are_told() -> None:
    later = run(
        {"step_time_ms": 100.0},
        metrics={"loss": {"count": 9, "last": 0.3, "last_step": 500}},
    )
    assert any("step 99 -> 500" in said for said in one_each(logging(loss=0.5), later).warnings)


def test_swapping_the_sides_mirrors_the_change() -> None:
    there, back = (
        groups([0.5, 0.6, 0.7], [0.8, 0.9, 0.75]),
        groups([0.8, 0.9, 0.75], [0.5, 0.6, 0.7]),
    )
    assert delta(there).delta == pytest.approx(-(delta(back).delta or 0))
    assert delta(there).p == pytest.approx(delta(back).p)


def test_a_run_and_itself_have_no_interval() -> None:
    steps = {"count": 400, "stdev_ms": 5.0, "effective_count": 100}
    same = run({"step_time_ms": 100.0}, steps=steps, metrics={"loss": {"count": 1, "last": 0.5}})
    comparison = one_each(same, same)
    assert comparison.verdict.identical
    assert comparison.sections["step_time"].metrics["step_time_ms"].interval is None
    text = comparison_text(comparison)
    assert "95% CI" not in text and "same measurements" in text


@pytest.mark.slow
def test_false_alarms_of_the_gate_stay_at_their_rate() -> None:
    """Of 400 comparisons of runs alike, at most 5 % are called a change, give or take chance."""
    chance = random.Random(20261116)
    wrong = 0
    for _ in range(400):
        a, b = ([chance.gauss(1.0, 0.1) for _ in range(5)] for _ in range(2))
        wrong += groups(a, b, metric="loss").verdict.status in ("REGRESSION", "IMPROVEMENT")
    # The 99.9 % limit of a binomial count of 400 at 5 %.
    assert wrong <= stats.binom.ppf(0.999, 400, 0.05)


def test_a_comparison_reads_back_as_it_was_written() -> None:
    found = one_each(logging(loss=0.5), logging(loss=0.52))
    document = msgspec.json.decode(to_json(found))
    assert "higher_is_better" not in document["sections"]["step_time"]["metrics"]["step_time_ms"]
    assert document["sections"]["logged"]["metrics"]["loss"]["direction_from"] == "name"
    again = msgspec.json.decode(to_json(found), type=Comparison)
    assert to_json(again) == to_json(found)
    assert comparison_text(again) == comparison_text(found)


def test_a_run_that_diverged_is_told_and_does_not_pass_the_gate() -> None:
    left = [logging(loss=value) for value in (0.5, 0.51, 0.52)]
    right = [logging(loss=value) for value in (0.4, 0.41, None)]
    terms = Terms(metric="loss", fail_on=("regression",))
    found = compare_groups(left, right, ("a", "b"), terms)
    assert found.verdict.status == "IMPROVEMENT"  # of those that have a value
    assert any("NaN or infinite in 1 of 3 runs of B" in said for said in found.warnings)
    assert found.gate is not None and found.gate.failed
    assert found.gate.unmeasured == ("loss",) and not found.gate.nothing_measured
