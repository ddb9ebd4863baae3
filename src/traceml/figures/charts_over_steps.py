"""Charts over steps: the phases of each step, how far ranks are apart, and each rank as a row."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from traceml.facts.history import StepHistory
from traceml.figures import charts_over_ranks
from traceml.figures.charts_over_ranks import is_measured, measured_columns, rank_names, rank_series
from traceml.figures.colours import MEDIAN, STEP, WORST
from traceml.figures.findings import spans
from traceml.figures.page import Axis, Heatmap, Lines, Series, Span
from traceml.figures.units import (
    Floats,
    Unit,
    next_round,
    scaled,
    scaled_one,
    scaled_rows,
    time_unit,
)
from traceml.model.finding import Section
from traceml.model.phase import BETWEEN, COMPUTE_PART, PHASES, Phase
from traceml.model.quantities import count, duration
from traceml.summaries.record import Summary

MAX_CELLS = 65_536
"""Cells of a heat map: a screen cannot show more, and zooming in loads finer ones."""
MIN_TO_CUT = 10
USUAL_QUANTILE = 0.95
CUT_TIMES = 3.0
"""A point this many times as high as nearly all others would flatten them; it is cut off."""
HEADROOM = 1.1
ROUNDING = 1e-9
"""Of a step: a layer thinner than this is what rounding left over."""
SHOWN_BETWEEN_SHARE = 0.005  # of the wall time: less is the loop itself
MIN_HEAT = 0.1
"""As a share of the median: the colours cover at least this range on both sides, so that noise does
not look like a pattern."""

OWN = "own time is the step without exposed communication, in which a rank waits for the others"
WHOLE = "the whole step: how long ranks wait for each other was not measured"
STEPS = Axis("step")
_STACK = "Where the time of a step goes"
_STEP_SPANS = (Section.STEP_TIME.value, Section.STABILITY.value)


def stacked_phases(history: StepHistory, summary: Summary | None, whose: str = "") -> Lines | None:
    """Returns every step's time with its phases stacked; `None` where no step was measured.

    `whose` says for a run of several ranks which of them the history is of.
    """
    if not is_measured(history.step_s):
        return None
    history = where_measured(history, history.step_s)
    layers = {
        (entry.label, phase.value): history.over_ranks(history.phase_s[phase])
        for phase, entry in PHASES.items()
        if phase in history.phase_s and is_measured(history.phase_s[phase])
    }
    if history.graph_s is not None:
        layers["Compute (CUDA graph)", COMPUTE_PART] = history.over_ranks(history.graph_s)
    if not layers:
        layers = {("Step", STEP): charts_over_ranks.mean(history.step_s)}
    between = charts_over_ranks.mean(history.between_s)
    total = np.nansum(np.stack(list(layers.values())), axis=0)
    if np.nansum(between) > SHOWN_BETWEEN_SHARE * np.nansum(total):
        layers["Between steps", BETWEEN] = between
        total = total + np.nan_to_num(between)
    layers = {
        name: np.where(np.abs(values) < ROUNDING * total, 0.0, values)
        for name, values in layers.items()
    }
    top_s = cut_at(total)
    unit = time_unit(total if top_s is None else top_s)
    return Lines(
        id="step-time",
        title=f"{_STACK}: {whose}" if whose else _STACK,
        x=STEPS,
        y=_time_axis("per step", unit, top_s),
        at=steps_at(history),
        series=tuple(
            Series(name, colour, scaled(values, unit)) for (name, colour), values in layers.items()
        ),
        stacked=True,
        spans=step_spans(history, summary),
        caption=_caption(history, None if whose else "mean over ranks", total, top_s),
        zooms=True,
    )


def rank_spread(history: StepHistory) -> Lines | None:
    """Returns the time of each rank over steps; for one rank the longest step of each point beside
    the mean. `None` where a point is one step of one rank."""
    own_s, is_own = own_times(history)
    several = len(history.ranks) > 1
    if not is_measured(own_s) or not (several or history.bucket_steps > 1):
        return None
    history = where_measured(history, own_s)
    own_s, _ = own_times(history)
    shown = [own_s] if several else [own_s, history.longest_s]
    top_s = cut_at(np.concatenate([table.ravel() for table in shown]))
    unit = time_unit(*shown) if top_s is None else time_unit(top_s)
    if several:
        series = rank_series(own_s, rank_names(history.ranks), unit)
        title = "Own time of every rank" if is_own else "Step time of every rank"
    else:
        series = (
            Series("Longest step", WORST, scaled(history.longest_s[0], unit)),
            Series("Mean step", MEDIAN, scaled(own_s[0], unit)),
        )
        title = "Longest against mean step"
    return Lines(
        id="step-spread",
        title=title,
        x=STEPS,
        y=_time_axis("per step", unit, top_s),
        at=steps_at(history),
        series=series,
        caption=_caption(
            history, OWN if is_own else None, charts_over_ranks.highest(shown[-1]), top_s
        ),
        zooms=True,
    )


def rank_heat(history: StepHistory) -> Heatmap | None:
    """Returns a heat map of step times with a row per rank; `None` for one rank."""
    own_s, is_own = own_times(history)
    if len(history.ranks) < 2 or not is_measured(own_s):
        return None
    history = where_measured(history, own_s)
    own_s, at = _thinned(own_times(history)[0], steps_at(history))
    low_s, high_s = heat_range(own_s)
    unit, whose = time_unit(high_s), "Own" if is_own else "Step"
    value = Axis(
        "per step", unit.symbol, low=scaled_one(low_s, unit), high=scaled_one(high_s, unit)
    )
    return Heatmap(
        id="rank-heat",
        title=f"{whose} time by rank and step: a late rank is a bright stripe",
        x=STEPS,
        at=at,
        rows=rank_names(history.ranks),
        values=scaled_rows(own_s, unit),
        value=value,
        caption=None if is_own else _sentence(WHOLE),
        zooms=True,
    )


def where_measured(history: StepHistory, table: Floats) -> StepHistory:
    """Returns the history without the points at which no rank has a value in this table."""
    return only_columns(history, measured_columns(table))


def only_columns(history: StepHistory, chosen: charts_over_ranks.Bools) -> StepHistory:
    """Returns the history with the chosen points alone."""
    if chosen.all():
        return history
    arrays: dict[str, Any] = {
        field.name: value[..., chosen]
        for field in fields(history)
        if isinstance(value := getattr(history, field.name), np.ndarray)
    }
    phases = {phase: values[:, chosen] for phase, values in history.phase_s.items()}
    return replace(history, phase_s=phases, **arrays)


def own_times(history: StepHistory) -> tuple[Floats, bool]:
    """Returns each rank's time per step, and whether its wait for other ranks was subtracted."""
    communication = history.phase_s.get(Phase.COMMUNICATION)
    if communication is None or not is_measured(communication):
        return history.step_s, False
    return history.step_s - np.nan_to_num(communication), True


