"""Curves of several runs in one chart: logged metrics, and the loss that was traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceml.facts.history import History
from traceml.facts.metric_history import MetricHistory, is_training_loss
from traceml.figures import charts_over_ranks
from traceml.figures.charts_over_ranks import is_measured, measured_columns
from traceml.figures.charts_over_steps import only_columns, steps_at
from traceml.figures.compared_run import ComparedRun, is_dashed, run_colour
from traceml.figures.head import steps_taken
from traceml.figures.metrics import SAME_STEPS, fit_axis, marks_of, metric_id
from traceml.figures.page import Axis, Lines, Mark, Part, Series, StepAxis
from traceml.figures.units import PLAIN, Floats, rounded, scaled
from traceml.figures.words import line
from traceml.model.quantities import count

MAX_WORDS = 60
MAX_BANDS = 3
"""Runs whose ranges of values are drawn behind their curves; more would cover each other."""
MAX_FURTHER = 2000
"""Names of further metrics that readers may choose from."""

_NO_HISTORY = History()


def curves_part(
    runs: Sequence[ComparedRun], names: Sequence[str], further: Sequence[str] = ()
) -> Part | None:
    """Returns the curves of these metrics, each with all runs that have it; `None` without any.

    `further` are metrics that were logged and are not drawn here.
    """
    figures = tuple(overlays(runs, names))
    if not figures and not further:
        return None
    left = f"{count(len(further))} more logged metrics are not drawn." if further else None
    return Part(
        id="curves",
        title="Curves",
        note=left,
        figures=figures,
        is_wide=True,
        further_curves=tuple(further[:MAX_FURTHER]),
    )


def overlays(runs: Sequence[ComparedRun], names: Sequence[str]) -> Iterator[Lines]:
    """Yields the chart of the traced loss, unless every run logged one that is drawn, and those of
    the metrics."""
    if not all(_logs_loss(run, names) for run in runs):
        loss = _loss(runs)
        if loss is not None:
            yield loss
    for name in names:
        found = {
            place: metric
            for place, run in enumerate(runs)
            for metric in run.metrics
            if metric.name == name and (is_measured(metric.values) or metric.stretches)
        }
        if found:
            yield _metric(name, runs, found)


def _logs_loss(run: ComparedRun, names: Sequence[str]) -> bool:
    return any(is_training_loss(metric.name) and metric.name in names for metric in run.metrics)


def _metric(name: str, runs: Sequence[ComparedRun], found: Mapping[int, MetricHistory]) -> Lines:
    words = line(name, MAX_WORDS)
    every = list(found.values())
    y, cut = fit_axis(
        words,
        np.concatenate([metric.steps for metric in every]),
        np.concatenate([metric.low for metric in every]),
        np.concatenate([metric.high for metric in every]),
    )
    axis = _axis(runs, found)
    said = [_missing(runs, found), _thinned(every, len(found) <= MAX_BANDS)]
    return Lines(
        id=metric_id(name),
        title=words,
        x=_reach(axis, [metric.steps.astype(np.float64) for metric in every]),
        y=y,
        at=_longest([metric.steps.astype(np.float64) for metric in every]),
        series=tuple(
            _series(place, runs, metric, len(found) <= MAX_BANDS) for place, metric in found.items()
        ),
        caption=" ".join(filter(None, said)) or None,
        zooms=True,
        axis=axis,
        marks=tuple(_marks(runs, found)),
        cut=cut,
        is_curve=True,
    )


def _series(
    place: int, runs: Sequence[ComparedRun], metric: MetricHistory, has_band: bool
) -> Series:
    band = (rounded(metric.low), rounded(metric.high))
    low, high = band if has_band and metric.is_thinned else (None, None)
    return Series(
        runs[place].words,
        run_colour(place, len(runs)),
        rounded(metric.values),
        dashed=is_dashed(place),
        low=low,
        high=high,
        at=tuple(metric.steps.astype(np.float64).tolist()),
    )


def _marks(runs: Sequence[ComparedRun], found: Mapping[int, MetricHistory]) -> Iterator[Mark]:
    for place, metric in found.items():
        for mark in marks_of(metric.stretches):
            yield Mark(mark.begin, mark.until, f"{runs[place].label}: {mark.label}")


def _missing(runs: Sequence[ComparedRun], found: Mapping[int, MetricHistory]) -> str:
    """Returns which runs did not log a metric."""
    without = [run.label for place, run in enumerate(runs) if place not in found]
    return f"Not logged in {', '.join(without)}." if without else ""


def _thinned(metrics: Sequence[MetricHistory], has_bands: bool) -> str:
    """Returns how many values a point stands for, where it is more than one."""
    most = max(round(metric.logged / max(1, len(metric.steps))) for metric in metrics)
    if most < 2:
        return ""
    band = ", the bands from the lowest to the highest" if has_bands else ""
    return f"Up to {count(most)} values a point: the lines are their means{band}."


def _axis(runs: Sequence[ComparedRun], found: Mapping[int, MetricHistory]) -> StepAxis:
    """Returns whose steps a metric counts: those that were traced, if it does so in most runs."""
    counted = sum(
        _counts_steps(metric, steps_taken(runs[place].summary, _NO_HISTORY))
        for place, metric in found.items()
    )
    return "steps" if 2 * counted >= len(found) else "logged"


def _counts_steps(metric: MetricHistory, taken: int | None) -> bool:
    if not taken or not len(metric.steps):
        return False
    least, most = SAME_STEPS
    return bool(least * taken <= metric.steps[-1] <= most * taken + 1)


def _loss(runs: Sequence[ComparedRun]) -> Lines | None:
    """Returns the traced loss of all runs, of several ranks their mean; `None` without any."""
    series: list[Series] = []
    curves: list[tuple[Floats, Floats]] = []
    for place, run in enumerate(runs):
        if run.steps is None or not is_measured(run.steps.loss):
            continue
        steps = only_columns(run.steps, measured_columns(run.steps.loss))
        values = charts_over_ranks.mean(steps.loss)
        at = steps_at(steps)
        curves.append((np.array(at), values))
        series.append(
            Series(
                run.words,
                run_colour(place, len(runs)),
                scaled(values, PLAIN),
                dashed=is_dashed(place),
                at=at,
            )
        )
    if not series:
        return None
    numbers = np.concatenate([at for at, _ in curves]).astype(np.int64)
    y, cut = fit_axis("loss", numbers, np.concatenate([values for _, values in curves]))
    return Lines(
        id="loss",
        title="Loss over steps",
        x=_reach("steps", [at for at, _ in curves]),
        y=y,
        at=_longest([at for at, _ in curves]),
        series=tuple(series),
        caption="The last value seen in each group of steps; of several ranks their mean.",
        zooms=True,
        cut=cut,
        is_curve=True,
    )


def _reach(axis: StepAxis, curves: Sequence[Floats]) -> Axis:
    """Returns the horizontal axis that holds the curves of all runs."""
    label = "step" if axis == "steps" else "logged step"
    known = [at for at in curves if len(at)]
    if not known:
        return Axis(label)
    return Axis(
        label,
        low=float(min(at[0] for at in known)),
        high=float(max(at[-1] for at in known)),
    )


def _longest(curves: Sequence[Floats]) -> tuple[float, ...]:
    return tuple(max(curves, key=len).tolist())
