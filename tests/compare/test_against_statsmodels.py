"""Our statistics against statsmodels, where it is installed (it is no dependency of ours)."""

from __future__ import annotations

import random

import pytest

from compared_runs import run
from traceml.compare.logged_metrics import logged_delta
from traceml.compare.paired_samples import compare_samples
from traceml.compare.sides import Sides
from traceml.compare.statistics import holm
from traceml.store.logged_samples import ScoredSamples

pytest.importorskip("statsmodels")


def test_holms_correction() -> None:
    from statsmodels.stats.multitest import multipletests

    chance = random.Random(2)
    raw = {number: chance.random() ** 3 for number in range(25)}
    expected = multipletests(list(raw.values()), method="holm")[1]
    assert list(map(holm(raw).get, raw)) == pytest.approx(list(expected))


@pytest.mark.parametrize("right", [(3, 12), (40, 61), (0, 5)])
def test_mcnemars_exact_test(right: tuple[int, int]) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    only_a, only_b = right
    a = [1.0] * only_a + [0.0] * only_b + [1.0] * 20
    b = [0.0] * only_a + [1.0] * only_b + [1.0] * 20
    sides = [
        ScoredSamples({"correct": {str(place): value for place, value in enumerate(values)}})
        for values in (a, b)
    ]
    found = compare_samples(sides[0], sides[1]).scores["correct"].whole
    expected = mcnemar([[20, only_a], [only_b, 0]], exact=True).pvalue
    assert found.mcnemar_p == pytest.approx(float(expected))


def test_welchs_interval_of_a_logged_metric() -> None:
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    chance = random.Random(3)
    a, b = [chance.gauss(1, 0.1) for _ in range(5)], [chance.gauss(1.2, 0.3) for _ in range(7)]
    left, right = (
        tuple(run(metrics={"loss": {"count": 1, "last": value}}) for value in side)
        for side in (a, b)
    )
    found = logged_delta("loss", Sides(left, right))
    compared = CompareMeans(DescrStatsW(b), DescrStatsW(a))
    assert found.p == pytest.approx(float(compared.ttest_ind(usevar="unequal")[1]), rel=1e-9)
    expected = compared.tconfint_diff(usevar="unequal")
    assert found.interval == pytest.approx(tuple(map(float, expected)), rel=0.01)
