"""A comparison of two runs as text: legend, verdict, why, then only what moved or matters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from traceml.compare.record import Comparison, Delta, DiagnosisChange
from traceml.model.quantities import NOT_MEASURED, duration, memory, milliseconds

WIDTH = 100
MOVED_SHARE = 0.01
"""A phase is listed when it moved by this much of the longer step."""
MOVED_POINTS = 5.0
"""A utilisation, in percentage points; also a temperature in degrees and a power in watts."""
MOVED_PCT = 5.0
"""An amount of memory."""

_NAME_WIDTH = 72
_STATUS_WIDTH = 28

_HEADLINES = ("step_time_ms", "input_wait_ms", "compute_ms")
"""Listed whether they moved or not: they are what the verdict is read against."""
_STEP_TIME = (
    ("Total step", "step_time_ms"),
    ("  Input", "input_wait_ms"),
    ("  Copy to device", "h2d_ms"),
    ("  Compute", "compute_ms"),
    ("    Forward", "forward_ms"),
    ("    Backward", "backward_ms"),
    ("    Optimizer", "optimizer_ms"),
    ("  Wait", "wait_ms"),
    ("  Rest", "residual_ms"),
    ("  Communication", "communication_ms"),
    ("Between steps", "between_ms"),
)
_CONTEXT = (
    ("GPU utilization", "system", "gpu_util_percent"),
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

_Row = tuple[str, str, str, str]


def comparison_text(comparison: Comparison) -> str:
    """The whole report, at most `WIDTH` columns wide and without colour."""
    verdict = comparison.verdict
    blocks = [
        [
            f"- A: {_plain(comparison.a, _NAME_WIDTH)}",
            f"- B: {_plain(comparison.b, _NAME_WIDTH)}",
            f"- Format: {comparison.format}",
        ],
        [
            f"Verdict: {verdict.status}",
            *_wrapped("Why: ", verdict.why),
            f"Noise: two runs alike may differ by ±{verdict.allowance_pct:g}%; "
            "one run per side does not measure it.",
            f"Diagnosis: {_diagnosis_words(comparison.overview.primary_diagnosis)}",
        ],
        _table(list(_rows(comparison))),
        [line for warning in comparison.warnings for line in _wrapped("Note: ", warning)],
        _wrapped("Next: ", verdict.next),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _rows(comparison: Comparison) -> Iterator[_Row]:
    run = comparison.overview.duration_s
    if run.lhs is not None or run.rhs is not None:
        yield _row("Duration", run, "duration_s")
    yield from _step_time_rows(comparison)
    for label, section_name, metric in _CONTEXT:
        section = comparison.sections.get(section_name)
        if section and metric in section.metrics and _moved(section.metrics[metric], metric):
            yield _row(label, section.metrics[metric], metric)
    step_memory = comparison.sections.get("step_memory")
    if step_memory and step_memory.diagnosis.changed is not None:
        lhs, rhs = _statuses(step_memory.diagnosis)
        yield "Step memory", lhs, rhs, "changed" if step_memory.diagnosis.changed else "same"


def _step_time_rows(comparison: Comparison) -> Iterator[_Row]:
    section = comparison.sections.get("step_time")
    if section is None:
        return
    step = section.metrics.get("step_time_ms", Delta())
    threshold_ms = MOVED_SHARE * max(step.lhs or 0.0, step.rhs or 0.0)
    for label, metric in _STEP_TIME:
        change = section.metrics.get(metric, Delta())
        headline = metric in _HEADLINES and (change.lhs is not None or change.rhs is not None)
        moved = change.delta is not None and abs(change.delta) > threshold_ms
        if headline or moved:
            yield _row(label, change, metric)


def _moved(change: Delta, metric: str) -> bool:
    if change.delta is None:
        return False
    if metric.endswith("_bytes"):
        grew_from_nothing = change.pct_change is None and change.delta != 0
        return grew_from_nothing or abs(change.pct_change or 0.0) > MOVED_PCT
    return abs(change.delta) > MOVED_POINTS


def _row(label: str, change: Delta, metric: str) -> _Row:
    lhs, rhs = _quantity(change.lhs, metric), _quantity(change.rhs, metric)
    if change.delta is None:
        return label, lhs, rhs, NOT_MEASURED
    if change.delta == 0:
        return label, lhs, rhs, "same"
    if metric.endswith("_percent"):
        return label, lhs, rhs, f"{change.delta:+.1f} pp"
    sign = "+" if change.delta > 0 else ""
    share = "" if change.pct_change is None else f" ({change.pct_change:+,.1f}%)"
    return label, lhs, rhs, f"{sign}{_quantity(change.delta, metric)}{share}"


def _quantity(value: float | None, metric: str) -> str:
    """A number in the unit its metric's name ends in."""
    if value is None:
        return NOT_MEASURED
    if metric.endswith("_ms"):
        return milliseconds(value)
    if metric.endswith("_bytes"):
        return memory(value)
    if metric.endswith("_s"):
        return duration(value)
    unit = {"percent": "%", "c": " °C", "w": " W"}[metric.rpartition("_")[2]]
    return f"{value:,.1f}{unit}"


def _table(rows: list[_Row]) -> list[str]:
    if not rows:
        return []
    lines = [("", "A", "B", "Delta"), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return [
        f"{label:<{widths[0]}}  {lhs:>{widths[1]}}  {rhs:>{widths[2]}}  {delta}"
        for label, lhs, rhs, delta in lines
    ]


def _statuses(change: DiagnosisChange) -> tuple[str, str]:
    return (
        _plain(change.lhs or NOT_MEASURED, _STATUS_WIDTH),
        _plain(change.rhs or NOT_MEASURED, _STATUS_WIDTH),
    )


def _diagnosis_words(change: DiagnosisChange) -> str:
    lhs, rhs = _statuses(change)
    return f"{lhs} -> {rhs}" + (" (unchanged)" if change.changed is False else "")


def _wrapped(opening: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        opening + _plain(sentence, limit=1000),
        WIDTH,
        subsequent_indent=" " * len(opening),
        break_on_hyphens=False,
    )


def _plain(text: str, limit: int) -> str:
    """Printable characters only (a name must not move the cursor), cut to a length."""
    shown = "".join(character if character.isprintable() else " " for character in text).strip()
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
