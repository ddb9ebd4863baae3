"""The page of charts over many runs: its columns, the Pareto front, and a metric by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np

from traceml.compare.cost_and_quality import front_places
from traceml.compare.parameter_groups import is_label, is_repetition
from traceml.compare.run_groups import Aggregate, RunGroup
from traceml.figures.estimates import estimates_of
from traceml.figures.exploration_record import (
    EstimateRow,
    Estimates,
    Exploration,
    ExploredColumn,
    OfferedColumn,
)
from traceml.figures.explored_columns import (
    Values,
    category_label,
    explored_column,
    label_of,
    numbers_of,
)
from traceml.figures.words import line
from traceml.model.errors import UsageError
from traceml.model.quantities import count, significant
from traceml.store.query_names import written_key

MAX_RUNS = 20_000
"""Runs whose columns are sent, the newest ones."""
MAX_AXES = 16
USUAL_AXES = 6
"""Parameters on the axes of parallel coordinates, where nobody chose."""
MAX_CHOICES = 3000
"""Names that are offered; any other can be typed."""
MAX_TRIED = 60
"""Parameters that are looked at for what to show first."""
MAX_TRIED_METRICS = 8
MAX_GROUPS = 30
MAX_USUAL_GROUPS = 12
COSTS = ("facts.duration_s", "facts.step_time_ms", "facts.peak_memory_bytes")
FALLBACK_METRICS = ("facts.step_time_ms", "facts.throughput", "facts.duration_s")
"""What runs are judged by where none logged a metric."""
PLAIN_KEYS = ("facts.", "params.", "metrics.")
SECTIONS = {"facts": "Facts", "params": "Parameters"}

LOG_METRICS = (
    'No metric was logged. traceml.log_metrics({"loss": loss, "accuracy": accuracy}, step=step) in '
    "the script makes charts of quality, and of what it depends on."
)
LOG_PARAMS = (
    "No parameter differs between these runs. Arguments of the command line are taken by "
    'themselves; traceml.log_params({"lr": lr}) logs others.'
)
NO_RUNS = "There are no runs here yet. Start one with traceml run train.py."
NO_MATCH = "No run passes this filter."


class ExplorableRuns(Protocol):
    """The runs that a query found, by columns."""

    total: int

    @property
    def names(self) -> list[str]:
        """The names of the runs."""

    @property
    def candidate_keys(self) -> Sequence[str]:
        """The keys of the columns that they may have."""

    def column(self, key: str) -> Values:
        """Returns what each run has under a key."""

    def varying(self) -> list[str]:
        """Returns the keys of parameters in which they differ."""

    def main_metrics(self, limit: int) -> list[str]:
        """Returns the keys of metrics that say how good a run is."""

    def more_is_better(self, key: str) -> bool | None:
        """Returns whether more of a column is better."""

    def choose_columns(self, words: str) -> list[str]:
        """Returns the keys of columns that words with commas name."""

    def group(self, by: str, columns: Sequence[str]) -> list[RunGroup]:
        """Returns the runs in groups."""


@dataclass(frozen=True, slots=True)
class AskedCharts:
    """What the page's address says; `None`: whatever shows most, "" (of colour and size): none."""

    metric: str | None = None
    group: str | None = None
    axes: str | None = None
    x: str | None = None
    y: str | None = None
    color: str | None = None
    size: str | None = None


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The keys of the columns that the charts show."""

    metric: str | None
    group: tuple[str, ...]
    axes: tuple[str, ...]
    x: str | None
    y: str | None
    color: str | None
    size: str | None
    has_params: bool
    """Whether any parameter differs between the runs."""

    @property
    def drawn(self) -> list[str]:
        """All whose values are sent, each once."""
        ones = (self.metric, self.x, self.y, self.color, self.size)
        return list(dict.fromkeys((*self.axes, *(key for key in ones if key))))


def choose_charts(runs: ExplorableRuns, asked: AskedCharts) -> ChosenColumns:
    """Returns the columns that were asked for, and for the others those that show most.

    Raises UsageError for a name that no run has.
    """
    metric = _asked_one(runs, asked.metric, lambda: usual_metric(runs))
    params = usual_params(runs)
    group = tuple(runs.choose_columns(asked.group)) if asked.group else _usual_group(runs, params)
    x = _asked_one(runs, asked.x, lambda: _usual_x(runs, params, metric))
    return ChosenColumns(
        metric=metric,
        group=group,
        axes=_axes(runs, asked.axes, params, metric),
        x=x,
        y=_asked_one(runs, asked.y, lambda: metric),
        color=_asked_one(runs, asked.color, lambda: next(iter(group or params), None)),
        size=_asked_one(runs, asked.size, lambda: None),
        has_params=bool(params),
    )


def usual_metric(runs: ExplorableRuns) -> str | None:
    """Returns the metric that most runs have; without one, how fast they were."""
    logged = {key: _told(runs, key) for key in runs.main_metrics(MAX_TRIED_METRICS)}
    if any(count for count, _ in logged.values()):
        return max(logged, key=lambda key: logged[key])
    measured = {key: _told(runs, key) for key in FALLBACK_METRICS if key in runs.candidate_keys}
    return max(measured, key=lambda key: measured[key], default=None)


def usual_params(runs: ExplorableRuns) -> list[str]:
    """Returns the parameters that vary, those that most runs have first; what only names or repeats
    a run is left out where anything else varies."""
    varying = runs.varying()[:MAX_TRIED]
    telling = [key for key in varying if not is_label(key) and not is_repetition(key)]
    present = {key: sum(each is not None for each in runs.column(key)) for key in telling}
    # Some runs may have it and others not: where all values are the same, it shows little.
    is_same = {key: _distinct(runs, key) < 2 for key in telling}
    return sorted(telling, key=lambda key: (is_same[key], -present[key])) or varying


def _told(runs: ExplorableRuns, key: str) -> tuple[int, bool]:
    """Returns how many runs have a finite number, and whether they differ in it."""
    numbers = numbers_of(runs.column(key))
    finite = numbers[np.isfinite(numbers)]
    return len(finite), bool((finite != finite[:1]).any())


def _asked_one(
    runs: ExplorableRuns, asked: str | None, usual: Callable[[], str | None]
) -> str | None:
    if asked is None:
        return usual() if len(runs.names) else None
    if not asked.strip():
        return None
    found = runs.choose_columns(asked)
    if len(found) != 1:
        raise UsageError(
            f"{line(asked, 60)!r} names {count(len(found), 'column')}, one was expected; write a "
            "name such as params.lr"
        )
    return found[0]


def _axes(
    runs: ExplorableRuns, asked: str | None, params: Sequence[str], metric: str | None
) -> tuple[str, ...]:
    if asked is not None:
        return tuple(runs.choose_columns(asked)[:MAX_AXES])
    if not params:  # of one run, or of runs that are all the same
        params = [key for key in runs.candidate_keys if key.startswith("params.")]
    cost = next(_costs(runs, metric), None)
    last = [key for key in (cost, metric) if key is not None and len(runs.names)]
    return (*params[:USUAL_AXES], *last)


def _costs(runs: ExplorableRuns, metric: str | None) -> Iterator[str]:
    """Yields what runs took, first where they differ in it."""
    known = [key for key in COSTS if key in runs.candidate_keys and key != metric]
    yield from sorted(known, key=lambda key: _distinct(runs, key) < 2)


def _usual_x(runs: ExplorableRuns, params: Sequence[str], metric: str | None) -> str | None:
    """Returns a cost, so that quality over cost is seen; else a parameter."""
    return next(chain(_costs(runs, metric), params), metric)


def _usual_group(runs: ExplorableRuns, params: Sequence[str]) -> tuple[str, ...]:
    """Returns a parameter with a few values, each of several runs."""
    most = min(MAX_USUAL_GROUPS, len(runs.names) - 1)
    found = (key for key in params if 1 < _distinct(runs, key) <= most)
    return tuple(key for key in [next(found, None)] if key is not None)


def _distinct(runs: ExplorableRuns, key: str) -> int:
    return len({each for each in runs.column(key) if each is not None and each == each})


def exploration_page(
    runs: ExplorableRuns, chosen: ChosenColumns, filter_text: str, notes: Sequence[str] = ()
) -> Exploration:
    """Returns the page; `filter_text` is what the runs were found by."""
    columns = {key: explored_column(key, runs.column(key)) for key in chosen.drawn}
    front, words = _front(runs, chosen, columns)
    # The extremes of metrics last: of very many columns they are those that have to be typed.
    offered = sorted(runs.candidate_keys, key=lambda key: not key.startswith(PLAIN_KEYS))
    choices = [offered_column(key) for key in offered[:MAX_CHOICES]]
    said = [*notes, *_more_names(runs)]
    return Exploration(
        filter=filter_text,
        names=tuple(runs.names),
        found=_found_words(runs),
        columns=tuple(columns.values()),
        choices=tuple(choices),
        metric=_written(chosen.metric),
        group=tuple(map(written_key, chosen.group)),
        axes=tuple(written_key(key) for key in chosen.axes),
        x=_written(chosen.x),
        y=_written(chosen.y),
        color=_written(chosen.color),
        size=_written(chosen.size),
        front=tuple(front),
        front_words=words,
        bars=_bars(runs, chosen),
        notes=tuple(line(each) for each in said),
        advice=tuple(_advice(runs, filter_text, chosen.has_params)),
    )


def _written(key: str | None) -> str | None:
    return None if key is None else written_key(key)


def _found_words(runs: ExplorableRuns) -> str:
    shown = len(runs.names)
    if shown == runs.total:
        return count(shown, "run")
    return f"the {count(shown)} newest of {count(runs.total, 'run')}"


def _more_names(runs: ExplorableRuns) -> list[str]:
    more = len(runs.candidate_keys) - MAX_CHOICES
    if more <= 0:
        return []
    return [f"{count(more)} more names can be chosen by typing them in full."]


def offered_column(key: str) -> OfferedColumn:
    """Returns a column as it can be chosen."""
    section = SECTIONS.get(key.partition(".")[0], "Metrics")
    return OfferedColumn(name=written_key(key), label=label_of(key), section=section)


def _advice(runs: ExplorableRuns, filter_text: str, has_params: bool) -> list[str]:
    if not len(runs.names):
        return [NO_MATCH if filter_text else NO_RUNS]
    said = []
    if not any(key.startswith("metrics.") for key in runs.candidate_keys):
        said.append(LOG_METRICS)
    if len(runs.names) > 1 and not has_params:
        said.append(LOG_PARAMS)
    return said


def _front(
    runs: ExplorableRuns, chosen: ChosenColumns, columns: dict[str, ExploredColumn]
) -> tuple[list[int], str | None]:
    """Returns the Pareto front where x is a cost and y a quality, and what it is in words."""
    x, y = chosen.x, chosen.y
    if x is None or y is None or not is_cost(runs, x) or y.startswith(("params.", "facts.")):
        return [], None
    higher = runs.more_is_better(y)
    kinds = {columns[x].kind, columns[y].kind}
    if higher is None or kinds != {"number"}:
        return [], None
    front = front_places(columns[x].values, columns[y].values, higher)
    if not front:
        return [], None
    best = "highest" if higher else "lowest"
    return front, (
        f"Pareto front: {count(len(front), 'run')} with the {best} {label_of(y)} at their "
        f"{label_of(x)} or less."
    )


def is_cost(runs: ExplorableRuns, key: str) -> bool:
    """Returns whether a column is what a run takes: a time, or memory."""
    return key.startswith("facts.") and runs.more_is_better(key) is False


def _bars(runs: ExplorableRuns, chosen: ChosenColumns) -> Estimates | None:
    """Returns the mean of the metric in each group, with its interval."""
    if chosen.metric is None or not chosen.group:
        return None
    by = ",".join(map(written_key, chosen.group))
    groups = runs.group(by, [chosen.metric])
    shown = groups[:MAX_GROUPS]
    metric = chosen.metric
    rows = [_group_row(group, group.columns[metric]) for group in shown]
    more = len(groups) - len(shown)
    left = f" The first {MAX_GROUPS} of {count(len(groups))} groups are shown." if more else ""
    return estimates_of(
        "by-group",
        f"{label_of(metric)} by {', '.join(map(label_of, chosen.group))}",
        label_of(metric),
        rows,
        f"The mean over the runs of each group with its 95 % confidence interval.{left}",
    )


def _group_row(group: RunGroup, found: Aggregate) -> EstimateRow:
    without = len(group.rows) - found.count
    note = count(len(group.rows), "run")
    if without:
        note += f", {count(without)} of them without a finite value"
    return EstimateRow(
        name=group_label(group),
        value=found.mean,
        low=found.low,
        high=found.high,
        text=_interval_words(found.mean, found.low, found.high),
        note=note,
    )


def group_label(group: RunGroup) -> str:
    """Returns what the runs of a group have in common: "adam, 0.01"."""
    return ", ".join(category_label(value) for value in group.values.values())


def _interval_words(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None or low is None or high is None:
        return significant(mean)
    return f"{significant(mean)} [{significant(low)}, {significant(high)}]"
