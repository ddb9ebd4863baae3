"""The part of the page on step memory: how much the ranks use, and how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from traceml.facts.history import History, StepHistory
from traceml.figures.charts_over_ranks import held, is_measured, rank_names, rank_series
from traceml.figures.charts_over_steps import (
    STEPS,
    each_point,
    step_spans,
    steps_at,
    where_measured,
)
from traceml.figures.findings import lead_card, tone
from traceml.figures.page import Axis, Limit, Lines, Part, Row, Series, Table, Tile, Tone
from traceml.figures.units import Floats, Unit, fitted, memory_unit, next_round, scaled_one
from traceml.figures.words import measured_value, rank_cell, skew
from traceml.model.finding import Kind, Section
from traceml.model.quantities import excess, memory, percent
from traceml.summaries.record import SectionSummary, Summary

NEAR_CAPACITY = 0.5
"""From this share on the capacity is in the chart; below, it would flatten every curve."""
HEADROOM = 1.05

_COLUMNS = {
    "GPU allocated": ("peak_allocated_bytes", "allocated_rise_bytes"),
    "GPU reserved": ("peak_reserved_bytes", None),
    "Host": ("peak_rss_bytes", "rss_rise_bytes"),
}
"""What is measured: its peak, and how far it rose from the first steps to the last."""
_PEAKS = ("peak_reserved_bytes", "peak_allocated_bytes", "peak_rss_bytes")
"""What a capacity is compared with: the first that was measured."""
_PEAK_WORDS = {
    "peak_reserved_bytes": "reserved on the GPU",
    "peak_allocated_bytes": "allocated on the GPU",
    "peak_rss_bytes": "resident on the host",
}
_ON_HOST = ("host", "workers")


def step_memory_part(summary: Summary | None, history: History) -> Part | None:
    """Returns peaks, trend and capacity; `None` where no memory was measured."""
    section = None if summary is None else summary.step_memory
    figures = () if history.steps is None else memory_lines(history.steps, summary, history)
    peak = None if section is None else _peak(section)
    table = None if section is None or peak is None else _table(section)
    if not figures and table is None:
        return None
    is_host = peak == "peak_rss_bytes" or (peak is None and figures[0].id == "host-memory")
    return Part(
        id="step-memory",
        title="Step memory",
        note="No GPU memory was measured: this is the host's." if is_host else None,
        finding=None if summary is None else lead_card(summary, Section.STEP_MEMORY.value),
        tiles=tuple(_tiles(section, peak, summary, history)) if section and peak else (),
        figures=figures,
        tables=() if table is None else (table,),
    )


def memory_lines(
    steps: StepHistory, summary: Summary | None, history: History | None = None
) -> tuple[Lines, ...]:
    """Returns memory over steps: the GPU's if there is one, the host's if it is the only one or
    grows."""
    drawn = []
    on_gpu = is_measured(steps.allocated_bytes) or is_measured(steps.reserved_bytes)
    if on_gpu:
        drawn.append(_gpu_lines(steps, gpu_capacity_bytes(summary, history)))
    if is_measured(steps.rss_bytes) and (not on_gpu or _is_host_blamed(summary)):
        drawn.append(_host_lines(steps, host_capacity_bytes(summary, history)))
    marked = step_spans(steps, summary, (Section.STEP_MEMORY.value,))
    return tuple(structs.replace(lines, spans=marked) for lines in drawn)


def _gpu_lines(steps: StepHistory, capacity_bytes: float | None) -> Lines:
    """Returns allocated and reserved memory for one rank; for several ranks allocated memory."""
    known = np.concatenate([steps.allocated_bytes, steps.reserved_bytes])
    steps = where_measured(steps, known)
    allocated, reserved = held(steps.allocated_bytes), held(steps.reserved_bytes)
    unit = memory_unit(allocated, reserved)
    if len(steps.ranks) > 1:
        table = allocated if is_measured(allocated) else reserved
        series = rank_series(table, rank_names(steps.ranks), unit)
    else:
        both = np.concatenate([allocated, reserved])
        series = rank_series(both, ("allocated", "reserved"), unit)
    lines = _lines("gpu-memory", "GPU memory over steps", series, steps, unit, allocated, reserved)
    return with_capacity(lines, [allocated, reserved], capacity_bytes, unit)


def _host_lines(steps: StepHistory, capacity_bytes: float | None) -> Lines:
    steps = where_measured(steps, steps.rss_bytes)
    resident = held(steps.rss_bytes)
    unit = memory_unit(resident)
    series = rank_series(resident, rank_names(steps.ranks), unit)
    lines = _lines("host-memory", "Host memory over steps", series, steps, unit, resident)
    return with_capacity(lines, [resident], capacity_bytes, unit)


def with_capacity(
    lines: Lines, tables: Sequence[Floats], capacity_bytes: float | None, unit: Unit
) -> Lines:
    """Returns the chart with the capacity as a line, or in words where the curves are far below
    it."""
    peak_bytes = max(float(np.nanmax(table)) for table in tables if is_measured(table))
    if capacity_bytes is None:
        return lines
    if peak_bytes < NEAR_CAPACITY * capacity_bytes:
        said = f"{percent(peak_bytes / capacity_bytes)} of {memory(capacity_bytes)} at most."
        return structs.replace(lines, caption=f"{lines.caption or ''} {said}".strip())
    limit = Limit(scaled_one(capacity_bytes, unit), f"capacity {memory(capacity_bytes)}", "crit")
    top = next_round(HEADROOM * max(peak_bytes, capacity_bytes) / unit.size)
    axis = Axis(lines.y.label, unit.symbol, low=0.0, high=top)
    return structs.replace(lines, limits=(limit,), y=axis)


def gpu_capacity_bytes(summary: Summary | None, history: History | None) -> float | None:
    """Returns the memory of the smallest GPU."""
    found: list[float] = []
    process = None if summary is None else summary.process
    for row in () if process is None else process.groups.rows.values():
        reserved = row.metrics.get("gpu_mem_reserved_bytes")
        headroom = row.metrics.get("gpu_mem_headroom_bytes")
        if reserved is not None and headroom is not None:
            found.append(reserved + headroom)
    if not found and history is not None and history.sensors is not None:
        for gpu in history.sensors.gpus.values():
            total = gpu.get("memory_total_bytes")
            if total is not None and is_measured(total):
                found.append(float(np.nanmax(total)))
    return min(found, default=None)


def host_capacity_bytes(summary: Summary | None, history: History | None) -> float | None:
    """Returns the memory of the host, or the job's limit."""
    if history is not None and history.sensors is not None:
        total = history.sensors.host.get("ram_total_bytes")
        if total is not None and is_measured(total):
            return float(np.nanmax(total))
    hardware = summary.lineage.hardware if summary and summary.lineage else None
    if hardware is None:
        return None
    known = (hardware.ram_bytes, hardware.memory_limit_bytes)
    return min((float(size) for size in known if size), default=None)


