"""Loss and metrics: a curve each, and a table of them all."""

import math
from array import array
from dataclasses import replace

import numpy as np

from drawn_runs import figure, history_of, page_of, part, standing_of
from factories import make_run
from failing import with_loss
from traceml.facts.history import History
from traceml.facts.metric_history import MAX_SEGMENTS, MetricHistory, metric_histories, thinned
from traceml.figures.metrics import MAX_FIGURES
from traceml.figures.page import RunPage
from traceml.figures.run_page import run_page
from traceml.figures.segment_charts import MAX_ROWS as MAX_SEGMENT_ROWS
from traceml.store.metric_follower import Logged
from traceml.store.records import LoggedMetric
from traceml.summaries.build import build


def metric(name: str, values: list[float], steps: list[int] | None = None) -> MetricHistory:
    at = np.arange(1, len(values) + 1) if steps is None else np.array(steps)
    return thinned(name, at, np.array(values, np.float64))


def drawn_with(*metrics: MetricHistory) -> RunPage:
    """A run of 200 steps with these metrics."""
    run = make_run()
    history = replace(history_of(run), metrics=metrics)
    return run_page(build(run, 0.0, "0"), standing_of(), history)


def with_metrics(*names: str) -> RunPage:
    run = replace(
        make_run(),
        metrics=tuple(LoggedMetric(name, 2, 0.5, 0.5, 1.5, 1.0, 10, 20) for name in names),
    )
    history = history_of(run)
    drawn = tuple(metric(name, [1.5, 0.123456], [10, 20]) for name in names)
    return run_page(build(run, 0.0, "0"), standing_of(), replace(history, metrics=drawn))


def test_the_loss_of_one_rank_is_one_curve() -> None:
    lines = figure(page_of(make_run()), "loss")
    assert [series.name for series in lines.series] == ["Loss"]
    assert (lines.y.low, lines.zooms) == (0.0, True)


def test_the_losses_of_several_ranks_are_their_mean_and_extremes() -> None:
    lines = figure(page_of(make_run(ranks=4)), "loss")
    (series,) = lines.series
    assert series.name == "Mean over ranks"
    assert series.low is not None and series.high is not None
    assert series.low[0] <= series.values[0] <= series.high[0]
    assert "the band from the lowest to the highest" in lines.caption


def test_every_logged_metric_has_its_curve_and_its_row() -> None:
    page = with_metrics("train/loss", "val\naccuracy")
    (lines,) = [each for each in part(page, "metrics").figures if each.title == "val accuracy"]
    assert (lines.title, lines.at, lines.series[0].values) == (
        "val accuracy",
        (10.0, 20.0),
        (1.5, 0.1235),
    )
    (table,) = part(page, "metrics").tables
    assert table.rows[0].cells == ("train/loss", "0.5", "0.5", "1.5", "1", "2", "10 to 20")


def test_of_very_many_metrics_the_first_are_drawn() -> None:
    page = with_metrics(*(f"metric {number}" for number in range(MAX_FIGURES + 3)))
    found = part(page, "metrics")
    assert len(found.figures) == MAX_FIGURES + 1  # and the loss
    assert found.note == f"The first {MAX_FIGURES} metrics are drawn."
    assert len(found.tables[0].rows) == MAX_FIGURES + 3


def test_a_metric_of_nothing_but_nan_is_marked() -> None:
    page = run_page(
        None, standing_of("live", None), History(metrics=(metric("nan", [np.nan, np.inf]),))
    )
    (lines,) = part(page, "metrics").figures
    assert [mark.label for mark in lines.marks] == ["NaN", "Inf"]
    assert lines.caption == "All 2 values. Marked on top: 1 × NaN, 1 × Inf, first at step 1."


def test_a_logged_training_loss_is_the_chart_of_the_loss() -> None:
    page = drawn_with(metric("train/loss", [1.0] * 200), metric("val/loss", [1.0] * 200))
    titles = [each.title for each in part(page, "metrics").figures]
    assert titles == ["Loss, logged as train/loss", "val/loss"]


def test_a_training_loss_that_was_seldom_logged_leaves_that_of_the_steps() -> None:
    page = drawn_with(metric("train_loss", [1.0, 0.9], [100, 200]))
    titles = [each.title for each in part(page, "metrics").figures]
    assert titles == ["Loss over steps", "train_loss"]


def test_a_metric_that_counts_epochs_has_an_axis_of_its_own() -> None:
    page = drawn_with(metric("a", [1.0] * 200), metric("b", [1.0] * 10))
    found = {each.title: each.axis for each in part(page, "metrics").figures}
    assert (found["a"], found["b"]) == ("steps", "logged")


def test_a_single_absurd_value_is_cut_off_and_said() -> None:
    values = [1.0 + 0.1 * (step % 7) for step in range(200)]
    values[120] = 1e12
    (_, lines) = part(drawn_with(metric("a", values)), "metrics").figures
    assert lines.y.high is not None and lines.y.high < 3
    assert lines.cut == "Cut: 1e12 at step 121 is out of the picture."


def test_a_loss_that_is_no_number_is_marked() -> None:
    values = np.linspace(2.0, 1.0, 200)
    values[150:] = np.nan
    lines = figure(page_of(with_loss(values)), "loss")
    assert [(mark.begin, mark.until) for mark in lines.marks] == [(151.0, 200.0)]
    spans = lines.spans
    assert [(span.begin, span.label) for span in spans] == [(151.0, "NON-FINITE LOSS")]


def test_segments_share_one_chart_and_have_a_table_of_their_own() -> None:
    page = with_metrics("accuracy", "accuracy[cat]", "accuracy[dog]", "f1[cat]")
    titles = [each.title for each in part(page, "metrics").figures]
    assert titles[-3:] == ["accuracy", "accuracy by segment", "f1 by segment"]
    lines = next(f for f in part(page, "metrics").figures if f.title == "accuracy by segment")
    assert [series.name for series in lines.series] == ["cat", "dog"]
    whole, segments = part(page, "metrics").tables
    assert [row.cells[0] for row in whole.rows] == ["accuracy"]
    assert [row.cells[0] for row in segments.rows] == ["accuracy[cat]", "accuracy[dog]", "f1[cat]"]


def test_segments_that_were_logged_at_other_steps_have_gaps() -> None:
    a, b = metric("acc[a]", [0.1, 0.2], [10, 30]), metric("acc[b]", [0.5], [20])
    (lines,) = [f for f in part(drawn_with(a, b), "metrics").figures if f.title == "acc by segment"]
    assert lines.at == (10.0, 20.0, 30.0)
    assert [series.values for series in lines.series] == [(0.1, None, 0.2), (None, 0.5, None)]


def test_of_many_segments_the_worst_are_drawn_and_listed() -> None:
    logged = {
        f"accuracy[{n}]": [Logged(array("q", [1, 2]), array("d", [0.5, n / 100]))]
        for n in range(100)
    }
    logged["accuracy[lost]"] = [Logged(array("q", [1]), array("d", [math.nan]))]
    drawn = [each.name for each in metric_histories(logged)]
    assert drawn[:3] == ["accuracy[lost]", "accuracy[0]", "accuracy[1]"]
    assert len(drawn) == MAX_SEGMENTS
    page = with_metrics(*(f"error[{n}]" for n in range(100)))
    table = part(page, "metrics").tables[0]
    assert len(table.rows) == MAX_SEGMENT_ROWS and table.note == "80 more are in the summary."
