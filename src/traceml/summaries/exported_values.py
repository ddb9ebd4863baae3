"""The values of exported metrics (`model/exported_metric.py`), from a summary, live or final."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from traceml.facts.metric_history import is_training_loss
from traceml.model import exported_metric as catalogue
from traceml.model.exported_metric import BY_SCOPE, MAX_SERIES, ExportedMetric, Scope
from traceml.model.finding import Section
from traceml.model.metric_segments import split_segment
from traceml.model.phase import IN_RESIDUAL_MS, PHASES, Phase
from traceml.summaries.record import Summary, sections_of

_Rows = Sequence[tuple[str, Mapping[str, float | None]]]
"""Names of ranks, machines or GPUs, and the numbers of each."""


@dataclass(frozen=True, slots=True)
class ExportedValue:
    """One series at one time."""

    metric: ExportedMetric
    value: float
    labels: tuple[tuple[str, str], ...]
    """By name; the run is the first."""


def exported_values(summary: Summary, run: str, state: str) -> list[ExportedValue]:
    """Returns what is exported of a run; what was not measured is left out.

    `state`: live, finished, failed or lost.
    """
    found = [
        *_of_run(summary, state),
        *_of_findings(summary),
        *_of_averages(summary),
        *_of_ranks(summary),
        *_of_members(Scope.NODE, _node_rows(summary)),
        *_of_members(Scope.GPU, _gpu_rows(summary)),
    ]
    return [
        ExportedValue(each.metric, each.value, ((catalogue.RUN_LABEL, run), *each.labels))
        for each in found
        if math.isfinite(each.value)
    ]


def _value(metric: ExportedMetric, value: float | None, *labels: str) -> Iterator[ExportedValue]:
    if value is not None:
        pairs = tuple(zip(metric.labels, labels, strict=True))
        yield ExportedValue(metric, float(value), pairs)


def _of_run(summary: Summary, state: str) -> Iterator[ExportedValue]:
    meta, goodput, steps = summary.meta, summary.goodput, summary.step_time
    yield from _value(catalogue.STATE, 1.0, state)
    yield from _value(catalogue.DURATION, summary.duration_s)
    yield from _value(catalogue.RANKS, meta.world_size)
    yield from _value(catalogue.NODES, meta.nodes_observed)
    yield from _value(catalogue.GPUS, meta.gpus_observed)
    if steps is not None:
        yield from _value(catalogue.STEPS, steps.metadata.training_total_steps)
        for key, quantile in catalogue.QUANTILES.items():
            milliseconds = steps.global_.average.get(key)
            seconds = None if milliseconds is None else milliseconds / 1e3
            yield from _value(catalogue.STEP_QUANTILE, seconds, quantile)
    if goodput is not None:
        yield from _value(catalogue.RESTARTS, goodput.restarts)
        for part, part_s in goodput.parts_s.items():
            yield from _value(catalogue.GOODPUT_TIME, part_s, part)
    for name in sorted(summary.metrics, key=_logged_order)[: catalogue.MAX_LOGGED]:
        yield from _value(catalogue.LOGGED, summary.metrics[name].last, name)


def _logged_order(name: str) -> tuple[bool, bool, bool, str]:
    """Returns the place of a metric among those that a script logs: of too many, losses count first
    and the segments of others last."""
    is_segment = split_segment(name) is not None
    return is_segment, not is_training_loss(name), "loss" not in name.lower(), name


def _of_findings(summary: Summary) -> Iterator[ExportedValue]:
    verdict = summary.primary_diagnosis
    if verdict.kind is not None:
        yield from _value(catalogue.VERDICT, 1.0, verdict.kind, verdict.severity or "info")
    told = set()
    for name, section in sections_of(summary):
        for issue in section.issues:
            if issue.kind is None or (name, issue.kind) in told:
                continue  # one kind may be found of several ranks: one series
            told.add((name, issue.kind))
            labels = (name, issue.kind, issue.severity or "info")
            yield from _value(catalogue.FINDING, 1.0, *labels)


def _of_averages(summary: Summary) -> Iterator[ExportedValue]:
    averages = {Section(name): each.global_.average for name, each in sections_of(summary)}
    for metric in BY_SCOPE[Scope.RUN]:
        assert metric.source is not None
        row = averages.get(metric.source.section, {})
        yield from _scaled(metric, _number(metric, row), ())


def _number(metric: ExportedMetric, row: Mapping[str, float | None]) -> float | None:
    """Returns the number of a metric in the unit of the summary; `None` where it was not measured.

    Phases are parts of the step: the rest is what all of them leave, while that of the summary
    holds some of them.
    """
    assert metric.source is not None
    found = row.get(metric.source.key)
    if found is None or metric.phase != Phase.RESIDUAL.value:
        return found
    inside = (row.get(PHASES[phase].metric) for phase in IN_RESIDUAL_MS)
    return found - sum(each for each in inside if each is not None)


def _scaled(
    metric: ExportedMetric, found: float | None, names: tuple[str, ...]
) -> Iterator[ExportedValue]:
    """Yields the value of a number of the summary; the phase is the last of its labels."""
    if found is not None:
        labels = (*names, metric.phase) if metric.phase else names
        yield from _value(metric, metric.scaled(found), *labels)


def _of_ranks(summary: Summary) -> Iterator[ExportedValue]:
    """Yields the numbers of each rank where they are few, and the spread of several."""
    rows = {
        Section(name): [(rank, row.metrics) for rank, row in section.groups.rows.items()]
        for name, section in sections_of(summary)
        if section.groups.by == "global_rank"
    }
    for name, of_section in rows.items():
        if len(of_section) > 1:
            yield from _spread(name, of_section)
        yield from _of_members(Scope.RANK, of_section, name)
    steps = summary.step_time
    worst = None if steps is None else steps.global_.worst.get("step_time_ms")
    if worst is not None and worst.idx is not None and worst.idx.isdecimal():
        yield from _value(catalogue.SLOWEST_RANK, int(worst.idx))


def _spread(section: Section, rows: _Rows) -> Iterator[ExportedValue]:
    for metric in BY_SCOPE[Scope.SPREAD]:
        source = metric.source
        assert source is not None
        if source.section is not section:
            continue
        values = [found for _, row in rows if (found := row.get(source.key)) is not None]
        if values:
            stats = (min(values), median(values), max(values))
            for stat, value in zip(catalogue.STATS, stats, strict=True):
                yield from _scaled(metric, value, (stat,))


def _of_members(
    scope: Scope, rows: _Rows, section: Section | None = None
) -> Iterator[ExportedValue]:
    """Yields the numbers of each rank, machine or GPU; nothing where they are too many."""
    if len(rows) > MAX_SERIES:
        return
    for metric in BY_SCOPE[scope]:
        source = metric.source
        assert source is not None
        if section is None or source.section is section:
            for name, row in rows:
                yield from _scaled(metric, _number(metric, row), (name,))


def _node_rows(summary: Summary) -> _Rows:
    """Returns the sensors of each machine; none for a single one, whose are the run's."""
    system = summary.system
    if system is None or len(system.groups.rows) < 2:
        return ()
    rows = system.groups.rows
    hosts = [row.identity.hostname for row in rows.values()]
    names_differ = None not in hosts and len(set(hosts)) == len(hosts)
    return [
        (row.identity.hostname if names_differ and row.identity.hostname else name, row.metrics)
        for name, row in rows.items()
    ]


def _gpu_rows(summary: Summary) -> _Rows:
    """Returns the sensors of each GPU, called by its number, and its machine's name where there are
    several."""
    gpus = () if summary.system is None else summary.system.gpus
    return [
        (f"{gpu.node}:{gpu.index}" if gpu.node else str(gpu.index), gpu.metrics) for gpu in gpus
    ]
