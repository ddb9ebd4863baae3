"""Gives the names of older and foreign summaries today's meaning.

The history of the shared schema, as far as it touches what we read:
1.4  `total_step_ms` = `dataloader_ms` + body; `step_overhead_ms` (before: `wait_ms`) is the rest.
1.6  adds `input_wait_ms`, and `step_time_ms` for the body alone, both by the diagnosis clock,
     while `total_step_ms` stays with the host's clock; the rest is `residual_ms`.
1.8  `step_time_ms` = input wait + body, `traced_step_time_ms` = body; `total_step_ms` is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

from traceml.model.finding import Kind
from traceml.summaries.record import Issue, PrimaryDiagnosis, SectionSummary, Summary

_WAIT_HEAVY_BEFORE = ("RESIDUAL_HEAVY", "OVERHEAD_HEAVY")
_RENAMED = (
    ("step_time_ms", "traced_step_time_ms"),
    ("total_step_ms", "step_time_ms"),
    ("dataloader_ms", "input_wait_ms"),
    ("step_overhead_ms", "residual_ms"),
    ("wait_ms", "residual_ms"),
)

_Value = TypeVar("_Value")
_Diagnosis = TypeVar("_Diagnosis", Issue, PrimaryDiagnosis)


def modernise(summary: Summary) -> Summary:
    """Returns an older or foreign summary with the names and meanings of this version."""
    return replace(
        summary,
        primary_diagnosis=_diagnosis(summary.primary_diagnosis),
        step_time=_step_time(summary.step_time) if summary.step_time else None,
    )


def _step_time(section: SectionSummary) -> SectionSummary:
    section = replace(
        section,
        diagnosis=_diagnosis(section.diagnosis) if section.diagnosis else None,
        issues=tuple(_diagnosis(issue) for issue in section.issues),
    )
    if "total_step_ms" not in section.global_.average:
        return section
    rows = {
        rank: replace(row, metrics=_numbers(row.metrics))
        for rank, row in section.groups.rows.items()
    }
    return replace(
        section,
        global_=replace(
            section.global_,
            average=_numbers(section.global_.average),
            median=_renamed(section.global_.median),
            worst=_renamed(section.global_.worst),
        ),
        groups=replace(section.groups, rows=rows),
    )


def _diagnosis(diagnosis: _Diagnosis) -> _Diagnosis:
    if diagnosis.kind not in _WAIT_HEAVY_BEFORE:
        return diagnosis
    return replace(diagnosis, kind=Kind.WAIT_HEAVY.value, status=Kind.WAIT_HEAVY.status)


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    renamed = _renamed(metrics)
    wait, body = renamed.get("input_wait_ms"), renamed.get("traced_step_time_ms")
    if wait is not None and body is not None:
        renamed["step_time_ms"] = wait + body  # one clock for the whole and its parts
    return renamed


def _renamed(metrics: Mapping[str, _Value]) -> dict[str, _Value]:
    renamed = dict(metrics)
    for old, new in _RENAMED:
        if old in renamed:
            value = renamed.pop(old)
            renamed.setdefault(new, value)
    return renamed
