"""Compares three or more runs: what differs, what each achieved and took, and what mattered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from string import ascii_uppercase
from typing import TypeAlias

from traceml.compare.cost_and_quality import cost_of, first_reached_s, mean_cost, pareto_front
from traceml.compare.effects import effects_of, pairs_of_other_code
from traceml.compare.importance_record import WhatMattered
from traceml.compare.logged_metrics import (
    PREFIX,
    direction_in,
    is_evaluated,
    last_value,
    logged_delta,
)
from traceml.compare.many_layers import many_layers
from traceml.compare.many_record import (
    Cost,
    Effect,
    ManyComparison,
    MetricRow,
    RunEntry,
    TargetCost,
)
from traceml.compare.many_verdicts import corrected_verdicts
from traceml.compare.measured import values
from traceml.compare.pair import compare_groups
from traceml.compare.parameter_groups import (
    Params,
    is_label,
    is_repetition,
    params_of,
    refuse_unknown,
    repetitions,
    varying,
    without,
)
from traceml.compare.record import Comparison, Delta
from traceml.compare.sides import Sides, pair_up
from traceml.compare.statistics import holm
from traceml.compare.terms import ENDPOINTS, Terms
from traceml.model.errors import UsageError
from traceml.model.finding import Section
from traceml.model.metric_direction import is_cost
from traceml.model.metric_segments import segments_by_metric, split_segment
from traceml.summaries.record import Summary

_SIDE_B = re.compile(r"\b(in|of|and|than|to) B\b")
"""Where the words of a comparison of two name its second side: "in B", "every run of B"."""
MAX_SEGMENTS = 50
"""Segments of one metric that are listed side by side; of more, none."""
STEP_TIME, SAMPLES, STEPS = "step_time_ms", "samples_per_s", "steps_per_s"

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""By metric: seconds since the run began, and the value."""
ComparePlaces: TypeAlias = Callable[[tuple[int, ...], tuple[int, ...]], Comparison]
"""Compares two groups of the runs, given by their positions."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the runs: its name, its summary, and its metrics' history where it is at hand."""

    name: str
    summary: Summary
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RepeatedRun:
    """A run, or its repetitions with other seeds."""

    label: str
    places: tuple[int, ...]
    runs: tuple[Candidate, ...]

    @property
    def summaries(self) -> list[Summary]:
        return [run.summary for run in self.runs]


def compare_many(
    candidates: Sequence[Candidate],
    terms: Terms | None = None,
    target: float | None = None,
    compare_places: ComparePlaces | None = None,
    ignored: Sequence[str] = (),
) -> ManyComparison:
    """Returns all runs side by side; the first one, with its repetitions, is the baseline.

    `target` is the value of the quality metric whose cost is asked for; by default the baseline's
    last value. `compare_places` compares two groups of the runs where more is known about them than
    their summaries. `ignored` are parameters in which runs may differ and still be alike, such as
    `code`.
    """
    terms = terms or Terms()
    recorded = params_of([run.summary for run in candidates])
    refuse_unknown(ignored, recorded)
    params = without(recorded, ignored)
    groups = _groups(candidates, params)
    every = Sides(tuple(run.summary for run in candidates), ())
    quality = quality_metric(every, terms)
    if target is not None and quality is None:
        raise UsageError(
            "there is no metric whose value could be reached: these runs logged none with a known "
            "direction; name one with --metric"
        )
    is_logged = terms.metric is None or terms.metric not in ENDPOINTS
    directions = {} if quality is None or not is_logged else {quality: terms.higher_is_better}
    metrics = _logged(groups, every, directions)
    shown = [name for name in varying(params) if len(groups) == len(params) or _tells(name)]
    entries = tuple(_entry(group, params, shown) for group in groups)
    alone = tuple(_compared(groups, entries, terms, compare_places))
    comparisons = corrected_verdicts(alone, terms)
    row = None if quality is None else metrics.get(quality)
    pareto = None
    if quality is not None and row is not None and row.higher_is_better is not None:
        achieved = {label: change.rhs for label, change in row.changes.items()}
        pareto = pareto_front(quality, achieved, row.higher_is_better, entries)
    return ManyComparison(
        entries=entries,
        parameters={name: {e.label: e.params.get(name) for e in entries} for name in shown},
        same_parameters=len({name for run in params for name in run}) - len(varying(params)),
        metrics=metrics,
        measured=_measured(groups, comparisons),
        to_reach=None if quality is None else _to_reach(quality, groups, metrics[quality], target),
        pareto=pareto,
        effects=_effects(candidates, params, metrics),
        pairs_of_other_code=pairs_of_other_code(params),
        what_mattered=_mattered(candidates, params, quality, metrics),
        layers=many_layers(
            {group.label: [run.layers for run in group.summaries] for group in groups},
            comparisons,
        ),
        comparisons=comparisons,
        warnings=_warnings(entries, comparisons),
    )


def relabel_b(said: str, label: str) -> str:
    """Returns what a comparison of two says of its B, with the letter that B has among many."""
    return _SIDE_B.sub(rf"\1 {label}", said)


