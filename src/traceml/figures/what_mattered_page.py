"""What mattered, as figures: importance, correlation, the metric along and over parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from traceml.compare.importance_record import Estimate, ParameterImportance, ValueBin, WhatMattered
from traceml.compare.metric_surface import MetricSurface, surface_of
from traceml.compare.parameter_columns import Column, RunSettings, settings_of
from traceml.compare.parameter_groups import Params
from traceml.compare.value_bins import bins_of, grid_of
from traceml.figures.estimates import estimates_of
from traceml.figures.exploration_record import (
    Contour,
    EstimateRow,
    Estimates,
    ValueGrid,
    ValueGridCell,
    WhatMatteredPage,
)
from traceml.figures.explored_columns import MAX_LABEL, category_label
from traceml.figures.page import Axis
from traceml.figures.units import rounded
from traceml.figures.words import line
from traceml.model.printable import shorten_middle
from traceml.model.quantities import count, significant
from traceml.store.query_language import written_name
from traceml.store.query_names import written_key

MAX_ROWS = 12
"""Parameters in the bars of importance and correlation."""
MAX_ALONG = 6
MAX_GRID_BINS = 8
MAX_POINTS = 2000
"""Runs that are drawn on a contour."""
LEVELS = 8


def what_mattered_page(
    found: WhatMattered,
    params: Sequence[Params],
    values: Sequence[float | None],
    metric: str,
    asked: tuple[str | None, str | None] = (None, None),
    notes: Sequence[str] = (),
) -> WhatMatteredPage:
    """Returns the figures of what was found of runs with these parameters and values of the metric.

    `metric` is the key of its column; `asked` are the two parameters of the grid, down and across,
    as far as somebody chose them.
    """
    used = [
        (run, value)
        for run, value in zip(params, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    settings = settings_of([run for run, _ in used], [value for _, value in used])
    pair = _pair(found, settings, asked)
    return WhatMatteredPage(
        metric=written_key(metric),
        title=f"What mattered for {_name(found.metric)}",
        down=written_name("params", pair[0].name) if pair else None,
        across=written_name("params", pair[1].name) if pair else None,
        importance=importance_figure(found),
        correlation=_correlation(found),
        along=tuple(_along(each, found) for each in found.parameters[:MAX_ALONG] if each.bins),
        grid=_grid(*pair, settings, found) if pair else None,
        contour=_contour(*pair, settings, found) if pair else None,
        warnings=tuple(_sentence(each) for each in found.warnings),
        notes=(*notes, *_used(found), *_left_out(found)),
    )


def _name(name: str) -> str:
    return shorten_middle(line(name), MAX_LABEL)


def _sentence(warning: str) -> str:
    words = line(warning)
    return words[:1].upper() + words[1:] + "."


def _used(found: WhatMattered) -> list[str]:
    said = f"{count(found.runs, 'run')} in {count(found.settings, 'setting')}"
    if found.runs_without_metric:
        said += f"; {count(found.runs_without_metric)} without a finite value are left out"
    return [f"{said}. Runs that differ in seed or fold alone are one setting."]


def _left_out(found: WhatMattered) -> list[str]:
    unlike = [each for each in found.left_out if "only name" in each.why]
    if not unlike:
        return []
    names = ", ".join(_name(each.name) for each in unlike[:MAX_ALONG])
    return [f"Left out, because their values only name the runs: {names}."]


def importance_figure(found: WhatMattered) -> Estimates | None:
    """Returns the importance by the forest with its uncertainty; `None` without a forest."""
    if found.forest is None:
        return None
    rows = [
        _estimate_row(each.name, each.forest, _together(each))
        for each in found.parameters
        if each.forest is not None
    ]
    if not rows:
        return None
    explained = f"{max(0.0, found.forest.explained):.0%}"
    return estimates_of(
        "importance",
        "Importance",
        "importance",
        rows[:MAX_ROWS],
        "By how much less of the variation a random forest predicts when the parameter is "
        f"shuffled, with its 95 % confidence interval. It explains {explained} in settings that it "
        f"has not seen.{_more(len(rows))}",
    )


def _more(rows: int) -> str:
    return f" The first {MAX_ROWS} of {rows} parameters." if rows > MAX_ROWS else ""


def _together(found: ParameterImportance) -> str | None:
    if not found.together_with:
        return None
    return "varies together with " + ", ".join(_name(each) for each in found.together_with[:3])


def _estimate_row(name: str, found: Estimate, note: str | None) -> EstimateRow:
    low, high = found.interval or (None, None)
    between = "" if low is None or high is None else f" [{_two(low)}, {_two(high)}]"
    return EstimateRow(
        name=_name(name),
        value=found.value,
        low=low,
        high=high,
        text=f"{_two(found.value)}{between}{' *' if found.is_significant else ''}",
        note=note,
        tone="info" if found.is_significant else "muted",
    )


def _two(value: float) -> str:
    """Returns two digits behind the point, and never "-0.00"."""
    return f"{round(value, 2) + 0.0:.2f}"


def _correlation(found: WhatMattered) -> Estimates | None:
    rows = [row for each in found.parameters if (row := _trend_row(each)) is not None]
    if not rows:
        return None
    return Estimates(
        id="correlation",
        title="Rank correlation",
        axis=Axis("rank correlation", low=-1.0, high=1.0),
        rows=tuple(rows[:MAX_ROWS]),
        caption="Spearman's, with its 95 % confidence interval; of words, whether their values "
        "differ. * shown by the runs: p < 0.05, corrected for all parameters."
        f"{_more(len(rows))}",
    )


def _trend_row(found: ParameterImportance) -> EstimateRow | None:
    if found.spearman is not None:
        return _estimate_row(found.name, found.spearman, None)
    test = found.kruskal_wallis
    if test is None:
        return None
    mark = " *" if test.is_significant else ""
    return EstimateRow(
        name=_name(found.name),
        value=None,
        low=None,
        high=None,
        text=f"{count(found.distinct, 'value')}{mark}",
        note=f"{test.value:.0%} of the variation of the ranks is between them",
        tone="info" if test.is_significant else "muted",
    )


def _along(found: ParameterImportance, mattered: WhatMattered) -> Estimates:
    """Returns the metric along one parameter, and where the gain ends."""
    rows = [
        EstimateRow(
            name=bin_label(each),
            value=each.mean,
            low=each.interval[0] if each.interval else None,
            high=each.interval[1] if each.interval else None,
            text=significant(each.mean),
            note=count(each.settings, "setting"),
        )
        for each in found.bins
    ]
    end = found.levels_off_at
    said = "" if end is None else f"No further gain is shown above {significant(end)}."
    return estimates_of(
        f"along-{_name(found.name)}",
        f"{_name(mattered.metric)} along {_name(found.name)}",
        _name(mattered.metric),
        rows,
        said or None,
    )


def bin_label(found: ValueBin) -> str:
    """Returns a value, or a range of values."""
    if found.low is not None and found.high is not None and found.low != found.high:
        return f"{found.low:.3g} … {found.high:.3g}"
    return category_label(found.low if found.value is None else found.value)


def _pair(
    found: WhatMattered, settings: RunSettings, asked: tuple[str | None, str | None]
) -> tuple[Column, Column] | None:
    """Returns the two parameters that were asked for; else those that interact, else the most
    important ones."""
    columns = {column.name: column for column in settings.columns}
    usual = [each.name for each in found.parameters]
    if found.interaction is not None:
        usual = [found.interaction.rows, found.interaction.columns, *usual]
    chosen: list[str | None] = [name if name in columns else None for name in asked]
    for place, name in enumerate(chosen):
        if name is None:
            chosen[place] = next((each for each in usual if each not in chosen), None)
    down, across = chosen
    if down is None or across is None or down == across:
        return None
    return columns[down], columns[across]


def _grid(down: Column, across: Column, settings: RunSettings, found: WhatMattered) -> ValueGrid:
    rows, columns = (bins_of(column, settings.metric, MAX_GRID_BINS) for column in (down, across))
    means, numbers = grid_of(rows, columns, settings.metric)
    cells = tuple(
        tuple(
            ValueGridCell(mean, significant(mean) if number else "", count(number, "setting"))
            for mean, number in zip(row, counts, strict=True)
        )
        for row, counts in zip(means, numbers, strict=True)
    )
    known = [mean for row in means for mean in row if mean is not None]
    return ValueGrid(
        id="grid",
        title=f"{_name(found.metric)} over {_name(down.name)} and {_name(across.name)}",
        down=_name(down.name),
        across=_name(across.name),
        rows=tuple(bin_label(each) for each in rows.bins),
        columns=tuple(bin_label(each) for each in columns.bins),
        cells=cells,
        low=min(known, default=0.0),
        high=max(known, default=0.0),
        caption="Means over the settings of each cell; an empty one was not run.",
    )


def _contour(
    down: Column, across: Column, settings: RunSettings, found: WhatMattered
) -> Contour | None:
    """Returns the surface; `None` where a parameter is no number, or has few different values."""
    if down.ranks is None or across.ranks is None:
        return None
    surface = surface_of(across.numbers, down.numbers, settings.metric)
    if surface is None:
        return None
    return Contour(
        id="contour",
        title=f"{_name(found.metric)} over {_name(down.name)} and {_name(across.name)}",
        down=_name(down.name),
        across=_name(across.name),
        at_down=tuple(surface.at_down.tolist()),
        at_across=tuple(surface.at_across.tolist()),
        is_down_log=surface.down.is_log,
        is_across_log=surface.across.is_log,
        surface=tuple(rounded(row) for row in surface.values),
        levels=_levels(surface),
        points=_points(across, down, settings),
        caption="Smoothed over the settings, which are the dots; where none is near, nothing is "
        "drawn.",
    )


def _levels(surface: MetricSurface) -> tuple[float, ...]:
    """Returns the values of the lines: so many that as much of the surface lies between any two."""
    known = surface.values[~np.isnan(surface.values)]
    shares = np.linspace(0, 1, LEVELS + 1)[1:-1]
    return tuple(np.unique(np.quantile(known, shares)).tolist())


def _points(across: Column, down: Column, settings: RunSettings) -> tuple[tuple[float, ...], ...]:
    every = np.column_stack([across.numbers, down.numbers, settings.metric])
    known = every[np.isfinite(every).all(axis=1)]
    step = -(-len(known) // MAX_POINTS)
    return tuple(tuple(row) for row in known[:: max(1, step)].tolist())
