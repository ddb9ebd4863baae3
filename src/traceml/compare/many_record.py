"""A comparison of three or more runs as one record: the content of its JSON file."""

from __future__ import annotations

from msgspec import Struct

from traceml.compare.importance_record import WhatMattered
from traceml.compare.lineage import Shown
from traceml.compare.record import Comparison, Delta, LayersOfOneSide

SCHEMA_VERSION = 1
"""History: 1 is the first."""


class RunEntry(Struct, frozen=True, kw_only=True):
    """One run, or runs that differ in seed and fold alone; numbers are then means."""

    label: str
    """A, B, C …; A is the baseline."""
    name: str
    runs: tuple[str, ...]
    params: dict[str, Shown] = {}
    """Those that differ between the entries."""
    diagnosis: str | None = None
    step_time_ms: float | None = None
    throughput_per_s: float | None = None
    throughput_of: str | None = None
    """What is counted: `samples` or `steps`."""
    duration_s: float | None = None
    gpu_hours: float | None = None
    energy_kwh: float | None = None
    """Of the GPUs, where their power was sampled."""


class MetricRow(Struct, frozen=True, kw_only=True):
    """One metric of all entries, and how each differs from the baseline's."""

    higher_is_better: bool | None = None
    direction_from: str | None = None
    """Who says so: the `script`, the `user` (`--better`), or the `name`, from which it is guessed;
    `None` for what TraceML itself measures."""
    changes: dict[str, Delta]
    """By label; `lhs` is the baseline's value, `rhs` the entry's. p is corrected over all metrics
    and entries."""


class Cost(Struct, frozen=True):
    """What it took; `None` where it was not measured."""

    time_s: float | None = None
    gpu_hours: float | None = None
    energy_kwh: float | None = None


class TargetCost(Struct, frozen=True, kw_only=True):
    """What each entry took until a metric first had a value."""

    metric: str
    target: float
    higher_is_better: bool
    target_from: str
    """`user`, or `baseline`: the last value of the baseline."""
    costs: dict[str, Cost | None]
    """By label, means over the runs that reached it; `None` where a run did not, or its history is
    not at hand."""
    reached: dict[str, tuple[int, int]] = {}
    """By label: how many runs reached it, of how many whose history is at hand."""


class Pareto(Struct, frozen=True, kw_only=True):
    """The entries of which no other is both better and cheaper."""

    metric: str
    cost: str
    """`gpu_hours` or `duration_s`."""
    front: tuple[str, ...]
    dominated_by: dict[str, str] = {}
    """By label: an entry that is at least as good in both, and better in one."""


class Effect(Struct, frozen=True, kw_only=True):
    """What one parameter does, from runs that differ in it alone."""

    param: str
    lhs_value: Shown
    rhs_value: Shown
    pairs: int
    """Settings of the other parameters, and seeds, in which both values were run."""
    runs: tuple[tuple[str, str], ...]
    """Of each pair, the run with the one and with the other value."""
    changes: dict[str, Delta]
    """By metric: the mean change over the pairs, in the paired t test where there are three or
    more; p is corrected over all effects and metrics."""


class LayerOfRuns(Struct, frozen=True, kw_only=True):
    """One layer, or all those whose names differ in a number alone, of every entry."""

    name: str
    kind: str | None = None
    layers: int = 1
    """How many layers it stands for."""
    what: str = "time"
    """Of its own `time` in milliseconds per step, else of the bytes that it holds: `saved`, …"""
    changes: dict[str, Delta]
    """By label. Times have a p only where the layer was shown to have moved; it is corrected for
    all layers and entries."""


class ManyLayers(Struct, frozen=True, kw_only=True):
    """The layers that moved in some entry, against the baseline."""

    time_ms: dict[str, Delta]
    """By label: own time of all layers, per step."""
    rows: tuple[LayerOfRuns, ...] = ()
    """The largest change first, times before memory."""
    rows_in_all: int = 0
    compared: dict[str, int] = {}
    """By label: how many layers the baseline and that entry both have …"""
    new: dict[str, LayersOfOneSide] = {}
    gone: dict[str, LayersOfOneSide] = {}
    """… and those that the entry, or the baseline, has alone."""
    notes: dict[str, tuple[str, ...]] = {}
    """By label: why layers of that entry are not compared."""


class ManyComparison(Struct, frozen=True, kw_only=True):
    """Three or more runs side by side."""

    schema_version: int = SCHEMA_VERSION
    baseline: str = "A"
    entries: tuple[RunEntry, ...]
    parameters: dict[str, dict[str, Shown]]
    """Only those that differ: by name, then by label."""
    same_parameters: int
    """How many others all runs have in common."""
    metrics: dict[str, MetricRow]
    """Those that the scripts logged."""
    measured: dict[str, MetricRow]
    """Step time and throughput."""
    to_reach: TargetCost | None = None
    pareto: Pareto | None = None
    effects: tuple[Effect, ...] = ()
    pairs_of_other_code: int = 0
    """Pairs of settings that differ in one parameter, and in the code besides: no effect counts
    them."""
    what_mattered: WhatMattered | None = None
    """Of the quality metric; `None` where there is none or no parameter differs."""
    layers: ManyLayers | None = None
    """`None` where the baseline, or all others, have no deep profile."""
    comparisons: tuple[Comparison, ...] = ()
    """The baseline against each other entry."""
    warnings: tuple[str, ...] = ()
