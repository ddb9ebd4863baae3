"""The lines of a comparison table: each number on both sides, its change, and its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from traceml.compare.logged_metrics import LOGGED, PREFIX
from traceml.compare.record import Comparison, Delta, DiagnosisChange, LoggedDelta
from traceml.compare.segment_changes import worst_first
from traceml.compare.terms import ENDPOINTS
from traceml.compare.verdict_words import quantity
from traceml.model.evidence import EvidenceUnit as Unit
from traceml.model.finding import Section
from traceml.model.metric import BY_KEY, METRICS, Metric
from traceml.model.metric_direction import is_cost
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.phase import IN_RESIDUAL_MS, PHASES, Phase
from traceml.model.printable import one_line, shorten_at_word, shorten_middle
from traceml.model.quantities import NOT_MEASURED

MOVED_SHARE = 0.01
"""Of the longer step: a phase is listed if it changed by at least this much."""
MOVED_POINTS = 5.0
"""For a utilisation in percentage points, a temperature in degrees and a power in watts."""
MOVED_PCT = 5.0
"""For an amount of memory, a rate or a count."""
STATUS_WIDTH = 28
SIGNIFICANT = "*"
MAX_LOGGED = 8
"""Logged metrics that the table lists; the JSON file has all of them."""
MAX_SEGMENTED = 3
"""Metrics whose segments are listed."""
MAX_SEGMENTS = 4
MAX_FOLLOWING = 12
LOGGED_NAME_WIDTH = 28


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One line in words; `interval` is empty where there is none."""

    label: str
    lhs: str
    rhs: str
    delta: str
    interval: str = ""


def rows(comparison: Comparison) -> Iterator[ChangeLine]:
    """Returns what changed or matters, in reading order."""
    run = comparison.overview.duration_s
    if run.lhs is not None or run.rhs is not None:
        yield _row("Duration", run, Unit.SECONDS)
    shown = []
    for label, change, metric in _step_time(comparison):
        shown.append(metric.key)
        yield _row(label, change, metric.unit)
    skew = comparison.ranks.skew_percent
    if skew.delta is not None and abs(skew.delta) > MOVED_POINTS:
        yield _row("Rank skew", skew, Unit.PERCENT)
    for metric in METRICS:
        section = comparison.sections.get(metric.section.value)
        change = section.metrics.get(metric.key, Delta()) if section else Delta()
        if metric.row and metric.section is not Section.STEP_TIME and _moved(change, metric.unit):
            shown.append(metric.key)
            yield _row("  " * metric.depth + metric.row, change, metric.unit)
    yield from _judged(comparison, shown)
    for name in logged_shown(comparison):
        yield logged_row(name, comparison)
    step_memory = comparison.sections.get("step_memory")
    if step_memory and step_memory.diagnosis.changed is not None:
        lhs, rhs = statuses(step_memory.diagnosis)
        changed = "changed" if step_memory.diagnosis.changed else "same"
        yield ChangeLine("Step memory", lhs, rhs, changed)


def _step_time(comparison: Comparison) -> Iterator[tuple[str, Delta, Metric]]:
    section = comparison.sections.get("step_time")
    if section is None:
        return
    step = section.metrics.get("step_time_ms", Delta())
    threshold_ms = MOVED_SHARE * max(step.lhs or 0.0, step.rhs or 0.0)
    for metric in METRICS:
        if metric.section is not Section.STEP_TIME or not metric.row:
            continue
        change = section.metrics.get(metric.key, Delta())
        headline = metric.is_headline and (change.lhs is not None or change.rhs is not None)
        if metric.unit is Unit.PERCENT:
            moved = _moved(change, metric.unit)
        else:
            moved = change.delta is not None and abs(change.delta) > threshold_ms
        if headline or moved:
            yield _label(metric, section.metrics), change, metric


def _label(metric: Metric, metrics: Mapping[str, Delta]) -> str:
    """The row's name, which shows of what it is a part.

    The file's residual holds communication, which the rest that people are shown does not.
    """
    label = "  " * metric.depth + metric.row
    if metric.phase is not Phase.RESIDUAL:
        return label
    others = [PHASES[phase] for phase in IN_RESIDUAL_MS]
    changes = {entry.short: metrics.get(entry.metric, Delta()) for entry in others}
    return " + ".join([label, *(name for name, each in changes.items() if each.lhs or each.rhs)])


def _judged(comparison: Comparison, shown: list[str]) -> Iterator[ChangeLine]:
    """Yields the metric that decided the verdict, if it is not among the usual lines."""
    endpoint = ENDPOINTS.get(comparison.verdict.metric)
    if endpoint is None or endpoint.section is None:
        return  # a logged metric has its line below
    section = comparison.sections.get(endpoint.section.value)
    for metric in endpoint.metrics:
        change = section.metrics.get(metric, Delta()) if section else Delta()
        if metric not in shown and change.delta is not None:
            unit = BY_KEY[endpoint.section, metric].unit
            yield _row(endpoint.word.replace("_", " ").capitalize(), change, unit)
            return
        if metric in shown:
            return


def logged_changes(comparison: Comparison) -> dict[str, LoggedDelta]:
    """Returns the changes of the metrics that the scripts logged, by name."""
    section = comparison.sections.get(LOGGED)
    found = section.metrics if section else {}
    return {name: LoggedDelta.of(delta) for name, delta in found.items()}


