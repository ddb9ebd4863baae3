"""What mattered: parameter importance against functions whose answer is known."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from traceml.compare.importance_record import ParameterImportance, WhatMattered
from traceml.compare.parameter_importance import MIN_FOR_TRENDS, what_mattered
from traceml.compare.record import to_json
from traceml.text.what_mattered import WIDTH, what_mattered_text

Runs = tuple[list[dict[str, Any]], list[float]]


def friedman(runs: int, seed: int = 1) -> Runs:
    """Friedman's first function: x1 to x5 matter, x1 and x2 interact, x6 to x10 do nothing."""
    chance = np.random.default_rng(seed)
    x = chance.random((runs, 10))
    metric = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    metric += 10 * x[:, 3] + 5 * x[:, 4] + chance.normal(size=runs)
    params = [{f"x{place + 1}": float(value) for place, value in enumerate(row)} for row in x]
    return params, metric.tolist()


def noise(runs: int, seed: int) -> Runs:
    chance = np.random.default_rng(seed)
    params = [
        {
            "lr": float(row[0]),
            "width": int(row[1] * 3),
            "optimizer": "xyz"[int(row[2] * 3)],
            "amp": bool(row[3] > 0.5),
        }
        for row in chance.random((runs, 4))
    ]
    return params, chance.standard_cauchy(runs).tolist()


def slope(runs: int, **more: Any) -> Runs:
    chance = np.random.default_rng(7)
    lr = chance.random(runs)
    params = [
        {"lr": float(each), **{name: make(place, each) for name, make in more.items()}}
        for place, each in enumerate(lr)
    ]
    return params, (lr + 0.1 * chance.normal(size=runs)).tolist()


def by_name(found: WhatMattered) -> dict[str, ParameterImportance]:
    return {each.name: each for each in found.parameters}


def important(found: WhatMattered) -> set[str]:
    return {each.name for each in found.parameters if each.matters}


@pytest.fixture(scope="module")
def friedman_found() -> WhatMattered:
    pytest.importorskip("sklearn")
    return what_mattered(*friedman(200), "score", higher_is_better=True)


@pytest.fixture
def no_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)


@pytest.mark.slow
def test_the_forest_finds_exactly_what_matters(friedman_found: WhatMattered) -> None:
    assert important(friedman_found) == {"x1", "x2", "x3", "x4", "x5"}
    assert friedman_found.forest is not None and friedman_found.forest.explained > 0.6
    assert not friedman_found.warnings
    x3 = by_name(friedman_found)["x3"]
    assert x3.spearman is not None and not x3.spearman.is_significant, "a valley has no trend"
    assert x3.forest is not None and x3.forest.interval is not None and x3.forest.interval[0] > 0


@pytest.mark.slow
def test_the_interaction_is_found_with_its_grid(friedman_found: WhatMattered) -> None:
    grid = friedman_found.interaction
    assert grid is not None and {grid.rows, grid.columns} == {"x1", "x2"}
    assert sum(map(sum, grid.settings)) == 200
    corner, opposite = grid.means[0][0], grid.means[-1][1]
    assert corner is not None and opposite is not None and corner < opposite


@pytest.mark.slow
def test_effects_that_add_up_do_not_interact() -> None:
    pytest.importorskip("sklearn")
    chance = np.random.default_rng(3)
    x = chance.random((100, 3))
    params = [{"a": float(row[0]), "b": float(row[1]), "c": float(row[2])} for row in x]
    found = what_mattered(params, (x[:, 0] + x[:, 1]).tolist(), "score")
    assert important(found) == {"a", "b"}
    assert found.interaction is None


@pytest.mark.slow
def test_the_forest_calls_nothing_important_in_noise() -> None:
    pytest.importorskip("sklearn")
    wrong = sum(bool(important(what_mattered(*noise(30, seed), "m"))) for seed in range(3))
    assert wrong == 0


def test_trends_in_noise_are_called_important_in_at_most_a_twentieth(no_sklearn: None) -> None:
    tried = 100
    wrong = sum(bool(important(what_mattered(*noise(20, seed), "m"))) for seed in range(tried))
    # With a rate of 5 % more than 11 of 100 are seen once in 200 times; the seeds are fixed.
    assert wrong <= stats.binom.ppf(0.995, tried, 0.05)


def test_a_rank_correlation_is_that_of_scipy_with_an_interval_around_it(no_sklearn: None) -> None:
    params, metric = slope(80)
    trend = by_name(what_mattered(params, metric, "loss"))["lr"].spearman
    expected = stats.spearmanr([run["lr"] for run in params], metric)
    assert trend is not None and trend.interval is not None
    assert trend.value == pytest.approx(expected.statistic)
    assert trend.p == pytest.approx(expected.pvalue)
    assert trend.interval[0] < trend.value < trend.interval[1] < 1


