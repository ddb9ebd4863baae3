"""Which segments of logged metrics are shown, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from traceml.facts.metric_history import MetricHistory
from traceml.figures.units import Floats
from traceml.model.metric_direction import badness, direction_of
from traceml.model.metric_segments import metric_of, segments_by_metric, split_segment
from traceml.model.quantities import count
from traceml.summaries.record import MetricSummary, Summary

MAX_METRICS = 12
"""Metrics whose segments are in the table."""
MAX_ROWS = 20
"""Segments of one metric in the table."""
SEGMENT_TABLE = "Logged metrics by segment, the worst last values first"


def worst_segments(metrics: Mapping[str, MetricSummary]) -> list[str]:
    """Returns the segments with the worst last values, metric by metric; without a direction they
    are as the summary has them."""
    shown: list[str] = []
    for metric, names in list(segments_by_metric(metrics).items())[:MAX_METRICS]:
        is_up = direction_of(metric, metrics[names[0]].higher_is_better).higher_is_better
        worst = {name: badness(metrics[name].last, is_up) for name in names}
        shown += sorted(names, key=worst.__getitem__)[:MAX_ROWS]
    return shown


def left_out_words(metric: str, drawn: int, summary: Summary | None) -> str | None:
    """Returns how many segments of a metric are not drawn, in words; `None` where all are."""
    if summary is None:
        return None
    known = sum(1 for name in summary.metrics if metric_of(name) == metric != name)
    if known <= drawn:
        return None
    return f"The {drawn} worst of {count(known, 'segment')}, by their last values."


def segment_of(name: str) -> str:
    """Returns what a segment is called: `cat` of `accuracy[cat]`."""
    found = split_segment(name)
    return name if found is None else found.segment


def values_at(metric: MetricHistory, at: npt.NDArray[np.int64]) -> Floats:
    """Returns a metric's values at these steps; NaN where it has none."""
    values = np.full(len(at), np.nan)
    values[np.searchsorted(at, metric.steps)] = metric.values
    return values
