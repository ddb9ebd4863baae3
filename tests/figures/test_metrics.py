"""Loss and metrics: a curve each, and a table of them all."""

from dataclasses import replace

import numpy as np

from drawn_runs import figure, history_of, page_of, part, standing_of
from factories import make_run
from failing import with_loss
from traceml.facts.history import History, MetricHistory
from traceml.figures.metrics import MAX_FIGURES
from traceml.figures.page import RunPage
from traceml.figures.run_page import run_page
from traceml.store.records import LoggedMetric
from traceml.summaries.build import build


def with_metrics(*names: str) -> RunPage:
    run = replace(
        make_run(),
        metrics=tuple(LoggedMetric(name, 2, 0.5, 0.5, 1.5, 1.0, 10, 20) for name in names),
    )
    history = history_of(run)
    drawn = tuple(
        MetricHistory(name, np.array([10, 20]), np.array([1.5, 0.123456])) for name in names
    )
    return run_page(build(run, 0.0, "0"), standing_of(), replace(history, metrics=drawn))


def test_the_loss_of_one_rank_is_one_curve() -> None:
    lines = figure(page_of(make_run()), "loss")
    assert [series.name for series in lines.series] == ["Loss"]
    assert (lines.y.low, lines.zooms) == (0.0, True)


def test_the_losses_of_several_ranks_are_their_mean_and_extremes() -> None:
    lines = figure(page_of(make_run(ranks=4)), "loss")
    assert [series.name for series in lines.series] == [
        "Mean over ranks",
        "Highest rank",
        "Lowest rank",
    ]
    assert [series.dashed for series in lines.series] == [False, True, True]


def test_every_logged_metric_has_its_curve_and_its_row() -> None:
    page = with_metrics("train/loss", "val\naccuracy")
    lines = figure(page, "metric-1")
    assert (lines.title, lines.at, lines.series[0].values) == (
        "val accuracy",
        (10.0, 20.0),
        (1.5, 0.1235),
    )
    (table,) = part(page, "metrics").tables
    assert table.rows[0].cells == ("train/loss", "0.5", "0.5", "1.5", "1", "2, steps 10 to 20")


def test_of_very_many_metrics_the_first_are_drawn() -> None:
    page = with_metrics(*(f"metric {number}" for number in range(MAX_FIGURES + 3)))
    found = part(page, "metrics")
    assert len(found.figures) == MAX_FIGURES + 1  # and the loss
    assert found.note == f"The first {MAX_FIGURES} metrics are drawn."
    assert len(found.tables[0].rows) == MAX_FIGURES + 3


def test_a_metric_of_nothing_but_nan_is_left_out() -> None:
    metric = MetricHistory("nan", np.array([1, 2]), np.array([np.nan, np.inf]))
    page = run_page(None, standing_of("live", None), History(metrics=(metric,)))
    assert page.parts == () or "metrics" not in [found.id for found in page.parts]


def test_a_loss_that_is_no_number_is_marked() -> None:
    values = np.linspace(2.0, 1.0, 200)
    values[150:] = np.nan
    spans = figure(page_of(with_loss(values)), "loss").spans
    assert [(span.begin, span.label) for span in spans] == [(151.0, "NON-FINITE LOSS")]
