"""The history of a logged metric by group of runs: the mean of each group, and its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceml.facts.curves_over_runs import common_steps, curve_over_runs
from traceml.facts.metric_history import MetricHistory
from traceml.figures.colours import series_colour
from traceml.figures.exploration_record import GroupCurves
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


@dataclass(frozen=True, slots=True)
class GroupHistories:
    """The runs of one group."""

    label: str
    runs: int
    """How many runs there are, read or not."""
    histories: Sequence[MetricHistory]


def group_curves(
    metric: str, groups: Sequence[GroupHistories], all_groups: int, by: str | None
) -> GroupCurves:
    """Returns the chart; `all_groups` is how many groups there are, drawn or not."""
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
    series = tuple(
        Series(
            f"{group.label} ({count(curve.runs, 'run')})",
            series_colour(number),
            rounded(curve.mean),
            low=rounded(curve.low),
            high=rounded(curve.high),
        )
        for number, (group, curve) in enumerate(zip(groups, curves, strict=True))
    )
    lines = Lines(
        id="group-curves",
        title=f"{name} over steps" + (f", by {by}" if by else ""),
        x=Axis("logged step"),
        y=fitted(name, PLAIN, *(curve.low for curve in curves), *(curve.high for curve in curves)),
        at=tuple(at.tolist()),
        series=series,
        caption="Each line is the mean over the runs of a group, the band from the lowest to the "
        "highest of them. A run counts from its first to its last logged step.",
        axis="logged",
        is_curve=True,
    )
    return GroupCurves(lines, tuple(_left_out(groups, all_groups)))


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
