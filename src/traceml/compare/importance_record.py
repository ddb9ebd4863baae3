"""Which parameters mattered for a metric, as one record: the key `what_mattered` of the JSON."""

from __future__ import annotations

from msgspec import Struct

from traceml.compare.lineage import Shown


class Estimate(Struct, frozen=True, kw_only=True):
    """A number with its 95 % interval and the p-value of "it is zero"."""

    value: float
    interval: tuple[float, float] | None = None
    """`None` where the settings are too few for one, or it has none (`kruskal_wallis`)."""
    p: float | None = None
    """Corrected by Holm's method over all parameters and both kinds of test."""

    @property
    def is_significant(self) -> bool:
        """Whether the runs show that it is not zero."""
        return self.p is not None and self.p < 0.05


class ValueBin(Struct, frozen=True, kw_only=True):
    """The metric over a range of a numeric parameter, or at one value of it."""

    value: Shown = None
    """The one value; `None` where the bin is a range."""
    low: float | None = None
    high: float | None = None
    """The range of a numeric parameter, both ends included."""
    settings: int
    mean: float | None
    """`None` where there are no settings, or the mean is too large for a number."""
    interval: tuple[float, float] | None = None
    """Of the mean, by Student's t; `None` with fewer than two settings."""


class ParameterImportance(Struct, frozen=True, kw_only=True):
    """One parameter and the metric."""

    name: str
    kind: str
    """`number` or `category`."""
    distinct: int
    """How many different values were run."""
    settings: int
    """How many settings have the parameter."""
    spearman: Estimate | None = None
    """Rank correlation with the metric, of a number."""
    kruskal_wallis: Estimate | None = None
    """Whether the metric differs between the values of a category; the value is epsilon squared,
    the share of the variance of the ranks that lies between them."""
    forest: Estimate | None = None
    """Permutation importance: by how much the share of the metric's variance that the forest
    explains in settings it has not seen falls when the parameter is shuffled."""
    together_with: tuple[str, ...] = ()
    """Parameters that vary with this one, so that these runs cannot tell them apart; the forest
    shuffles all of them together."""
    bins: tuple[ValueBin, ...] = ()
    levels_off_at: float | None = None
    """Of a number along which the metric improves: the upper end of the last bin that the best bin
    is shown to differ from; past it these runs show no further gain."""

    @property
    def matters(self) -> bool:
        """Whether the runs show that the metric depends on it, by either test."""
        found = (self.spearman, self.kruskal_wallis, self.forest)
        return any(each is not None and each.is_significant for each in found)


class InteractionGrid(Struct, frozen=True, kw_only=True):
    """The two parameters whose effects depend most on each other, as a contour would draw them."""

    rows: str
    columns: str
    strength: Estimate
    """By how much the share of the variance that the forest explains in unseen settings falls when
    the interaction is taken out of its predictions; p is corrected over all pairs tried."""
    row_bins: tuple[ValueBin, ...]
    column_bins: tuple[ValueBin, ...]
    means: tuple[tuple[float | None, ...], ...]
    """By row and column: the mean of the metric; `None` where nothing was run."""
    settings: tuple[tuple[int, ...], ...]


class ForestFit(Struct, frozen=True, kw_only=True):
    """How well the random forest predicts settings that it has not seen."""

    explained: float
    """The share of the metric's variance, cross-validated; 0 or less is no better than the mean.
    Outliers are moved to Tukey's fences before."""
    settings: int


class LeftOut(Struct, frozen=True, kw_only=True):
    """A parameter that was not looked at, and why."""

    name: str
    why: str


class WhatMattered(Struct, frozen=True, kw_only=True):
    """Which parameters a metric depends on, over many runs.

    Runs that differ in seed or fold alone are one setting, with their mean: the setting is the unit
    of all tests.
    """

    metric: str
    higher_is_better: bool | None = None
    runs: int
    """How many runs had the metric."""
    runs_without_metric: int = 0
    """How many were left out: the metric is missing, or not a finite number."""
    settings: int
    parameters: tuple[ParameterImportance, ...] = ()
    """The most important first."""
    left_out: tuple[LeftOut, ...] = ()
    forest: ForestFit | None = None
    """`None` where no forest was fitted; a warning says why."""
    interaction: InteractionGrid | None = None
    """Only where the runs show that there is one."""
    warnings: tuple[str, ...] = ()