def logged_shown(comparison: Comparison) -> list[str]:
    """Returns the logged metrics that get a line: the one judged by, those that the runs show to
    have changed, and those with a direction, the largest changes first; time and resources last.

    Of segments the one judged by is among them, and those of `segments_shown` follow.
    """
    judged = comparison.verdict.metric.removeprefix(PREFIX)
    found = logged_changes(comparison)
    listed = [
        name
        for name, delta in found.items()
        if delta.delta is not None
        and (name == judged or delta.significant or delta.higher_is_better is not None)
        and (name == judged or split_segment(name) is None)
    ]

    def order(name: str) -> tuple[bool, bool, bool, bool, float]:
        delta = found[name]
        size = math.inf if delta.pct_change is None else abs(delta.pct_change)
        has_none = delta.higher_is_better is None
        return (name != judged, is_cost(name), not delta.significant, has_none, -size)

    whole = sorted(listed, key=order)[:MAX_LOGGED]
    return [*whole, *(name for name in segments_shown(comparison) if name not in whole)]


def logged_in_order(comparison: Comparison) -> list[str]:
    """Returns the logged metrics that both sides have, those that matter first; the segments of a
    metric follow it, those that lost the most first. Of many, `MAX_FOLLOWING` that changed do."""
    found = logged_changes(comparison)
    known = [name for name, delta in found.items() if delta.delta is not None]
    first = [name for name in logged_shown(comparison) if split_segment(name) is None]
    ordered: list[str] = []
    for name in dict.fromkeys((*first, *map(metric_of, known))):
        ordered += [name] if found.get(name, Delta()).delta is not None else []
        if name in comparison.segments:
            segments = worst_first(found, name)
            if len(segments) > MAX_FOLLOWING:
                segments = [each for each in segments if found[each].delta][:MAX_FOLLOWING]
            ordered += segments
    return ordered


def segments_shown(comparison: Comparison) -> list[str]:
    """Returns the segments that get a line: of each metric those that lost the most; where none got
    worse and the whole metric is not known, those that gained the most."""
    logged = logged_changes(comparison)
    shown: list[str] = []
    for metric, found in list(comparison.segments.items())[:MAX_SEGMENTED]:
        ordered = worst_first(logged, metric)
        if found.worse:
            shown += ordered[: min(found.worse, MAX_SEGMENTS)]
        elif metric not in logged:
            shown += ordered[::-1][: min(found.better, MAX_SEGMENTS)]
    return shown


def logged_row(name: str, comparison: Comparison) -> ChangeLine:
    """Returns the line of a logged metric, with whether its change is for better or worse."""
    change = logged_changes(comparison)[name]
    line = _row(shorten_middle(one_line(name), LOGGED_NAME_WIDTH), change, Unit.NUMBER)
    if not change.delta or change.higher_is_better is None:
        return line
    word = "better" if change.is_better else "worse"
    delta, mark, end = line.delta, f" {SIGNIFICANT}", ""
    if delta.endswith(mark):
        delta, end = delta.removesuffix(mark), mark
    said = f"{delta[:-1]}, {word})" if delta.endswith(")") else f"{delta} ({word})"
    return replace(line, delta=f"{said}{end}")


def _moved(change: Delta, unit: Unit) -> bool:
    if change.delta is None:
        return False
    if unit in (Unit.PERCENT, Unit.SHARE, Unit.CELSIUS, Unit.WATTS):
        return abs(change.delta) > MOVED_POINTS / (100 if unit is Unit.SHARE else 1)
    grew_from_nothing = change.pct_change is None and change.delta != 0
    return grew_from_nothing or abs(change.pct_change or 0.0) > MOVED_PCT


def _row(label: str, change: Delta, unit: Unit) -> ChangeLine:
    if unit is Unit.SHARE:  # people read a fraction as a percentage
        change, unit = change.times(100), Unit.PERCENT
    lhs, rhs = quantity(change.lhs, unit), quantity(change.rhs, unit)
    if change.delta is None:
        return ChangeLine(label, lhs, rhs, NOT_MEASURED)
    mark = f" {SIGNIFICANT}" if change.significant else ""
    interval = _interval(change, unit)
    if change.delta == 0:
        return ChangeLine(label, lhs, rhs, "same", interval)
    is_share = change.pct_change is not None and unit is not Unit.PERCENT
    share = f" ({change.pct_change:+,.1f}%)" if is_share else ""
    return ChangeLine(label, lhs, rhs, f"{_signed(change.delta, unit)}{share}{mark}", interval)


def _interval(change: Delta, unit: Unit) -> str:
    if change.interval is None or change.interval == (0, 0):
        return ""
    low, high = (_signed(limit, unit) for limit in change.interval)
    symbol = " " + high.rpartition(" ")[2]
    return f"{low.removesuffix(symbol)} … {high}" if low.endswith(symbol) else f"{low} … {high}"


def _signed(value: float, unit: Unit) -> str:
    shown = f"{value:+,.1f} pp" if unit is Unit.PERCENT else quantity(value, unit)
    return shown if shown.startswith(("-", "+")) else f"+{shown}"


def statuses(change: DiagnosisChange) -> tuple[str, str]:
    """Returns the diagnoses of both sides, shortened to fit a column."""
    return (
        shorten_at_word(one_line(change.lhs or NOT_MEASURED), STATUS_WIDTH),
        shorten_at_word(one_line(change.rhs or NOT_MEASURED), STATUS_WIDTH),
    )
