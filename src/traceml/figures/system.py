"""The parts of the page on the machine: the host, and its GPUs where it has any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from msgspec import structs

from traceml.facts.history import SensorHistory
from traceml.figures.charts_over_time import curves, curves_by, peak, table_of
from traceml.figures.findings import lead_card
from traceml.figures.page import Axis, Lines, Part, Row, Table, Tile
from traceml.figures.step_memory import with_capacity
from traceml.figures.units import CELSIUS, PERCENT, WATT, fitted, memory_unit, rate_unit
from traceml.figures.words import cell, line
from traceml.model.finding import Section
from traceml.model.metric import GPU_COUNTERS
from traceml.model.quantities import count, memory, percent
from traceml.summaries.record import SectionSummary, Summary, SystemSummary

BUSY_BYTES_PER_S = float(1 << 20)
"""A disk or a network with less traffic than this is idle and gets no figure."""
THROTTLED_PERCENT = 1.0
MAX_GPUS = 64

_COUNTED = tuple(metric for metric in GPU_COUNTERS if metric.note)
"""The counters of the GPU that are drawn."""

_TRAFFIC = {
    "disk_read": "Disk read",
    "disk_write": "Disk written",
    "network_received": "Network received",
    "network_sent": "Network sent",
}
"""What is read and written, by the first part of its field's name."""

_SHARE = Axis("", PERCENT.symbol, low=0.0, high=100.0)


def system_part(summary: Summary | None, sensors: SensorHistory | None) -> Part | None:
    """Returns the host's CPU, memory, disk and network; `None` where nothing was sampled."""
    section = None if summary is None else summary.system
    tiles = () if section is None else tuple(_tiles(section))
    figures = () if sensors is None else tuple(_figures(sensors))
    if not tiles and not figures:
        return None
    return Part(
        id="system",
        title="System",
        finding=None if summary is None else lead_card(summary, Section.SYSTEM.value),
        tiles=tiles,
        figures=figures,
    )


def gpu_part(summary: Summary | None, sensors: SensorHistory | None) -> Part | None:
    """Returns the GPUs' load, memory, temperature and power; `None` where there is no GPU."""
    section = None if summary is None else summary.system
    tiles = () if section is None else tuple(_gpu_tiles(section))
    figures = () if sensors is None else tuple(_gpu_figures(sensors))
    if not tiles and not figures:
        return None
    names = () if sensors is None else tuple(dict.fromkeys(map(line, sensors.gpu_names.values())))
    table = None if section is None else _gpu_table(section)
    return Part(
        id="gpu",
        title="GPU",
        note=", ".join(names) or None,
        tiles=tiles,
        figures=figures,
        tables=() if table is None else (table,),
    )


def _tiles(section: SectionSummary) -> Iterator[Tile]:
    found = section.global_.average
    cpu, cpu_peak = found.get("cpu_percent"), found.get("cpu_peak_percent")
    if cpu is not None:
        note = None if cpu_peak is None else f"peak {percent(cpu_peak / 100)}"
        over = _over_machines(section, "cpu_percent", lambda value: percent(value / 100))
        yield Tile("CPU", percent(cpu / 100), note=over or note)
    ram, share = found.get("ram_bytes"), found.get("ram_percent")
    if ram is not None:
        total = None if not share else f"{percent(share / 100)} of {memory(ram / share * 100)}"
        yield Tile("RAM", memory(ram), note=_over_machines(section, "ram_bytes", memory) or total)
    throttled = found.get("cpu_throttled_percent")
    if throttled is not None and throttled >= THROTTLED_PERCENT:
        yield Tile("CPU throttled", percent(throttled / 100), note="by the quota")
    swapped = found.get("swap_peak_bytes")
    if swapped:
        yield Tile("Swap", memory(swapped), note="at most")
    read, written = found.get("disk_read_bytes_per_s"), found.get("disk_write_bytes_per_s")
    if read is not None:
        note = None if written is None else f"{memory(written)}/s written"
        over = _over_machines(section, "disk_read_bytes_per_s", lambda rate: f"{memory(rate)}/s")
        yield Tile("Disk read", f"{memory(read)}/s", note=over or note)
    kills = found.get("oom_kills")
    if kills:
        yield Tile("Killed for memory", count(round(kills)), note="processes")


