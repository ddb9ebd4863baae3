"""The part of the page on learning: the loss, and the metrics that the script logged."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from traceml.facts.history import History, StepHistory
from traceml.facts.loss_values import LossScale
from traceml.facts.metric_history import MetricHistory, Stretch
from traceml.figures import charts_over_ranks
from traceml.figures.charts_over_ranks import held, is_measured, measured_columns
from traceml.figures.charts_over_steps import STEPS, each_point, only_columns, step_spans, steps_at
from traceml.figures.colours import series_colour
from traceml.figures.page import Axis, Figure, Lines, Mark, Part, Row, Series, Span, StepAxis, Table
from traceml.figures.segment_charts import (
    SEGMENT_TABLE,
    left_out_words,
    segment_of,
    values_at,
    worst_segments,
)
from traceml.figures.units import PLAIN, Floats, fitted, next_round, rounded, scaled
from traceml.figures.words import cell, line
from traceml.model.finding import Section
from traceml.model.metric_segments import segments_by_metric, split_segment
from traceml.model.quantities import NOT_MEASURED, count, significant
from traceml.summaries.record import MetricSummary, Summary

MAX_FIGURES = 50
"""Charts of logged metrics; the table has more of them."""
MAX_ROWS = 200
MAX_WORDS = 60
MIN_LOSSES = 50
MIN_LOSS_SHARE = 0.1
"""A training loss that the script logs takes the place of the one that was read from its steps if
it has so many values, or one in so many steps."""
SAME_STEPS = (0.4, 1.02)
"""A script counts the steps that were traced where its last step is this share of their number."""
USUAL_QUANTILE = 0.95
CUT_TIMES = 1e4
"""A value this many times as far from the median as nearly all others would flatten the curve."""
MIN_TO_CUT = 10

_LOSS = "loss"


def metrics_part(summary: Summary | None, history: History) -> Part | None:
    """Returns charts and a table; `None` without a loss and logged metrics."""
    figures = metric_figures(summary, history)
    tables = () if summary is None else tuple(_tables(summary.metrics))
    if not figures and not tables:
        return None
    hidden = len(_whole(history)) - MAX_FIGURES
    return Part(
        id="metrics",
        title="Loss and metrics" if history.metrics or tables else "Loss",
        note=f"The first {MAX_FIGURES} metrics are drawn." if hidden > 0 else None,
        figures=figures,
        tables=tables,
        is_wide=len(figures) > 1,
    )


def metric_figures(
    summary: Summary | None, history: History, whole: History | None = None
) -> tuple[Figure, ...]:
    """Returns the chart of the loss and those of logged metrics.

    For a range of steps, `whole` is the history of the run: which charts there are, and whose steps
    they count, is decided by it.
    """
    return tuple(_figures(summary, history, whole or history))


def _figures(summary: Summary | None, history: History, whole: History) -> Iterator[Figure]:
    drawn = {metric.name: metric for metric in history.metrics}
    logged_loss = _logged_loss(whole)
    if logged_loss is None and history.steps is not None:
        loss = loss_lines(history.steps, summary)
        if loss is not None:
            yield loss
    for number, metric in enumerate(_whole(whole)[:MAX_FIGURES]):
        found = drawn.get(metric.name)
        if found is None or not len(found.steps):
            continue
        if not (is_measured(found.values) or found.stretches):
            continue
        axis = _axis_of(metric, whole.steps)
        lines = metric_lines(found, number, axis, summary, whole.steps)
        yield _as_loss(lines, history.steps, summary) if metric is logged_loss else lines
    yield from _segment_figures(summary, drawn, whole)


def _whole(history: History) -> list[MetricHistory]:
    """Returns the metrics that are not of a segment."""
    return [metric for metric in history.metrics if split_segment(metric.name) is None]


def _segment_figures(
    summary: Summary | None, drawn: Mapping[str, MetricHistory], whole: History
) -> Iterator[Figure]:
    """Yields a chart for each metric with segments, which has a line for each of them."""
    histories = {metric.name: metric for metric in whole.metrics}
    for metric, names in segments_by_metric(histories).items():
        found = [drawn[name] for name in names if name in drawn]
        known = [each for each in found if len(each.steps) and is_measured(each.values)]
        if known:
            axis = _axis_of(histories[names[0]], whole.steps)
            yield segment_lines(metric, known, axis, summary, whole.steps)


def segment_lines(
    metric: str,
    segments: Sequence[MetricHistory],
    axis: StepAxis,
    summary: Summary | None,
    steps: StepHistory | None,
) -> Lines:
    """Returns the chart of a metric with a line for each of these segments."""
    name = line(metric, MAX_WORDS)
    at: npt.NDArray[np.int64] = np.unique(np.concatenate([each.steps for each in segments]))
    values = [values_at(each, at) for each in segments]
    y, cut = fit_axis(name, at, *values)
    return Lines(
        id=f"segments-{zlib.crc32(metric.encode(errors='replace')):08x}",
        title=f"{name} by segment",
        x=_steps_axis(_steps_taken(steps)) if axis == "steps" else Axis("logged step"),
        y=y,
        at=tuple(at.astype(np.float64).tolist()),
        series=tuple(
            Series(line(segment_of(each.name), MAX_WORDS), series_colour(number), rounded(found))
            for number, (each, found) in enumerate(zip(segments, values, strict=True))
        ),
        caption=left_out_words(metric, len(segments), summary),
        zooms=True,
        axis=axis,
        cut=cut,
        is_curve=True,
    )


def _logged_loss(whole: History) -> MetricHistory | None:
    """Returns the training loss that the script logged, if it is drawn instead of the traced
    one."""
    taken = _steps_taken(whole.steps)
    for metric in _whole(whole):
        if metric.is_training_loss and is_measured(metric.values):
            enough = min(MIN_LOSSES, MIN_LOSS_SHARE * (taken or 0))
            return metric if metric.logged >= enough else None
    return None


def _as_loss(lines: Lines, steps: StepHistory | None, summary: Summary | None) -> Lines:
    """Returns the chart of a logged training loss as the chart of the loss, with its findings."""
    spans: tuple[Span, ...] = ()
    if steps is not None and lines.axis == "steps":
        spans = step_spans(steps, summary, (Section.STABILITY.value,))
    return structs.replace(lines, id=_LOSS, title=f"Loss, logged as {lines.title}", spans=spans)


def loss_lines(steps: StepHistory, summary: Summary | None) -> Lines | None:
    """Returns the loss over steps; for several ranks their mean, with the range of all ranks."""
    if not is_measured(steps.loss) and not steps.bad_losses:
        return None
    chosen = measured_columns(steps.loss)
    chosen[-1] = True  # a loss that is NaN has no point: the axis still has to reach its mark
    last_step = _steps_taken(steps)
    steps = only_columns(steps, chosen)
    colour = series_colour(0)
    if len(steps.ranks) == 1:
        series = Series("Loss", colour, scaled(steps.loss[0], PLAIN))
    else:
        loss = held(steps.loss)
        series = Series(
            "Mean over ranks",
            colour,
            scaled(charts_over_ranks.mean(loss), PLAIN),
            low=scaled(charts_over_ranks.lowest(loss), PLAIN),
            high=scaled(charts_over_ranks.highest(loss), PLAIN),
        )
    y, cut = fit_axis(
        "loss",
        steps.first_steps,
        charts_over_ranks.lowest(steps.loss),
        charts_over_ranks.highest(steps.loss),
    )
    caption = [_loss_caption(steps, each_point(steps)), bad_words(steps.bad_losses)]
    return Lines(
        id=_LOSS,
        title="Loss over steps",
        x=_steps_axis(last_step),
        y=y,
        at=steps_at(steps),
        series=(series,),
        spans=step_spans(steps, summary, (Section.STABILITY.value,)),
        caption=" ".join(filter(None, caption)) or None,
        zooms=True,
        marks=marks_of(steps.bad_losses),
        cut=cut,
        is_curve=True,
    )


def _loss_caption(steps: StepHistory, point: str | None) -> str | None:
    parts = [f"The last value seen, {point}." if point else ""]
    if len(steps.ranks) > 1:
        parts.append(
            "The line is the mean over the ranks, the band from the lowest to the highest."
        )
    if steps.loss_scale is LossScale.DIVIDED:
        parts.append("Multiplied by each step's micro-batches: the script seems to divide by them.")
    return " ".join(filter(None, parts)) or None


def metric_lines(
    metric: MetricHistory,
    number: int,
    axis: StepAxis,
    summary: Summary | None,
    steps: StepHistory | None,
) -> Lines:
    """Returns the chart of a logged metric."""
    name = line(metric.name, MAX_WORDS)
    y, cut = fit_axis(name, metric.steps, metric.low, metric.high)
    band = (rounded(metric.low), rounded(metric.high)) if metric.is_thinned else (None, None)
    said = [_drawn_words(metric, summary), bad_words(metric.stretches)]
    return Lines(
        id=metric_id(metric.name),
        title=name,
        x=_steps_axis(_steps_taken(steps)) if axis == "steps" else Axis("logged step"),
        y=y,
        at=tuple(metric.steps.astype(np.float64).tolist()),
        series=(
            Series(name, series_colour(number), rounded(metric.values), low=band[0], high=band[1]),
        ),
        caption=" ".join(filter(None, said)),
        zooms=True,
        axis=axis,
        marks=marks_of(metric.stretches),
        cut=cut,
        is_curve=True,
    )


def metric_id(name: str) -> str:
    """Returns the id of a metric's chart, which any name can have."""
    return f"metric-{zlib.crc32(name.encode(errors='replace')):08x}"