def _lines(
    name: str,
    title: str,
    series: tuple[Series, ...],
    steps: StepHistory,
    unit: Unit,
    *tables: Floats,
) -> Lines:
    point = each_point(steps)
    return Lines(
        id=name,
        title=title,
        x=STEPS,
        y=fitted("memory", unit, *tables),
        at=steps_at(steps),
        series=series,
        caption=f"The most seen, {point}." if point else None,
        zooms=True,
    )


def _is_host_blamed(summary: Summary | None) -> bool:
    section = None if summary is None else summary.step_memory
    return section is not None and any(
        issue.evidence.get("place") in _ON_HOST
        and tone(issue.kind, issue.severity) in ("warn", "crit")
        for issue in section.issues
    )


def _peak(section: SectionSummary) -> str | None:
    return next(
        (key for key in _PEAKS if measured_value(section.global_.worst, key) is not None), None
    )


def _table(section: SectionSummary) -> Table:
    found, is_alone = section.global_, len(section.groups.rows) < 2
    shown = {
        title: keys
        for title, keys in _COLUMNS.items()
        if measured_value(found.worst, keys[0]) is not None
    }
    peaks = [peak for peak, _ in shown.values()]
    worst = [memory(measured_value(found.worst, peak)) for peak in peaks]
    rises = [signed_memory(measured_value(found.worst, rise)) for _, rise in shown.values()]
    note = "Rise: how much more the last steps held than the first"
    if is_alone:
        rows: tuple[Row, ...] = (Row(("Peak", *worst)), Row(("Rise", *rises)))
        note += "."
    else:
        rows = (
            Row(("Median rank", *(memory(measured_value(found.median, peak)) for peak in peaks))),
            Row(("Worst rank", *worst)),
            Row(("Which rank", *(rank_cell(found.worst, peak) for peak in peaks))),
            Row(("Skew", *(excess(skew(found, peak)) for peak in peaks))),
            Row(("Rise", *rises)),
        )
        note += ", of the worst rank."
    return Table("step-memory-table", "Step memory", ("", *shown), rows, note)


def signed_memory(size_bytes: float | None) -> str:
    """Returns a change of an amount of memory, with its sign."""
    sign = "+" if size_bytes is not None and size_bytes > 0 else ""
    return sign + memory(size_bytes)


def _tiles(
    section: SectionSummary, peak: str, summary: Summary | None, history: History
) -> Iterator[Tile]:
    found = section.global_
    worst_bytes, median_bytes = (
        measured_value(found.worst, peak),
        measured_value(found.median, peak),
    )
    is_host, several = peak == "peak_rss_bytes", len(section.groups.rows) > 1
    if several:
        yield Tile("Median peak", memory(median_bytes))
    yield Tile("Worst peak" if several else "Peak", memory(worst_bytes), note=_PEAK_WORDS[peak])
    capacity = (host_capacity_bytes if is_host else gpu_capacity_bytes)(summary, history)
    if capacity and worst_bytes is not None:
        share = worst_bytes / capacity
        note = f"of {memory(capacity)}{' host memory' if is_host else ' GPU memory'}"
        yield Tile("Of capacity", percent(share), note=note, tone=_pressure(section))
    if several:
        yield Tile("Skew", excess(skew(found, peak)), note="worst against median")
        yield Tile("Worst rank", rank_cell(found.worst, peak))
    rise = next((rise for key, rise in _COLUMNS.values() if key == peak), None)
    rise_bytes = measured_value(found.worst, rise or "allocated_rise_bytes")
    if rise_bytes is not None:
        yield Tile("Rise", signed_memory(rise_bytes), note="last steps against first")


def _pressure(section: SectionSummary) -> Tone | None:
    """Returns the tone of a peak that a rule found too high."""
    found = (issue for issue in section.issues if issue.kind == Kind.HIGH_PRESSURE.value)
    return next((tone(issue.kind, issue.severity) for issue in found), None)