def _over_machines(section: SectionSummary, key: str, write: Callable[[float], str]) -> str | None:
    """Returns of how many machines a tile's number is the mean, and the highest of them; `None`
    for one machine."""
    rows, worst = section.groups.rows, section.global_.worst.get(key)
    if len(rows) < 2 or worst is None or worst.value is None:
        return None
    name = rows[worst.idx].identity.hostname if worst.idx in rows else None
    where = f" on {cell(name)}" if name else ""
    return f"mean of {count(len(rows), 'machine')}; highest {write(worst.value)}{where}"


def _gpu_tiles(section: SectionSummary) -> Iterator[Tile]:
    found = section.global_.average
    used = found.get("gpu_util_percent")
    if used is not None:
        over = _over_machines(section, "gpu_util_percent", lambda value: percent(value / 100))
        yield Tile("GPU utilization", percent(used / 100), note=over or "a kernel was resident")
    for metric in _COUNTED:
        if (counted := found.get(metric.key)) is not None:
            yield Tile(metric.label, percent(counted), note=metric.note)
    held, share = found.get("gpu_mem_bytes"), found.get("gpu_mem_percent")
    if held is not None:
        note = None if not share else f"{percent(share / 100)} of {memory(held / share * 100)}"
        over = _over_machines(section, "gpu_mem_bytes", memory)
        yield Tile("GPU memory", memory(held), note=over or note)
    headroom = found.get("gpu_headroom_bytes")
    if headroom is not None:
        yield Tile("GPU headroom", memory(headroom))
    warmth, warmest = found.get("gpu_temp_c"), found.get("gpu_temp_peak_c")
    if warmth is not None:
        note = None if warmest is None else f"peak {warmest:.0f} °C"
        yield Tile("Temperature", f"{warmth:.0f} °C", note=note)
    if (power := found.get("gpu_power_w")) is not None:
        yield Tile("Power", f"{power:.0f} W")


def _gpu_table(section: SystemSummary) -> Table | None:
    """Returns a row for each GPU whose counters were read; `None` for one GPU."""
    counted = [gpu for gpu in section.gpus if gpu.metrics.get("gpu_busy_share") is not None]
    if len(counted) < 2:
        return None
    shown = {
        metric.label: metric.key
        for metric in GPU_COUNTERS
        if metric.label and any(gpu.metrics.get(metric.key) is not None for gpu in counted)
    }
    rows = tuple(
        Row((f"GPU {gpu.index}", *(percent(gpu.metrics.get(key)) for key in shown.values())))
        for gpu in counted[:MAX_GPUS]
    )
    return Table("gpu-table", "GPUs while steps ran", ("GPU", *shown), rows)


def _figures(sensors: SensorHistory) -> Iterator[Lines]:
    return _by_node(sensors) if len(sensors.hosts) > 1 else _of_host(sensors)


def _by_node(sensors: SensorHistory) -> Iterator[Lines]:
    """Yields what was sampled of the machines of a run over several, a line for each."""
    names = [cell(node) for node in sensors.hosts]
    used = table_of(sensors.hosts, "ram_used_bytes")
    shown = [
        ("system-cpu", "CPU", "cpu_share", PERCENT, structs.replace(_SHARE, label="of all cores")),
    ]
    if used is not None:
        unit = memory_unit(used)
        axis = fitted("used", unit, used)
        shown.append(("system-ram", "RAM in use", "ram_used_bytes", unit, axis))
    for field, title in _TRAFFIC.items():
        table = table_of(sensors.hosts, f"{field}_bytes_per_s")
        highest = 0.0 if table is None else float(np.nanmax(table))
        if highest >= BUSY_BYTES_PER_S:
            unit, name = rate_unit(highest), f"system-{field.replace('_', '-')}"
            axis = Axis("", unit.symbol, low=0.0)
            shown.append((name, title, f"{field}_bytes_per_s", unit, axis))
    for name, title, field, unit, axis in shown:
        lines = curves_by(
            name, f"{title} by node", sensors, sensors.hosts, field, "node", unit, axis, names
        )
        if lines is not None:
            yield lines


