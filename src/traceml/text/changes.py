"""The lines of a comparison table: each number on both sides, its change, and its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traceml.compare import verdict_words
from traceml.compare.record import Comparison, Delta, DiagnosisChange
from traceml.compare.terms import ENDPOINTS
from traceml.model.printable import one_line
from traceml.model.quantities import NOT_MEASURED, duration

MOVED_SHARE = 0.01
"""Of the longer step: a phase is listed if it changed by at least this much."""
MOVED_POINTS = 5.0
"""For a utilisation in percentage points, a temperature in degrees and a power in watts."""
MOVED_PCT = 5.0
"""For an amount of memory."""
STATUS_WIDTH = 28
SIGNIFICANT = "*"

_HEADLINES = ("step_time_ms", "input_wait_ms", "compute_ms")
"""Listed whether they changed or not."""
_STEP_TIME = (
    ("Total step", "step_time_ms"),
    ("  Input", "input_wait_ms"),
    ("  Copy to device", "h2d_ms"),
    ("  Compute", "compute_ms"),
    ("    Forward", "forward_ms"),
    ("    Backward", "backward_ms"),
    ("    Optimizer", "optimizer_ms"),
    ("  Wait", "wait_ms"),
    ("  Wait share", "wait_share_percent"),
    ("  Rest", "residual_ms"),
    ("  Communication", "communication_ms"),
    ("Between steps", "between_ms"),
)
_CONTEXT = (
    ("GPU utilization", "system", "gpu_util_percent"),
    ("GPU SMs at work", "system", "sm_share"),
    ("GPU tensor cores", "system", "tensor_share"),
    ("GPU FP32 units", "system", "fp32_share"),
    ("GPU bandwidth", "system", "dram_share"),
    ("Peak allocated", "step_memory", "peak_allocated_bytes"),
    ("Peak reserved", "step_memory", "peak_reserved_bytes"),
    ("Process CPU", "process", "cpu_percent"),
    ("Process memory", "process", "ram_bytes"),
    ("Host CPU", "system", "cpu_percent"),
    ("Host memory", "system", "ram_bytes"),
    ("GPU memory", "system", "gpu_mem_bytes"),
    ("GPU temperature", "system", "gpu_temp_c"),
    ("GPU power", "system", "gpu_power_w"),
)
_UNITS = {"percent": "%", "c": " °C", "w": " W"}


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
        yield _row("Duration", run, "duration_s")
    shown = []
    for label, change, metric in _step_time(comparison):
        shown.append(metric)
        yield _row(label, change, metric)
    skew = comparison.ranks.skew_percent
    if skew.delta is not None and abs(skew.delta) > MOVED_POINTS:
        yield _row("Rank skew", skew, "skew_percent")
    for label, section_name, metric in _CONTEXT:
        section = comparison.sections.get(section_name)
        if section and metric in section.metrics and _moved(section.metrics[metric], metric):
            shown.append(metric)
            yield _row(label, section.metrics[metric], metric)
    yield from _judged(comparison, shown)
    step_memory = comparison.sections.get("step_memory")
    if step_memory and step_memory.diagnosis.changed is not None:
        lhs, rhs = statuses(step_memory.diagnosis)
        changed = "changed" if step_memory.diagnosis.changed else "same"
        yield ChangeLine("Step memory", lhs, rhs, changed)


def _step_time(comparison: Comparison) -> Iterator[tuple[str, Delta, str]]:
    section = comparison.sections.get("step_time")
    if section is None:
        return
    step = section.metrics.get("step_time_ms", Delta())
    threshold_ms = MOVED_SHARE * max(step.lhs or 0.0, step.rhs or 0.0)
    for label, metric in _STEP_TIME:
        change = section.metrics.get(metric, Delta())
        headline = metric in _HEADLINES and (change.lhs is not None or change.rhs is not None)
        if metric.endswith("_percent"):
            moved = _moved(change, metric)
        else:
            moved = change.delta is not None and abs(change.delta) > threshold_ms
        if (headline or moved) and not _is_wait(change, metric, section.metrics):
            yield _named(label, metric, section.metrics), change, metric


def _named(label: str, metric: str, metrics: Mapping[str, Delta]) -> str:
    """Returns the label; the file's residual includes communication, unlike the rest that people
    see."""
    communication = metrics.get("communication_ms", Delta())
    is_both = metric == "residual_ms" and (communication.lhs or communication.rhs)
    return f"{label} + comm." if is_both else label


def _is_wait(change: Delta, metric: str, metrics: Mapping[str, Delta]) -> bool:
    """Returns whether the wait equals the rest, because nothing was copied: then one line is
    enough."""
    wait = metrics.get("wait_ms", Delta())
    return metric == "residual_ms" and (change.lhs, change.rhs) == (wait.lhs, wait.rhs)


def _judged(comparison: Comparison, shown: list[str]) -> Iterator[ChangeLine]:
    """Yields the metric that decided the verdict, if it is not among the usual lines."""
    endpoint = ENDPOINTS[comparison.verdict.metric]
    section = comparison.sections.get(endpoint.section.value)
    for metric in endpoint.metrics:
        change = section.metrics.get(metric, Delta()) if section else Delta()
        if metric not in shown and change.delta is not None:
            yield _row(endpoint.word.replace("_", " ").capitalize(), change, metric)
            return
        if metric in shown:
            return


def _moved(change: Delta, metric: str) -> bool:
    if change.delta is None:
        return False
    if metric.endswith("_bytes"):
        grew_from_nothing = change.pct_change is None and change.delta != 0
        return grew_from_nothing or abs(change.pct_change or 0.0) > MOVED_PCT
    return abs(change.delta) > MOVED_POINTS / (100 if metric.endswith("_share") else 1)


def _row(label: str, change: Delta, metric: str) -> ChangeLine:
    if metric.endswith("_share"):  # people read a fraction as a percentage
        change, metric = change.times(100), f"{metric}_percent"
    lhs, rhs = quantity(change.lhs, metric), quantity(change.rhs, metric)
    if change.delta is None:
        return ChangeLine(label, lhs, rhs, NOT_MEASURED)
    mark = f" {SIGNIFICANT}" if change.significant else ""
    interval = _interval(change, metric)
    if change.delta == 0:
        return ChangeLine(label, lhs, rhs, "same", interval)
    if metric.endswith("_percent"):
        return ChangeLine(label, lhs, rhs, f"{change.delta:+.1f} pp{mark}", interval)
    share = "" if change.pct_change is None else f" ({change.pct_change:+,.1f}%)"
    return ChangeLine(label, lhs, rhs, f"{_signed(change.delta, metric)}{share}{mark}", interval)


def _interval(change: Delta, metric: str) -> str:
    if change.interval is None or change.interval == (0, 0):
        return ""
    low, high = (_signed(limit, metric) for limit in change.interval)
    unit = " " + high.rpartition(" ")[2]
    return f"{low.removesuffix(unit)} … {high}" if low.endswith(unit) else f"{low} … {high}"


def _signed(value: float, metric: str) -> str:
    shown = f"{value:+,.1f} pp" if metric.endswith("_percent") else quantity(value, metric)
    return shown if shown.startswith(("-", "+")) else f"+{shown}"


def quantity(value: float | None, metric: str) -> str:
    """Returns a number in the unit that its metric's name ends in."""
    unit = _UNITS.get(metric.rpartition("_")[2])
    if value is not None and unit is not None:
        return f"{value:,.1f}{unit}"
    if metric.endswith("_s") and not metric.endswith("_per_s"):
        return duration(value)
    return verdict_words.quantity(value, metric)


def statuses(change: DiagnosisChange) -> tuple[str, str]:
    """Returns the diagnoses of both sides, shortened to fit a column."""
    return (
        one_line(change.lhs or NOT_MEASURED, STATUS_WIDTH),
        one_line(change.rhs or NOT_MEASURED, STATUS_WIDTH),
    )
