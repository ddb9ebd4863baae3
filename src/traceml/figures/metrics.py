"""The part of the page on learning: the loss, and the metrics that the script logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from traceml.facts.history import History, MetricHistory, StepHistory
from traceml.facts.loss_values import LossScale
from traceml.figures import over_ranks
from traceml.figures.colours import LEAST, series_colour
from traceml.figures.over_ranks import held, is_measured, measured_columns
from traceml.figures.over_steps import STEPS, each_point, only_columns, step_spans, steps_at
from traceml.figures.page import Figure, Lines, Part, Row, Series, Table
from traceml.figures.units import PLAIN, fitted, rounded, scaled
from traceml.figures.words import cell, line
from traceml.model.finding import Section
from traceml.model.quantities import count, significant
from traceml.summaries.record import MetricSummary, Summary

MAX_FIGURES = 12
"""Charts of logged metrics; the table has all of them."""
MAX_ROWS = 50
MAX_WORDS = 60


def metrics_part(summary: Summary | None, history: History) -> Part | None:
    """Returns charts and a table; `None` without a loss and logged metrics."""
    figures = tuple(_figures(summary, history))
    tables = () if summary is None or not summary.metrics else (_table(summary.metrics),)
    if not figures and not tables:
        return None
    hidden = len(history.metrics) - MAX_FIGURES
    return Part(
        id="metrics",
        title="Loss and metrics" if history.metrics or tables else "Loss",
        note=f"The first {MAX_FIGURES} metrics are drawn." if hidden > 0 else None,
        figures=figures,
        tables=tables,
    )


def loss_lines(steps: StepHistory, summary: Summary | None) -> Lines | None:
    """Returns the loss over steps; for several ranks their mean, highest and lowest."""
    if not is_measured(steps.loss):
        return None
    chosen = measured_columns(steps.loss)
    chosen[-1] = True  # a loss that is NaN has no point: the axis still has to reach its mark
    steps = only_columns(steps, chosen)
    colour = series_colour(0)
    if len(steps.ranks) == 1:
        series = [Series("Loss", colour, scaled(steps.loss[0], PLAIN))]
    else:
        loss = held(steps.loss)
        low, high = over_ranks.lowest(loss), over_ranks.highest(loss)
        series = [
            Series("Mean over ranks", colour, scaled(over_ranks.mean(loss), PLAIN)),
            Series("Highest rank", LEAST, scaled(high, PLAIN), dashed=True),
            Series("Lowest rank", LEAST, scaled(low, PLAIN), dashed=True),
        ]
    return Lines(
        id="loss",
        title="Loss over steps",
        x=STEPS,
        y=fitted("loss", PLAIN, steps.loss),
        at=steps_at(steps),
        series=tuple(series),
        spans=step_spans(steps, summary, (Section.STABILITY.value,)),
        caption=_loss_caption(steps, each_point(steps)),
        zooms=True,
    )


def _loss_caption(steps: StepHistory, point: str | None) -> str | None:
    parts = [f"The last value seen, {point}." if point else ""]
    if steps.loss_scale is LossScale.DIVIDED:
        parts.append("Multiplied by each step's micro-batches: the script seems to divide by them.")
    return " ".join(filter(None, parts)) or None


def _figures(summary: Summary | None, history: History) -> Iterator[Figure]:
    loss = None if history.steps is None else loss_lines(history.steps, summary)
    if loss is not None:
        yield loss
    for number, metric in enumerate(history.metrics[:MAX_FIGURES]):
        if len(metric.steps) and is_measured(metric.values):
            yield _metric_lines(number, metric)


def _metric_lines(number: int, metric: MetricHistory) -> Lines:
    name = line(metric.name, MAX_WORDS)
    return Lines(
        id=f"metric-{number}",
        title=name,
        x=STEPS,
        y=fitted(name, PLAIN, metric.values),
        at=tuple(metric.steps.astype(np.float64).tolist()),
        series=(Series(name, series_colour(number), rounded(metric.values)),),
    )


def _table(metrics: Mapping[str, MetricSummary]) -> Table:
    rows = tuple(
        Row(
            (
                cell(name),
                *map(significant, (found.last, found.min, found.max, found.mean)),
                _steps(found),
            )
        )
        for name, found in list(metrics.items())[:MAX_ROWS]
    )
    hidden = len(metrics) - MAX_ROWS
    return Table(
        id="metric-table",
        title="Logged metrics",
        columns=("Metric", "Last", "Min", "Max", "Mean", "Values"),
        rows=rows,
        note=f"{count(hidden)} more are in the summary." if hidden > 0 else None,
    )


def _steps(found: MetricSummary) -> str:
    values = count(found.count)
    if found.first_step is None or found.last_step is None:
        return values
    return f"{values}, steps {count(found.first_step)} to {count(found.last_step)}"