def _drawn_words(metric: MetricHistory, summary: Summary | None) -> str:
    """Returns in words what is drawn: all values, or how many of them a point stands for."""
    known = None if summary is None else summary.metrics.get(metric.name)
    kept = ""
    if known is not None and known.count > metric.logged:
        kept = f" of {count(known.count)}"
    if not metric.is_thinned:
        return (
            f"{count(metric.logged)}{kept} values."
            if kept
            else f"All {count(metric.logged)} values."
        )
    each = round(metric.logged / len(metric.steps))
    return (
        f"{count(metric.logged)}{kept} values, {count(each)} a point: the line is their mean, the "
        "band from the lowest to the highest."
    )


def bad_words(stretches: Sequence[Stretch]) -> str:
    """Returns how many values cannot be drawn, and where the first of them is."""
    if not stretches:
        return ""
    counts = Counter[str]()
    for stretch in stretches:
        counts[stretch.kind] += stretch.count
    kinds = ", ".join(f"{count(number)} × {kind}" for kind, number in counts.items())
    return f"Marked on top: {kinds}, first at step {count(stretches[0].first_step)}."


def marks_of(stretches: Sequence[Stretch]) -> tuple[Mark, ...]:
    """Returns where values cannot be drawn, and what they are."""
    return tuple(
        Mark(
            float(stretch.first_step),
            float(stretch.last_step),
            stretch.kind if stretch.count == 1 else f"{count(stretch.count)} × {stretch.kind}",
        )
        for stretch in stretches
    )