def _warnings(entries: Sequence[RunEntry], comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Returns every warning once, with the entries that it is about unless it is about all."""
    others = entries[1:]
    about: dict[str, list[str]] = {}
    for entry, comparison in zip(others, comparisons, strict=True):
        for said in comparison.warnings:
            about.setdefault(relabel_b(said, entry.label), []).append(entry.label)
    return tuple(
        said if len(labels) == len(others) else f"{entries[0].label} -> {', '.join(labels)}: {said}"
        for said, labels in about.items()
    )


def quality_metric(every: Sides, terms: Terms) -> str | None:
    """Returns the logged metric that stands for what a run achieved: the one asked for, else the
    first with a direction that most runs have, of other data than that of training if possible."""
    known = Counter(name for run in every.every_run for name in run.metrics)
    if terms.metric is not None and terms.metric not in ENDPOINTS:
        name = terms.metric if terms.metric in known else terms.metric.removeprefix(PREFIX)
        return name if name in known else None
    fit = [
        name
        for name in whole_metrics(known)
        if not is_cost(name) and direction_in(name, every).higher_is_better is not None
    ]
    return min(fit, key=lambda name: (-known[name], not is_evaluated(name)), default=None)


def whole_metrics(names: Iterable[str]) -> list[str]:
    """Returns the metrics that are not of a segment; where all are, the first `MAX_SEGMENTS`."""
    known = list(names)
    whole = [name for name in known if split_segment(name) is None]
    return whole or known[:MAX_SEGMENTS]


def _tells(name: str) -> bool:
    """Returns whether a parameter tells groups apart; seeds differ inside them."""
    return not is_repetition(name) and not is_label(name)


def _groups(candidates: Sequence[Candidate], params: Sequence[Params]) -> list[_RepeatedRun]:
    places = repetitions(params)
    if len(places) < 2:
        places = [(place,) for place in range(len(candidates))]
    return [
        _RepeatedRun(label_of(number), group, tuple(candidates[place] for place in group))
        for number, group in enumerate(places)
    ]


def labels_of(runs: Sequence[Summary]) -> list[str]:
    """Returns the letter of each run's entry: runs that repeat each other share one."""
    groups = _groups([Candidate("", run) for run in runs], params_of(runs))
    by_place = {place: group.label for group in groups for place in group.places}
    return [by_place[place] for place in range(len(runs))]


def label_of(number: int) -> str:
    """Returns A, B, … Z, AA, AB, … for 0, 1, …"""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, len(ascii_uppercase))
        letters = ascii_uppercase[rest] + letters
    return letters


def _entry(group: _RepeatedRun, params: Sequence[Params], shown: Sequence[str]) -> RunEntry:
    rate_of, rate = _rate(group)
    cost = mean_cost([cost_of(run, run.duration_s) for run in group.summaries])
    first = group.runs[0]
    name = first.name if len(group.runs) == 1 else f"{first.name}+{len(group.runs) - 1}"
    kinds = Counter(run.primary_diagnosis.status for run in group.summaries)
    return RunEntry(
        label=group.label,
        name=name,
        runs=tuple(run.name for run in group.runs),
        params={name: params[group.places[0]].get(name) for name in shown},
        diagnosis=kinds.most_common(1)[0][0],
        step_time_ms=_mean_value(group, STEP_TIME),
        throughput_per_s=rate,
        throughput_of=rate_of,
        duration_s=cost.time_s,
        gpu_hours=cost.gpu_hours,
        energy_kwh=cost.energy_kwh,
    )


def _rate(group: _RepeatedRun) -> tuple[str | None, float | None]:
    samples = _mean_value(group, SAMPLES)
    if samples is not None:
        return "samples", samples
    steps = _mean_value(group, STEPS)
    return (None, None) if steps is None else ("steps", steps)


def _mean_value(group: _RepeatedRun, key: str) -> float | None:
    found = [values(Section.STEP_TIME, run).get(key) for run in group.summaries]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def _compared(
    groups: Sequence[_RepeatedRun],
    entries: Sequence[RunEntry],
    terms: Terms,
    compare_places: ComparePlaces | None,
) -> Iterator[Comparison]:
    baseline = groups[0]
    for group, entry in zip(groups[1:], entries[1:], strict=True):
        if compare_places is not None:
            yield compare_places(baseline.places, group.places)
        else:
            names = (entries[0].name, entry.name)
            yield compare_groups(baseline.summaries, group.summaries, names, terms)