def _of_host(sensors: SensorHistory) -> Iterator[Lines]:
    host = sensors.host
    shown = [("CPU", host.get("cpu_share"))]
    if (peak(host.get("cpu_throttled_share")) or 0.0) > THROTTLED_PERCENT / 100:
        shown.append(("Throttled", host.get("cpu_throttled_share")))
    axis = structs.replace(_SHARE, label="of all cores")
    drawn = [curves("system-cpu", "CPU", sensors, shown, PERCENT, axis)]
    used = host.get("ram_used_bytes")
    if used is not None and peak(used) is not None:
        unit = memory_unit(used)
        lines = curves(
            "system-ram", "RAM", sensors, [("Used", used)], unit, fitted("used", unit, used)
        )
        total = peak(host.get("ram_total_bytes"))
        drawn.append(None if lines is None else with_capacity(lines, [used], total, unit))
    drawn += [
        _traffic(sensors, "system-disk", "Disk", ("disk_read", "disk_write"), ("Read", "Written")),
        _traffic(
            sensors,
            "system-network",
            "Network",
            ("network_received", "network_sent"),
            ("Received", "Sent"),
        ),
    ]
    yield from (lines for lines in drawn if lines is not None)


def _traffic(
    sensors: SensorHistory, name: str, title: str, fields: tuple[str, str], words: tuple[str, str]
) -> Lines | None:
    found = [sensors.host.get(f"{field}_bytes_per_s") for field in fields]
    highest = max((peak(curve) or 0.0 for curve in found), default=0.0)
    if highest < BUSY_BYTES_PER_S:
        return None
    unit = rate_unit(highest)
    shown = list(zip(words, found, strict=True))
    return curves(name, title, sensors, shown, unit, Axis("", unit.symbol, low=0.0))


def _gpu_figures(sensors: SensorHistory) -> Iterator[Lines]:
    gpus, names = sensors.gpus, _gpu_labels(sensors, sensors.gpus)
    axis = structs.replace(_SHARE, label="of the time")
    drawn = [
        curves_by(
            "gpu-utilization",
            "GPU utilization",
            sensors,
            gpus,
            "utilisation",
            "GPU",
            PERCENT,
            axis,
            names,
        ),
        *_counter_figures(sensors),
    ]
    held = table_of(gpus, "memory_used_bytes")
    if held is not None:
        unit = memory_unit(held)
        lines = curves_by(
            "gpu-memory-used",
            "GPU memory in use",
            sensors,
            gpus,
            "memory_used_bytes",
            "GPU",
            unit,
            fitted("used", unit, held),
            names,
        )
        totals = table_of(gpus, "memory_total_bytes")
        total = None if totals is None else float(np.nanmax(totals))
        drawn.append(None if lines is None else with_capacity(lines, [held], total, unit))
    for name, title, field, unit in (
        ("gpu-temperature", "GPU temperature", "temperature_c", CELSIUS),
        ("gpu-power", "GPU power", "power_w", WATT),
    ):
        table = table_of(gpus, field)
        axis = Axis("") if table is None else fitted("", unit, table)
        drawn.append(curves_by(name, title, sensors, gpus, field, "GPU", unit, axis, names))
    yield from (lines for lines in drawn if lines is not None)


def _counter_figures(sensors: SensorHistory) -> Iterator[Lines | None]:
    """Yields what the GPUs' counters say: one chart for one GPU, for several a chart per
    counter."""
    counted = {
        index: found
        for index, found in sensors.gpus.items()
        if any(metric.key in found for metric in _COUNTED)
    }
    axis = structs.replace(_SHARE, label="of what it can do")
    if len(counted) == 1:
        (found,) = counted.values()
        shown = [(metric.label, found.get(metric.key)) for metric in _COUNTED]
        yield curves("gpu-counters", "What the GPU did", sensors, shown, PERCENT, axis)
        return
    names = _gpu_labels(sensors, counted)
    for metric in _COUNTED:
        name = f"gpu-{metric.key.replace('_', '-')}"
        yield curves_by(
            name, metric.label, sensors, counted, metric.key, "GPU", PERCENT, axis, names
        )


def _gpu_labels(sensors: SensorHistory, places: Iterable[int]) -> list[str]:
    return [cell(sensors.gpu_labels.get(place, f"GPU {place}")) for place in places]
