"""The part of the page on the training processes: what each rank uses of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from traceml.facts.history import SensorHistory
from traceml.figures.charts_over_time import curves_by, table_of
from traceml.figures.findings import lead_card
from traceml.figures.page import Axis, Lines, Part, Row, Table, Tile
from traceml.figures.step_table import MAX_RANKS
from traceml.figures.units import CORES, fitted, memory_unit
from traceml.figures.words import measured_value, rank_cell, rank_words
from traceml.model.finding import Section
from traceml.model.metric import in_summary
from traceml.model.quantities import count, memory, percent
from traceml.summaries.record import SectionSummary, Summary

STARVED_PERCENT = 10.0
"""Of the time spent waiting for a core: from here on it gets a tile."""

_COLUMNS = {metric.label: metric.key for metric in in_summary(Section.PROCESS) if metric.label}


def process_part(summary: Summary | None, sensors: SensorHistory | None) -> Part | None:
    """Returns tiles, charts and a table by rank; `None` where no process was sampled."""
    section = None if summary is None else summary.process
    tiles = () if section is None else tuple(_tiles(section))
    figures = () if sensors is None else tuple(_figures(sensors))
    if not tiles and not figures:
        return None
    table = None if section is None else _table(section)
    several = section is not None and len(section.groups.rows) > 1
    return Part(
        id="process",
        title="Training processes" if several else "Training process",
        finding=None if summary is None else lead_card(summary, Section.PROCESS.value),
        tiles=tiles,
        figures=figures,
        tables=() if table is None else (table,),
    )


def _tiles(section: SectionSummary) -> Iterator[Tile]:
    worst, average = section.global_.worst, section.global_.average
    several = len(section.groups.rows) > 1
    cpu = measured_value(worst, "cpu_percent")
    if cpu is not None:
        share = average.get("cpu_capacity_percent")
        note = f"rank {rank_cell(worst, 'cpu_percent')}" if several else None
        if note is None and share is not None:
            note = f"{percent(share / 100)} of the cores there are"
        yield Tile("CPU, worst rank" if several else "CPU", cores(cpu), note=note)
    resident = measured_value(worst, "ram_bytes")
    if resident is not None:
        share = measured_value(worst, "ram_percent")
        note = None if share is None else f"{percent(share / 100)} of the host's"
        yield Tile("Memory, worst rank" if several else "Memory", memory(resident), note=note)
    reserved = measured_value(worst, "gpu_mem_reserved_bytes")
    if reserved is not None:
        yield Tile("GPU memory", memory(reserved), note=_gpu_note(section))
    workers = average.get("workers")
    if workers:
        used = average.get("workers_cpu_percent")
        note = None if used is None else f"{cores(used)} busy"
        yield Tile("Data workers", count(round(workers)), note=note)
    starved = measured_value(worst, "runqueue_percent")
    if starved is not None and starved >= STARVED_PERCENT:
        yield Tile("Waiting for a core", percent(starved / 100), note="of the main thread's time")


def _gpu_note(section: SectionSummary) -> str | None:
    """Returns the skew of several ranks' GPU memory; for one rank how full it is."""
    worst, median = (
        measured_value(side, "gpu_mem_used_bytes")
        for side in (section.global_.worst, section.global_.median)
    )
    if len(section.groups.rows) > 1 and worst is not None and median:
        return f"used imbalance {percent(worst / median - 1)}"
    full = measured_value(section.global_.worst, "gpu_mem_reserved_percent")
    return None if full is None else f"{percent(full / 100)} of the GPU's"


def _figures(sensors: SensorHistory) -> Iterator[Lines]:
    found = sensors.processes
    cpu = curves_by(
        "process-cpu",
        _title("CPU", sensors),
        sensors,
        found,
        "cpu_cores",
        "rank",
        CORES,
        Axis("cores busy", low=0.0),
    )
    if cpu is not None:
        yield cpu
    resident = table_of(found, "rss_bytes")
    if resident is not None:
        unit = memory_unit(resident)
        axis = fitted("resident", unit, resident)
        lines = curves_by(
            "process-memory",
            _title("Memory", sensors),
            sensors,
            found,
            "rss_bytes",
            "rank",
            unit,
            axis,
        )
        if lines is not None:
            yield lines
    workers = table_of(found, "workers_cpu_cores")
    if workers is not None and workers.max(initial=0.0, where=workers > 0) > 0:
        axis = Axis("cores busy", low=0.0)
        lines = curves_by(
            "workers-cpu",
            "CPU of the data workers",
            sensors,
            found,
            "workers_cpu_cores",
            "rank",
            CORES,
            axis,
        )
        if lines is not None:
            yield lines


def _title(words: str, sensors: SensorHistory) -> str:
    return f"{words} by rank" if len(sensors.processes) > 1 else f"{words} of the process"


def _table(section: SectionSummary) -> Table | None:
    """Returns the table by rank, the busiest first; `None` for one rank."""
    ranks = section.groups.rows
    if len(ranks) < 2:
        return None
    busiest = sorted(
        ((name, row.metrics) for name, row in ranks.items()),
        key=lambda rank: -(rank[1].get("cpu_percent") or 0.0),
    )
    shown = {
        title: key
        for title, key in _COLUMNS.items()
        if any(_says_something(key, metrics.get(key)) for _, metrics in busiest)
    }
    rows = tuple(
        Row(
            (
                rank_words(name, ranks[name]),
                *(_shown(key, metrics.get(key)) for key in shown.values()),
            )
        )
        for name, metrics in busiest[:MAX_RANKS]
    )
    note = None
    if len(ranks) > MAX_RANKS:
        note = f"The busiest {MAX_RANKS} of {count(len(ranks))} ranks."
    return Table("process-table", "Processes", ("Rank", *shown), rows, note)


def _says_something(key: str, value: float | None) -> bool:
    """Returns whether a column is worth showing: without data workers, theirs are zeros."""
    return bool(value) if key.startswith("workers") else value is not None


def _shown(key: str, value: float | None) -> str:
    if key.endswith("_bytes"):
        return memory(value)
    if key.endswith("cpu_percent"):
        return cores(value)
    if key.endswith("_percent"):
        return percent(None if value is None else value / 100)
    return count(None if value is None else round(value))


def cores(cpu_percent: float | None) -> str:
    """Returns a percentage of one core as a number of cores."""
    return "n/a" if cpu_percent is None else f"{cpu_percent / 100:.1f} cores"