def _axis_of(metric: MetricHistory, steps: StepHistory | None) -> StepAxis:
    """Returns whose steps a metric counts, judged by its last one."""
    taken = _steps_taken(steps)
    if taken is None or not len(metric.steps):
        return "logged"
    least, most = SAME_STEPS
    return "steps" if least * taken <= metric.steps[-1] <= most * taken + 1 else "logged"


def _steps_taken(steps: StepHistory | None) -> int | None:
    if steps is None or not len(steps.first_steps):
        return None
    return int(steps.first_steps[-1]) + steps.bucket_steps - 1


def _steps_axis(last_step: int | None) -> Axis:
    """Returns the axis of steps from the first to the last, so that charts line up."""
    return STEPS if last_step is None else Axis("step", low=1.0, high=float(last_step))


def fit_axis(label: str, steps: npt.NDArray[np.int64], *tables: Floats) -> tuple[Axis, str | None]:
    """Returns an axis without single values that would flatten all others, and what was cut."""
    values = np.concatenate([np.ravel(table) for table in tables])
    known = values[np.isfinite(values)]
    if len(known) < MIN_TO_CUT:
        return _with_top(label, known), None
    middle = float(np.median(known))
    far = np.abs(known - middle)
    usual = float(np.quantile(far, USUAL_QUANTILE))
    if usual == 0 or far.max() <= CUT_TIMES * usual:
        return _with_top(label, known), None
    furthest = int(np.nanargmax(np.abs(values - middle)))
    at = count(int(steps[furthest % len(steps)]))
    return (
        _with_top(label, known[far <= CUT_TIMES * usual]),
        f"Cut: {significant(float(values[furthest]))} at step {at} is out of the picture.",
    )


def _with_top(label: str, known: Floats) -> Axis:
    """Returns an axis that holds all these values: the browser would fit it to the means alone."""
    axis = fitted(label, PLAIN, known)
    if axis.high is not None or not len(known) or not known.max() > 0:
        return axis
    return structs.replace(axis, high=next_round(float(known.max())))


def _tables(metrics: Mapping[str, MetricSummary]) -> Iterator[Table]:
    whole = {name: found for name, found in metrics.items() if split_segment(name) is None}
    segments = worst_segments(metrics)
    for id_, title, shown, known in (
        ("metric-table", "Logged metrics", list(whole)[:MAX_ROWS], len(whole)),
        ("segment-table", SEGMENT_TABLE, segments, len(metrics) - len(whole)),
    ):
        if shown:
            hidden = known - len(shown)
            yield Table(
                id=id_,
                title=title,
                columns=("Metric", "Last", "Min", "Max", "Mean", "Values", "Steps"),
                rows=tuple(_row(name, metrics[name]) for name in shown),
                note=f"{count(hidden)} more are in the summary." if hidden > 0 else None,
            )


def _row(name: str, found: MetricSummary) -> Row:
    values = map(significant, (found.last, found.min, found.max, found.mean))
    return Row((cell(name), *values, count(found.count), _steps(found)))


def _steps(found: MetricSummary) -> str:
    if found.first_step is None or found.last_step is None:
        return NOT_MEASURED
    return f"{count(found.first_step)} to {count(found.last_step)}"
