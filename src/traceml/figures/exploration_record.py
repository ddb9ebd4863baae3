"""What the page of charts over many runs holds; the viewer draws it and adds no number.

Columns are sent as arrays with one value per run, so that 10,000 runs stay small.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from traceml.figures.page import Axis, Lines, Tone

ExploredKind = Literal["number", "moment", "category"]
"""`moment`: seconds since 1970, shown as a date."""


class Category(Struct, frozen=True):
    """One value of a column of words."""

    label: str
    condition: str
    """Which runs have it, in the language of filters: `params.optimizer = "adam"`."""


class ExploredColumn(Struct, frozen=True):
    """One parameter, metric or fact of all runs."""

    name: str
    """As filters and the page's address have it: `params.lr`."""
    label: str
    """The same, short enough for an axis."""
    kind: ExploredKind
    values: tuple[float | None, ...]
    """By run: the number, or the place of its category; `None` where it cannot be drawn."""
    unit: str = ""
    """Of the values; a filter may have a number with it."""
    categories: tuple[Category, ...] = ()
    is_log: bool = False
    """Whether a logarithmic axis shows it best."""
    left_out: str | None = None
    """How many runs have no value that can be drawn, and why."""


class OfferedColumn(Struct, frozen=True):
    """A column that can be chosen."""

    name: str
    label: str
    section: str
    """"Parameters", "Metrics" or "Facts"."""


class EstimateRow(Struct, frozen=True):
    """One number with its uncertainty."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    """The number and its interval, as they are read."""
    note: str | None = None
    """What there is to say of it: "3 runs"."""
    tone: Tone | None = None


class Estimates(Struct, frozen=True):
    """Numbers with their intervals, a row each."""

    id: str
    title: str
    axis: Axis
    """From where to where the rows are drawn."""
    rows: tuple[EstimateRow, ...]
    is_bar: bool = True
    """Whether a row is a bar from zero, or only a dot."""
    caption: str | None = None


class ValueGridCell(Struct, frozen=True):
    """The runs with one value, or range of values, of each of two parameters."""

    value: float | None
    """The mean of the metric; `None`: no such run."""
    text: str
    note: str
    """"3 settings"."""


class ValueGrid(Struct, frozen=True):
    """A metric over two parameters."""

    id: str
    title: str
    down: str
    """The parameter of the rows …"""
    across: str
    """… and of the columns."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[ValueGridCell, ...], ...]
    """By row."""
    low: float
    high: float
    caption: str | None = None


class Contour(Struct, frozen=True):
    """A metric over two numeric parameters, as a surface through the runs."""

    id: str
    title: str
    down: str
    across: str
    """Names of columns, which have the runs themselves."""
    at_down: tuple[float, ...]
    at_across: tuple[float, ...]
    """Where the surface is known, in the columns' own units."""
    is_down_log: bool
    is_across_log: bool
    surface: tuple[tuple[float | None, ...], ...]
    """By `at_down`, then `at_across`; `None` where no run is near."""
    levels: tuple[float, ...]
    """Where the lines of equal value are drawn."""
    points: tuple[tuple[float, ...], ...]
    """The runs: across, down and the metric."""
    caption: str | None = None


class WhatMatteredPage(Struct, frozen=True):
    """Which parameters a metric depends on."""

    metric: str
    title: str
    down: str | None = None
    across: str | None = None
    """The two parameters of the grid, as filters have them."""
    importance: Estimates | None = None
    correlation: Estimates | None = None
    along: tuple[Estimates, ...] = ()
    """The metric along each of the parameters that matter most."""
    grid: ValueGrid | None = None
    contour: Contour | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Band = Literal["range", "interval"]
"""From the lowest to the highest run, or the 95 % confidence interval of the mean."""


class GroupCurves(Struct, frozen=True):
    """The history of a metric, by group of runs."""

    lines: Lines | None
    notes: tuple[str, ...] = ()
    """What is left out, or why there is nothing to draw."""
    band: Band = "range"


class Exploration(Struct, frozen=True):
    """Charts over the runs that a filter lets through."""

    filter: str
    """In the language of filters, also where words were asked for; empty: all runs."""
    names: tuple[str, ...]
    """The runs, the newest first."""
    found: str
    """"24 runs", or "the 20,000 newest of 75,000 runs"."""
    columns: tuple[ExploredColumn, ...]
    """Those that the charts below name."""
    choices: tuple[OfferedColumn, ...]
    metric: str | None = None
    group: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    x: str | None = None
    y: str | None = None
    color: str | None = None
    size: str | None = None
    front: tuple[int, ...] = ()
    """The runs, from cheap to expensive, that no other beats in cost (x) and quality (y)."""
    front_words: str | None = None
    bars: Estimates | None = None
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to log so that there is more to see."""
