"""Compares two summaries, metric by metric, and judges the difference."""

from __future__ import annotations

from collections.abc import Mapping

from traceml.compare.record import (
    Comparison,
    Delta,
    DiagnosisChange,
    Overview,
    SectionComparison,
)
from traceml.compare.verdict import judge
from traceml.compare.waterfall import waterfall_ms
from traceml.model.finding import Section
from traceml.summaries.record import Issue, PrimaryDiagnosis, SectionSummary, Summary


def compare(a: Summary, b: Summary, names: tuple[str, str]) -> Comparison:
    """What changed from A to B; `names` are what people call the two runs."""
    sections = {
        section.value: _section(section, _of(a, section), _of(b, section))
        for section in Section
        if _of(a, section) or _of(b, section)
    }
    step_time = _metrics(sections, Section.STEP_TIME)
    waterfall = waterfall_ms(step_time)
    return Comparison(
        a=names[0],
        b=names[1],
        verdict=judge(a, b, step_time, _metrics(sections, Section.STEP_MEMORY), waterfall),
        overview=Overview(
            primary_diagnosis=_diagnosis_change(_primary(a), _primary(b)),
            duration_s=Delta.between(a.duration_s, b.duration_s),
        ),
        waterfall_ms=waterfall,
        sections=sections,
        warnings=tuple(_warnings(a, b)),
    )


def _of(summary: Summary, section: Section) -> SectionSummary | None:
    found: SectionSummary | None = getattr(summary, section.value)
    return found


def _section(
    section: Section, lhs: SectionSummary | None, rhs: SectionSummary | None
) -> SectionComparison:
    left, right = _values(section, lhs), _values(section, rhs)
    return SectionComparison(
        diagnosis=_diagnosis_change(_diagnosis(lhs), _diagnosis(rhs)),
        metrics={
            name: Delta.between(left.get(name), right.get(name)) for name in {**left, **right}
        },
    )


def _values(section: Section, summary: SectionSummary | None) -> Mapping[str, float | None]:
    """The number each metric is compared by: the average, for memory that of the worst rank."""
    if summary is None:
        return {}
    average = summary.global_.average
    if section is not Section.STEP_MEMORY:
        return average
    worst = {
        name: place.value
        for name, place in summary.global_.worst.items()
        if place.value is not None
    }
    return {**average, **worst}


def _metrics(sections: Mapping[str, SectionComparison], name: Section) -> Mapping[str, Delta]:
    section = sections.get(name.value)
    return section.metrics if section else {}


def _primary(summary: Summary) -> PrimaryDiagnosis | Issue | None:
    """The primary diagnosis; an old summary has that of the step time alone."""
    primary = summary.primary_diagnosis
    if primary.kind or primary.status:
        return primary
    return _diagnosis(summary.step_time)


def _diagnosis(section: SectionSummary | None) -> Issue | None:
    return section.diagnosis if section else None


def _diagnosis_change(
    lhs: PrimaryDiagnosis | Issue | None, rhs: PrimaryDiagnosis | Issue | None
) -> DiagnosisChange:
    lhs, rhs = lhs or Issue(), rhs or Issue()
    changed = None
    if lhs.kind and rhs.kind:
        changed = lhs.kind != rhs.kind
    elif lhs.status and rhs.status:
        changed = lhs.status != rhs.status
    return DiagnosisChange(lhs.status or lhs.kind, rhs.status or rhs.kind, changed)


def _warnings(a: Summary, b: Summary) -> list[str]:
    """What differs between the runs themselves, so that a change may be theirs."""
    pairs: tuple[tuple[str, object, object], ...] = (
        ("World size", a.meta.world_size, b.meta.world_size),
        ("Number of nodes", a.meta.nodes_observed, b.meta.nodes_observed),
        ("Number of GPUs", a.meta.gpus_observed, b.meta.gpus_observed),
        ("Clock of the step times", _clock(a), _clock(b)),
        ("Schema version", a.schema_version, b.schema_version),
    )
    warnings = [
        f"{what} differs: {lhs} -> {rhs}."
        for what, lhs, rhs in pairs
        if lhs is not None and rhs is not None and lhs != rhs
    ]
    if a.producer.name != b.producer.name:
        writers = " -> ".join(side.producer.name or "another tool" for side in (a, b))
        warnings.append(f"The summaries were written by different tools: {writers}.")
    return warnings


def _clock(summary: Summary) -> str | None:
    return summary.step_time.global_.window.diagnosis_clock if summary.step_time else None