def test_with_few_runs_the_p_value_is_that_of_all_orders(no_sklearn: None) -> None:
    params = [{"lr": place} for place in range(MIN_FOR_TRENDS)]
    found = what_mattered(params, [1.0, 2.0, 3.0, 4.0, 5.0], "loss")
    trend = by_name(found)["lr"].spearman
    assert trend is not None and trend.value == 1
    assert trend.p == pytest.approx(2 / math.factorial(5), abs=0.004), "not 0, as t would have it"
    assert trend.interval is not None and trend.interval[0] < 0.9
    assert any("few runs: 5 settings for 1 parameter" in said for said in found.warnings)


def test_too_few_settings_say_nothing_but_that() -> None:
    found = what_mattered([{"lr": place} for place in range(4)], [1.0, 2.0, 3.0, 4.0], "loss")
    assert not found.parameters
    assert "4 settings with loss: too few" in found.warnings[0]
    assert "too few" in what_mattered_text(found).replace("\n   ", "")


def test_repetitions_with_other_seeds_are_one_setting(no_sklearn: None) -> None:
    """Five random settings stay five, however often each is repeated."""
    params = [{"lr": lr, "seed": seed} for lr in range(5) for seed in range(20)]
    metric = [float(run["lr"] + run["seed"] / 100) for run in params]
    found = what_mattered(params, metric, "loss")
    assert (found.runs, found.settings) == (100, 5)
    assert [each.name for each in found.parameters] == ["lr"]
    assert found.parameters[0].bins[0].mean == pytest.approx(0.095)


def test_parameters_that_vary_together_cannot_be_told_apart(no_sklearn: None) -> None:
    chance = np.random.default_rng(5)
    params, metric = slope(
        40, warmup=lambda _, lr: lr * 100 + 1, width=lambda *_: int(chance.integers(4))
    )
    found = what_mattered(params, metric, "loss")
    assert by_name(found)["lr"].together_with == ("warmup",)
    assert by_name(found)["warmup"].together_with == ("lr",)
    assert by_name(found)["width"].together_with == ()
    assert "Cannot be told apart, because they vary together: lr, warmup." in " ".join(
        what_mattered_text(found).split()
    )


@pytest.mark.slow
def test_the_forest_shuffles_what_varies_together_as_one() -> None:
    pytest.importorskip("sklearn")
    params, metric = slope(60, warmup=lambda _, lr: lr * 100)
    found = by_name(what_mattered(params, metric, "loss"))
    lr, warmup = found["lr"].forest, found["warmup"].forest
    assert lr is not None and lr == warmup
    assert lr.value > 0.5, "half of it would be lost to the other one"


