"""A summary as one flat dictionary of numbers, for trackers such as W&B and MLflow."""

from __future__ import annotations

from traceml.summaries.record import SectionSummary, Summary

PREFIX = "traceml/"


def flat(summary: Summary) -> dict[str, float]:
    """Returns the numbers of a summary as one flat dictionary; values that were not measured are
    left out.

    Step times are means over ranks; memory is that of the rank with the highest peak.
    """
    found: dict[str, float | None] = {"duration_s": summary.duration_s}
    if summary.step_time is not None:
        found["steps"] = summary.step_time.metadata.training_total_steps
        found |= summary.step_time.global_.average
    if summary.step_memory is not None:
        worst = summary.step_memory.global_.worst
        found |= {name: place.value for name, place in worst.items()}
    for name, section in (("system", summary.system), ("process", summary.process)):
        found |= _averages(name, section)
    return {PREFIX + name: value for name, value in found.items() if value is not None}


def _averages(name: str, section: SectionSummary | None) -> dict[str, float | None]:
    if section is None:
        return {}
    return {f"{name}/{metric}": value for metric, value in section.global_.average.items()}