def steps_at(history: StepHistory) -> tuple[float, ...]:
    """Returns the number of the first step of each point."""
    return tuple(history.first_steps.astype(np.float64).tolist())


def step_spans(
    history: StepHistory, summary: Summary | None, names: tuple[str, ...] = _STEP_SPANS
) -> tuple[Span, ...]:
    """Returns the findings as spans on the axis of steps, cut to the part that is shown."""
    if not len(history.first_steps):
        return ()
    first, last = int(history.first_steps[0]), int(history.first_steps[-1])
    return tuple(
        span
        for span in spans(summary, names, first)
        if span.begin < last and (span.until is None or span.until >= first)
    )


def cut_at(values: Floats) -> float | None:
    """Returns where the axis has to end so that a single peak (a first step, a checkpoint) does not
    flatten the rest; `None` where there is no such peak."""
    known = values[np.isfinite(values)]
    if len(known) < MIN_TO_CUT:
        return None
    usual = float(np.quantile(known, USUAL_QUANTILE))
    is_peak = usual > 0 and known.max() > CUT_TIMES * usual
    return next_round(HEADROOM * usual) if is_peak else None


def each_point(history: StepHistory) -> str:
    """Returns in words how many steps a point stands for."""
    return "" if history.bucket_steps == 1 else f"{count(history.bucket_steps)} steps a point"


def _time_axis(label: str, unit: Unit, top_s: float | None) -> Axis:
    high = None if top_s is None else scaled_one(top_s, unit)
    return Axis(label, unit.symbol, low=0.0, high=high)


def _caption(
    history: StepHistory, over: str | None, total: Floats, top_s: float | None
) -> str | None:
    several = over if len(history.ranks) > 1 else None
    said = [_sentence(part) for part in (several, each_point(history)) if part]
    if top_s is not None:
        peak = int(np.nanargmax(total))
        said.append(
            f"Cut at {duration(top_s)}: the highest is {duration(float(total[peak]))}, "
            f"at step {count(int(history.first_steps[peak]))}."
        )
    return " ".join(said) or None


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _thinned(table: Floats, at: tuple[float, ...]) -> tuple[Floats, tuple[float, ...]]:
    """Returns the table with neighbouring columns averaged until a screen can show it."""
    ranks, columns = table.shape
    most = max(1, MAX_CELLS // ranks)
    if columns <= most:
        return table, at
    group = -(-columns // most)
    starts = range(0, columns, group)
    merged = np.stack([charts_over_ranks.mean(table[:, s : s + group].T) for s in starts], axis=1)
    return merged, tuple(at[start] for start in starts)


def heat_range(table: Floats) -> tuple[float, float]:
    """Returns the times of the darkest and the brightest colour: the range of nearly all steps,
    without outliers such as a slow first step."""
    medians = charts_over_ranks.median(table)
    known = medians[np.isfinite(medians)]
    typical = float(np.median(known))
    usual = table[:, np.nan_to_num(medians, nan=np.inf) <= CUT_TIMES * typical]
    usual = usual[np.isfinite(usual)]
    if not usual.size:  # damaged records: a median below zero
        return float(known.min()), float(known.max())
    low, high = (float(np.quantile(usual, share)) for share in (0.005, 0.995))
    return min(low, (1 - MIN_HEAT) * typical), max(high, (1 + MIN_HEAT) * typical)
