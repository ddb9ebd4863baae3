"""The page of charts over many runs: what it shows first, what was asked for, and odd runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from listed_runs import list_run, list_sweep, metric
from traceml.api.explore_runs import explore
from traceml.api.query_runs import RunSearch
from traceml.figures.exploration import LOG_METRICS, LOG_PARAMS, NO_MATCH, NO_RUNS, AskedCharts
from traceml.figures.exploration_record import Exploration
from traceml.model.errors import UsageError


def explored(logs: Path, typed: str = "", **asked: str) -> Exploration:
    page = explore(RunSearch(logs), typed, AskedCharts(**asked))
    assert all(len(column.values) == len(page.names) for column in page.columns)
    names = {column.name for column in page.columns}
    ones = {page.metric, page.x, page.y, page.color, page.size} - {None}
    assert names == {*page.axes, *ones}
    msgspec.json.encode(page)
    return page


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return list_sweep(tmp_path_factory.mktemp("sweep"))


def test_the_first_sight_is_what_varies_and_how_good_it_is(sweep: Path) -> None:
    page = explored(sweep)
    assert page.metric == "metrics.accuracy"
    assert page.axes == ("params.lr", "params.optimizer", "step_time_ms", "metrics.accuracy")
    assert (page.x, page.y) == ("step_time_ms", "metrics.accuracy"), "all durations are the same"
    assert (page.group, page.color) == (("params.lr",), "params.lr")
    assert page.found == "12 runs"
    assert page.advice == ()


def test_the_metric_that_most_runs_have_is_shown(tmp_path) -> None:
    for number in range(6):
        metrics = {"f1": metric(0.1)} if number == 0 else {"accuracy": metric(0.1 * number)}
        list_run(tmp_path, f"r{number}", {"lr": number}, metrics)
    assert explored(tmp_path).metric == "metrics.accuracy"


def test_a_metric_that_is_the_same_in_all_runs_shows_nothing(tmp_path) -> None:
    for number in range(3):
        list_run(tmp_path, f"r{number}", {}, {"f1": metric(0.0), "accuracy": metric(number)})
    assert explored(tmp_path).metric == "metrics.accuracy"


def test_a_metric_is_summed_up_by_group(sweep: Path) -> None:
    bars = explored(sweep, metric='metrics."val/loss"', group="params.lr,optimizer").bars
    assert bars is not None
    assert [row.name for row in bars.rows] == ["0.01, adam", "0.01, sgd", "0.1, adam", "0.1, sgd"]
    first = bars.rows[0]
    assert first.value == pytest.approx(0.11)
    assert first.low is not None and first.low < 0.11
    assert (first.text, first.note) == ("0.11 [0.08516, 0.1348]", "3 runs")
    assert bars.is_bar


def test_the_front_is_marked_where_cost_meets_quality(sweep: Path) -> None:
    page = explored(sweep, x="step_time_ms", y='metrics."val/loss"')
    cost, loss = ({c.name: c for c in page.columns}[name].values for name in (page.x, page.y))
    front = [(cost[place], loss[place]) for place in page.front]
    assert front == [(20.0, 0.1)], "one run is fastest and best"
    assert page.front_words is not None and "lowest val/loss" in page.front_words
    assert explored(sweep, x="params.lr", y='metrics."val/loss"').front == ()


def test_what_was_asked_for_is_shown(sweep: Path) -> None:
    page = explored(
        sweep, axes="seed, model.layers", x="lr", y="seed", color="", size="metrics.accuracy"
    )
    assert page.axes == ("params.seed", "params.model.layers")
    assert (page.x, page.y, page.color) == ("params.lr", "params.seed", None)
    assert page.size == "metrics.accuracy"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"x": "leraning_rate"}, "no run has"),
        ({"metric": "params.*"}, "one was expected"),
        ({"axes": "nothing"}, "no run has"),
    ],
)
def test_a_name_that_no_run_has_is_an_error(sweep: Path, asked: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        explored(sweep, **asked)


def test_plain_words_are_a_filter(sweep: Path) -> None:
    page = explored(sweep, "sweep-1 input")
    assert set(page.names) == {"sweep-10", "sweep-11"}
    assert explored(sweep, page.filter).names == page.names, "the filter can be carried on"
    assert len(explored(sweep, "  ").names) == 12
    assert explored(sweep, " lr > 0.05 ").filter == "lr > 0.05"
    with pytest.raises(UsageError, match="expected"):
        explored(sweep, "lr >")


def test_no_runs_say_what_to_do(tmp_path, sweep: Path) -> None:
    assert explored(tmp_path).advice == (NO_RUNS,)
    nothing = explored(sweep, 'name = "nobody"')
    assert nothing.advice == (NO_MATCH,)
    assert nothing.columns == ()


def test_runs_without_metrics_and_params_say_what_to_log(tmp_path) -> None:
    for name in ("a", "b"):
        list_run(tmp_path, name)
    page = explored(tmp_path)
    assert page.advice == (LOG_METRICS, LOG_PARAMS)
    assert page.metric == "step_time_ms"


def test_one_run_has_a_page(tmp_path) -> None:
    list_run(tmp_path, "only", {"lr": 0.1}, {"loss": metric(0.5)})
    page = explored(tmp_path)
    assert page.metric == "metrics.loss"
    assert page.bars is None


def test_hostile_values_reach_the_page_as_text_and_numbers(tmp_path) -> None:
    name = "<img src=x onerror=hurt()>" + "n" * 200
    for number, value in enumerate([1e308, -1e308, float("inf"), "<script>", None]):
        list_run(tmp_path, f"r{number}", {name: value}, {name: metric(1e308), "loss": metric(None)})
    page = explored(tmp_path, metric=f'metrics."{name}"', group=f'params."{name}"')
    assert page.bars is not None and page.bars.rows[0].value is None
    assert len(page.bars.rows[0].name) <= 40
    assert all(len(column.label) <= 40 for column in page.columns)


def test_fifteen_hundred_columns_have_a_page(tmp_path) -> None:
    for number in range(3):
        params = {f"p{place}": number * place for place in range(1500)}
        metrics = {f"m{place}": metric(number, 0.0, 1.0) for place in range(1400)}
        list_run(tmp_path, f"r{number}", params, metrics)
    page = explored(tmp_path)
    offered = {choice.name for choice in page.choices}
    assert {"params.p1499", "metrics.m1399"} <= offered
    assert any("more names can be chosen by typing them" in note for note in page.notes)
    assert len(page.axes) == 8
