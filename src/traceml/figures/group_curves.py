"""The history of a logged metric by group of runs: the mean of each group, and its range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import get_args

import numpy as np

from traceml.compare.students_t import quantile
from traceml.facts.curves_over_runs import CurveOverRuns, common_steps, curve_over_runs
from traceml.facts.metric_history import MAX_DRAWN, Floats, MetricHistory
from traceml.figures.colours import series_colour
from traceml.figures.exploration_record import Band, GroupCurves
from traceml.figures.page import Axis, Lines, Series
from traceml.figures.units import PLAIN, fitted, rounded
from traceml.figures.words import line
from traceml.model.printable import shorten_middle
from traceml.model.quantities import count

MAX_GROUPS = 8
"""As many as there are colours."""
MAX_RUNS = 96
"""Runs whose histories are read, in all groups together."""
MAX_NAME = 40
MAX_RANGES = 2
"""From more groups on the bands would cover each other: they are intervals of the means then."""

BANDS: tuple[Band, ...] = get_args(Band)
_BAND_WORDS: Mapping[Band, str] = {
    "range": "from the lowest to the highest of them",
    "interval": "the 95 % confidence interval of that mean, where there are two or more",
}


@dataclass(frozen=True, slots=True)
class GroupHistories:
    """The runs of one group."""

    label: str
    runs: int
    """How many runs there are, read or not."""
    histories: Sequence[MetricHistory]


def group_curves(
    metric: str,
    groups: Sequence[GroupHistories],
    all_groups: int,
    by: str | None,
    band: Band | None = None,
) -> GroupCurves:
    """Returns the chart; `all_groups` is how many groups there are, drawn or not. Without a `band`
    it is the one that shows most."""
    histories = [each for group in groups for each in group.histories if len(each.steps)]
    name = shorten_middle(line(metric), MAX_NAME)
    if not histories:
        return GroupCurves(
            None,
            (
                f"None of these runs kept a history of {name}: "
                f'traceml.log_metrics({{"{name}": value}}, step=step) writes one.',
            ),
        )
    at = common_steps(histories)
    curves = [curve_over_runs(group.histories, at) for group in groups]
    band = band or ("range" if len(groups) <= MAX_RANGES else "interval")
    bands = [_band(curve, band) for curve in curves]
    series = tuple(
        Series(
            f"{group.label} ({count(curve.runs, 'run')})",
            series_colour(number),
            rounded(curve.mean),
            low=rounded(low),
            high=rounded(high),
        )
        for number, (group, curve, (low, high)) in enumerate(
            zip(groups, curves, bands, strict=True)
        )
    )
    lines = Lines(
        id="group-curves",
        title=f"{name} over steps" + (f", by {by}" if by else ""),
        x=Axis("logged step"),
        y=fitted(name, PLAIN, *(curve.mean for curve in curves), *chain.from_iterable(bands)),
        at=tuple(at.tolist()),
        series=series,
        caption=f"Each line is the mean over the runs of a group, the band {_BAND_WORDS[band]}. A "
        "run counts from its first to its last logged step.",
        axis="logged",
        is_curve=True,
        band=None if band == "range" else "95 % interval",
    )
    return GroupCurves(lines, tuple(_left_out(groups, all_groups)), band)


def _band(curve: CurveOverRuns, band: Band) -> tuple[Floats, Floats]:
    """Returns the lower and the upper edge."""
    if band == "range":
        return curve.low, curve.high
    factors = {each: quantile(each - 1) / math.sqrt(each) for each in set(curve.counts) if each > 1}
    half = curve.spread * [factors.get(each, math.nan) for each in curve.counts]
    low, high = curve.mean - half, curve.mean + half
    is_drawn = np.abs(low) + np.abs(high) <= MAX_DRAWN
    return np.where(is_drawn, low, np.nan), np.where(is_drawn, high, np.nan)


def _left_out(groups: Sequence[GroupHistories], all_groups: int) -> list[str]:
    said = []
    if all_groups > len(groups):
        said.append(f"The {len(groups)} largest of {count(all_groups)} groups are drawn.")
    read = sum(len(group.histories) for group in groups)
    runs = sum(group.runs for group in groups)
    if runs > read:
        said.append(f"Read from the {count(read)} newest of their {count(runs, 'run')}.")
    without = sum(not len(each.steps) for group in groups for each in group.histories)
    if without:
        said.append(f"{count(without, 'run')} kept no history of it.")
    bad = sum(
        stretch.count
        for group in groups
        for history in group.histories
        for stretch in history.stretches
    )
    if bad:
        said.append(f"{count(bad)} values that are NaN, infinite or beyond ±1e300 are not drawn.")
    return said
