"""Arms of live traffic: intervals that hold at all looks, and what is said about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from traceml.compare.live_arms import (
    MIN_OUTCOMES,
    Arm,
    ArmDifference,
    compare_arms,
    empirical_bernstein,
    mixture_interval,
)
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.text.live_arms import arms_text

LOOKS = range(100, 2001, 100)


def conversions(chance: np.random.Generator, rate: float, count: int) -> list[float]:
    return [float(each) for each in chance.random(count) < rate]


def difference(
    a: list[float], b: list[float], bounds: tuple[float, float] | None = None
) -> ArmDifference:
    found = compare_arms([Arm("a", a), Arm("b", b)], "success", bounds)
    return found.differences["b"]


def excludes(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and not interval[0] <= truth <= interval[1]


@pytest.mark.parametrize(
    ("terms", "status"),
    [
        pytest.param(Terms(), "REGRESSION", id="as it is"),
        pytest.param(Terms(max_regression=0.3), "NO CHANGE", id="so much worse is allowed"),
        pytest.param(Terms(tolerance=0.3), "NO CHANGE", id="so much is tolerated"),
        pytest.param(Terms(max_regression=0.11), "INCONCLUSIVE", id="perhaps more than allowed"),
        pytest.param(Terms(max_regression=0.05), "REGRESSION", id="more than allowed"),
    ],
)
def test_the_terms_hold_for_arms(terms: Terms, status: str) -> None:
    a, b = ([float(n % 10 < share) for n in range(4000)] for share in (10, 9))
    found = compare_arms([Arm("a", a), Arm("b", b)], "success", None, terms)
    assert found.differences["b"].delta == pytest.approx(-0.1)
    assert found.differences["b"].status == status
    assert f"{status}." in " ".join(arms_text(found).split())


def test_a_known_sequence() -> None:
    """The formulas of the paper one value after the other, as they are printed there."""
    values = np.array([1.0, 0.0, 1.0, 1.0])
    lower, upper = empirical_bernstein(values, 0.05)
    mean, variance, total, weighted, spread = 0.5, 0.25, 0.0, 0.0, 0.0
    squares, added = 0.25, 0.5
    low, high = 0.0, 1.0
    for place, value in enumerate(values, start=1):
        weight = min(math.sqrt(2 * math.log(40) / (variance * place * math.log(1 + place))), 0.5)
        spread += 4 * (value - mean) ** 2 * (-math.log(1 - weight) - weight) / 4
        total, weighted = total + weight, weighted + weight * value
        middle, reach = weighted / total, (math.log(40) + spread) / total
        low, high = max(low, middle - reach), min(high, middle + reach)
        added += value
        mean = added / (place + 1)
        squares += (value - mean) ** 2
        variance = squares / (place + 1)
        assert lower[place - 1] == pytest.approx(max(0.0, low))
        assert upper[place - 1] == pytest.approx(min(1.0, high))


@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_bounded_outcomes_are_covered_at_all_looks(rate: float) -> None:
    """Of 200 experiments without a difference, at most 5 % ever exclude zero; a t test that is
    looked at as often does so in far more."""
    chance = np.random.default_rng(20261116)
    experiments, limit = 200, stats.binom.ppf(0.999, 200, 0.05)
    a, b = ((chance.random((experiments, LOOKS[-1])) < rate).astype(float) for _ in range(2))
    days = [f"{place // 100:04d}" for place in range(LOOKS[-1])]
    ever = 0
    for first, second in zip(a, b, strict=True):
        arms = [Arm("a", list(first), days), Arm("b", list(second), days)]
        found = compare_arms(arms, "success").differences["b"]
        ever += any(excludes(look.interval, 0.0) for look in found.looks)
    assert ever <= limit
    looks = [stats.ttest_ind(a[:, :n], b[:, :n], axis=1).pvalue < 0.05 for n in LOOKS]
    assert np.any(looks, axis=0).sum() > 2 * limit


def test_a_real_difference_is_covered_at_all_looks() -> None:
    """Of 200 experiments with a difference of 0.1, at most 5 % ever exclude it."""
    chance = np.random.default_rng(3)
    days = [f"{place // 100:04d}" for place in range(LOOKS[-1])]
    ever = shown = 0
    for _ in range(200):
        a, b = ((chance.random(LOOKS[-1]) < rate).astype(float) for rate in (0.3, 0.4))
        found = compare_arms([Arm("a", list(a), days), Arm("b", list(b), days)], "success")
        looks = found.differences["b"].looks
        ever += any(excludes(look.interval, 0.1) for look in looks)
        shown += excludes(looks[-1].interval, 0.0)
    assert ever <= stats.binom.ppf(0.999, 200, 0.05)
    assert shown > 150  # and it is no interval that covers everything


def test_outcomes_without_a_known_range_are_covered_at_all_looks() -> None:
    chance = np.random.default_rng(7)
    ever = 0
    for _ in range(200):
        a, b = (chance.lognormal(0, 1, LOOKS[-1]) for _ in range(2))
        ever += any(excludes(mixture_interval(a[:n], b[:n], 0.05), 0.0) for n in LOOKS)
    assert ever <= stats.binom.ppf(0.999, 200, 0.05)


def test_the_mixture_at_one_look() -> None:
    # Theorem 2.2 with t = 2,000 outcomes, sigma² = t · s² and the constant r of the product:
    # sigma · sqrt(2 (t r² + 1) / (t² r²) · log(sqrt(t r² + 1) / α)).
    values = np.tile([0.0, 2.0], 500)
    found = mixture_interval(values, values + 1.0, 0.05)
    assert found is not None
    variance = 2000 * 2 * values.var(ddof=1) / 1000
    root = (-2 * np.log(0.05) + np.log(-2 * np.log(0.05) + 1)) / 1000
    spread = 2000 * root + 1
    reach = np.sqrt(variance * 2 * spread / (2000**2 * root) * np.log(np.sqrt(spread) / 0.05))
    assert found == pytest.approx((1.0 - reach, 1.0 + reach))
    assert mixture_interval(values[: MIN_OUTCOMES - 1], values, 0.05) is None


def test_a_real_difference_is_shown_and_since_when() -> None:
    chance = np.random.default_rng(3)
    days = [f"2026-11-{place // 1000 + 1:02d}" for place in range(20_000)]
    a, b = conversions(chance, 0.10, 20_000), conversions(chance, 0.13, 20_000)
    found = compare_arms([Arm("control", a, days), Arm("new", b, days)], "success")
    shown = found.differences["new"]
    assert (shown.status, found.method) == ("IMPROVEMENT", "empirical Bernstein")
    assert shown.interval is not None and 0 < shown.interval[0] <= 0.03 <= shown.interval[1]
    assert shown.decided_on is not None and days[0] < shown.decided_on < days[-1]
    widths = [look.interval[1] - look.interval[0] for look in shown.looks if look.interval]
    assert widths == sorted(widths, reverse=True)  # a sequence never grows
    assert shown.looks[-1].interval == shown.interval


def test_unequal_arms_use_all_of_both() -> None:
    chance = np.random.default_rng(5)
    many, few = conversions(chance, 0.5, 40_000), conversions(chance, 0.5, 500)
    alone = difference(many[:500], few).interval
    both = difference(many, few).interval
    assert alone is not None and both is not None
    assert both[1] - both[0] < alone[1] - alone[0]


def test_several_arms_share_the_error() -> None:
    chance = np.random.default_rng(6)
    arms = [Arm(name, conversions(chance, 0.5, 500)) for name in "abc"]
    two = compare_arms(arms[:2], "success").differences["b"].interval
    three = compare_arms(arms, "success").differences["b"].interval
    assert two is not None and three is not None
    assert three[0] < two[0] and two[1] < three[1]


def test_a_range_is_believed_and_checked() -> None:
    a, b = [10.0, 20.0] * 200, [30.0, 20.0] * 200
    assert difference(a, b, (0.0, 100.0)).status == "IMPROVEMENT"
    with pytest.raises(UsageError, match="outside of the range"):
        difference(a, b, (0.0, 25.0))
    with pytest.raises(UsageError, match="LOW, then HIGH"):
        difference(a, b, (1.0, 1.0))


def test_without_a_direction_nothing_is_better() -> None:
    arms = [Arm("a", [0.0] * 1000), Arm("b", [1.0] * 1000)]
    assert compare_arms(arms, "thing").differences["b"].status == "INCONCLUSIVE"
    lower = compare_arms(arms, "thing", terms=Terms(higher_is_better=False))
    assert lower.differences["b"].status == "REGRESSION"


def test_an_empty_arm_is_compared_with_nothing() -> None:
    found = difference([], [1.0])
    assert (found.delta, found.interval, found.status) == (None, None, "INCONCLUSIVE")