def _logged(
    groups: Sequence[_RepeatedRun], every: Sides, directions: Mapping[str, bool | None]
) -> dict[str, MetricRow]:
    """Returns every logged metric against the baseline, corrected over metrics and entries.

    `directions` holds what the user says about the direction of a metric.
    """
    baseline, *others = groups
    names = _listed_metrics(every, directions)
    own = Sides(tuple(baseline.summaries), tuple(baseline.summaries))
    sides = {each.label: pair_up(baseline.summaries, each.summaries) for each in others}
    found: dict[tuple[str, str], Delta] = {}
    for name in names:
        alone = logged_delta(name, own)
        found[name, baseline.label] = Delta(alone.lhs, alone.lhs)
        for group in others:
            found[name, group.label] = logged_delta(name, sides[group.label])
    corrected = _corrected({key: found[key] for key in found if split_segment(key[0]) is None})
    corrected |= _corrected({key: found[key] for key in found if key not in corrected})
    rows: dict[str, MetricRow] = {}
    for name in names:
        better, source = _direction(name, every, directions.get(name))
        changes = {group.label: corrected[name, group.label] for group in groups}
        rows[name] = MetricRow(higher_is_better=better, direction_from=source, changes=changes)
    return rows


def _listed_metrics(every: Sides, asked: Iterable[str]) -> list[str]:
    """Returns the metrics of all runs, with the segments of those that have few: each pair of runs
    has its segments in its own comparison."""
    names = sorted({name for run in every.every_run for name in run.metrics})
    found = {*whole_metrics(names), *asked}
    for segments in segments_by_metric(names).values():
        found.update(segments if len(segments) <= MAX_SEGMENTS else ())
    return sorted(found)


def _direction(name: str, every: Sides, said: bool | None) -> tuple[bool | None, str | None]:
    if said is not None:
        return said, "user"
    direction = direction_in(name, every)
    if direction.higher_is_better is None:
        return None, None
    return direction.higher_is_better, "name" if direction.is_guessed else "script"


def _corrected(found: dict[tuple[str, str], Delta]) -> dict[tuple[str, str], Delta]:
    asked = {
        key: delta.p
        for key, delta in found.items()
        if delta.p is not None and delta.interval != (0, 0)
    }
    return found | {key: found[key].judged(p) for key, p in holm(asked).items()}


def _measured(
    groups: Sequence[_RepeatedRun], comparisons: Sequence[Comparison]
) -> dict[str, MetricRow]:
    """Returns step time and throughput against the baseline, as the comparisons have them."""
    found: dict[tuple[str, str], Delta] = {}
    keys = (STEP_TIME, SAMPLES, STEPS)
    for key in keys:
        base = _mean_value(groups[0], key)
        found[key, groups[0].label] = Delta(base, base)
        for group, comparison in zip(groups[1:], comparisons, strict=True):
            section = comparison.sections.get(Section.STEP_TIME.value)
            delta = section.metrics.get(key, Delta()) if section else Delta()
            found[key, group.label] = delta
    corrected = _corrected(found)
    return {
        key: MetricRow(
            higher_is_better=key != STEP_TIME,
            changes={group.label: corrected[key, group.label] for group in groups},
        )
        for key in keys
    }


def _to_reach(
    metric: str, groups: Sequence[_RepeatedRun], row: MetricRow, target: float | None
) -> TargetCost | None:
    """Returns what each entry took until the metric first was as good as the target."""
    better = row.higher_is_better
    if better is None:
        return None
    wanted = row.changes[groups[0].label].lhs if target is None else target
    if wanted is None or not any(metric in run.curves for group in groups for run in group.runs):
        return None
    costs: dict[str, Cost | None] = {}
    reached: dict[str, tuple[int, int]] = {}
    for group in groups:
        known = [run for run in group.runs if metric in run.curves]
        times = [first_reached_s(run.curves[metric], wanted, better) for run in known]
        spent = [
            cost_of(run.summary, time_s)
            for run, time_s in zip(known, times, strict=True)
            if time_s is not None
        ]
        reached[group.label] = (len(spent), len(known))
        costs[group.label] = mean_cost(spent) if spent and len(spent) == len(known) else None
    return TargetCost(
        metric=metric,
        target=wanted,
        higher_is_better=better,
        target_from="baseline" if target is None else "user",
        costs=costs,
        reached=reached,
    )


def _effects(
    candidates: Sequence[Candidate], params: Sequence[Params], metrics: Mapping[str, MetricRow]
) -> tuple[Effect, ...]:
    judged = [
        name
        for name in whole_metrics(metrics)
        if metrics[name].higher_is_better is not None and not is_cost(name)
    ]
    judged.sort(key=lambda name: not is_evaluated(name))

    def value(place: int, metric: str) -> float | None:
        run = candidates[place].summary
        if metric == STEP_TIME:
            return values(Section.STEP_TIME, run).get(STEP_TIME)
        return last_value(run, metric)

    return effects_of(params, [run.name for run in candidates], [*judged, STEP_TIME], value)


def _mattered(
    candidates: Sequence[Candidate],
    params: Sequence[Params],
    metric: str | None,
    metrics: Mapping[str, MetricRow],
) -> WhatMattered | None:
    if metric is None or not any(_tells(name) for name in varying(params)):
        return None
    # Late: it takes numpy, which a few summaries are compared without.
    from traceml.compare.parameter_importance import what_mattered

    values = [last_value(run.summary, metric) for run in candidates]
    return what_mattered(params, values, metric, metrics[metric].higher_is_better)