def test_categories_with_the_same_split_as_numbers_cannot_be_told_apart(no_sklearn: None) -> None:
    params = [
        {"optimizer": "abc"[place % 3], "beta": (0.9, 0.5, 0.7)[place % 3], "lr": place // 3}
        for place in range(30)
    ]
    found = what_mattered(params, [float(place % 3) + place / 100 for place in range(30)], "loss")
    assert by_name(found)["optimizer"].together_with == ("beta",)
    assert by_name(found)["lr"].together_with == ()


def test_a_category_matters_by_its_values_not_by_their_order(no_sklearn: None) -> None:
    chance = np.random.default_rng(2)
    names = ["adam", "sgd", "lion"]
    params = [{"optimizer": names[place % 3], "lr": float(chance.random())} for place in range(60)]
    metric = [(0.0 if run["optimizer"] == "sgd" else 1.0) + chance.normal() / 5 for run in params]
    found = what_mattered(params, metric, "loss", higher_is_better=False)
    optimizer = by_name(found)["optimizer"]
    sides = [
        [value for run, value in zip(params, metric, strict=True) if run["optimizer"] == name]
        for name in names
    ]
    assert important(found) == {"optimizer"}
    assert optimizer.kind == "category" and optimizer.spearman is None
    assert optimizer.kruskal_wallis is not None
    assert optimizer.kruskal_wallis.p == pytest.approx(2 * stats.kruskal(*sides).pvalue)
    assert {each.value: each.settings for each in optimizer.bins} == dict.fromkeys(names, 20)


def test_runs_without_a_number_are_left_out_and_counted(no_sklearn: None) -> None:
    params, metric = slope(33)
    values: list[float | None] = [None, math.nan, math.inf, *metric[3:]]
    found = what_mattered(params, values, "loss")
    assert (found.runs, found.runs_without_metric, found.settings) == (30, 3, 30)
    assert important(found) == {"lr"}
    assert "3 runs without it left out" in what_mattered_text(found)


def test_what_names_a_run_is_left_out(no_sklearn: None) -> None:
    params, metric = slope(
        24,
        output_dir=lambda place, _: f"out/{place}",
        comment=lambda place, _: f"try {place}",
        epochs=lambda *_: 3,
    )
    found = what_mattered(params, metric, "loss")
    assert [each.name for each in found.parameters] == ["lr"]
    assert {each.name for each in found.left_out} == {"output_dir", "comment"}


def test_numbers_of_a_command_line_are_numbers(no_sklearn: None) -> None:
    params, metric = slope(30)
    texts = [{"lr": f"{run['lr']:.6f}"} for run in params]
    assert by_name(what_mattered(texts, metric, "loss"))["lr"].kind == "number"


def test_a_parameter_that_some_runs_lack_is_judged_by_those_that_have_it(no_sklearn: None) -> None:
    params, metric = slope(40)
    for run in params[:10]:
        del run["lr"]
    # Runs without any parameter are one setting.
    found = by_name(what_mattered(params, metric, "loss"))["lr"]
    assert (found.settings, found.matters) == (30, True)


def test_a_parameter_that_runs_have_or_have_not_is_a_category(no_sklearn: None) -> None:
    params, metric = slope(40)
    given = [{**run, **({"resume": "x"} if run["lr"] > 0.5 else {})} for run in params]
    found = what_mattered(given, metric, "loss")
    assert by_name(found)["resume"].kind == "category" and "resume" in important(found)
    assert "set or not *" in what_mattered_text(found)


def test_where_the_gain_ends_is_said_but_not_of_a_steady_gain_or_a_peak(
    no_sklearn: None,
) -> None:
    chance = np.random.default_rng(4)
    width = np.arange(100)
    errors = chance.normal(size=100) / 50
    params = [{"width": int(each)} for each in width]
    ended = what_mattered(params, (np.minimum(width, 40) / 40 + errors).tolist(), "score", True)
    valley = what_mattered(params, (-abs(width - 60) / 60 + errors).tolist(), "score", True)
    steady = what_mattered(params, (width / 100 + errors).tolist(), "score", True)
    assert by_name(ended)["width"].levels_off_at == 39
    assert [each.settings for each in by_name(ended)["width"].bins] == [20] * 5
    assert by_name(steady)["width"].levels_off_at is None
    assert by_name(valley)["width"].matters and by_name(valley)["width"].levels_off_at is None
    assert "with width 60 to 79" in what_mattered_text(valley)
    assert "no further gain shown above 39" in what_mattered_text(ended)


def test_without_scikit_learn_trends_are_shown_and_what_is_missing_is_said(
    no_sklearn: None,
) -> None:
    found = what_mattered(*slope(40), "loss")
    assert found.forest is None and important(found) == {"lr"}
    assert any("pip install 'traceml-insight[importance]'" in said for said in found.warnings)


def test_long_names_stay_within_the_width(no_sklearn: None) -> None:
    params, metric = slope(30)
    long = [{"a.very/long_" * 20 + "\n|": run["lr"]} for run in params]
    text = what_mattered_text(what_mattered(long, metric, "loss" * 60, higher_is_better=False))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "Best on average" in text


@pytest.mark.parametrize("largest", [1e308, 1.7e308])
def test_values_near_the_largest_number_stay_a_document(no_sklearn: None, largest: float) -> None:
    params = [{"lr": 10**400 if place == 5 else place, "f": place % 2} for place in range(30)]
    found = what_mattered(params, [(-1) ** place * largest for place in range(30)], "loss", True)
    assert by_name(found)["lr"].spearman is not None
    assert b"NaN" not in to_json(found)
    assert max(map(len, what_mattered_text(found).splitlines())) <= WIDTH


def test_the_order_of_the_runs_changes_nothing(no_sklearn: None) -> None:
    params, metric = noise(30, 1)
    turned = [dict(reversed(run.items())) for run in reversed(params)]
    assert what_mattered(turned, metric[::-1], "m") == what_mattered(params, metric, "m")


@pytest.mark.slow
def test_the_order_of_the_runs_changes_no_importance(friedman_found: WhatMattered) -> None:
    params, metric = friedman(200)
    assert what_mattered(params[::-1], metric[::-1], "score", True) == friedman_found


def test_a_metric_that_never_changes_has_nothing_to_explain(no_sklearn: None) -> None:
    found = what_mattered(slope(30)[0], [1.0] * 30, "loss")
    assert found.warnings == ("all runs have the same loss",) and not found.parameters
