"""The live state as a record, with the names of `live.json` and `live.jsonl`; and metrics as a
summary, live or final, has them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct, structs

from traceml.store.json_lines import UNDECODABLE, holds_huge_number
from traceml.store.records import LoggedMetric
from traceml.summaries.record import Issue, MetricSummary, Summary


class LiveIssue(Issue, frozen=True):
    """A finding that is shown while the run is in progress."""

    section: str | None = None


class LiveState(Struct, frozen=True):
    """What is shown of a run in progress."""

    unix_s: float
    step: int | None
    """The last step that the findings cover."""
    findings: tuple[LiveIssue, ...]
    """By section, the leading one first."""
    summary: Summary
    """A summary of the last steps, with these findings as its issues."""


class LiveChange(Struct, frozen=True):
    """A finding that has become the leading one of its section."""

    unix_s: float
    step: int | None
    section: str
    kind: str
    severity: str
    since_step: int
    ranks: tuple[int, ...]
    summary: str
    action: str


_DECODER = msgspec.json.Decoder(LiveState)


def read_live(content: bytes) -> LiveState | None:
    """Returns the content of a `live.json`; `None` where it is damaged or of another version."""
    try:
        return None if holds_huge_number(content) else _DECODER.decode(content)
    except UNDECODABLE:
        return None


def metric_summaries(metrics: Iterable[LoggedMetric]) -> dict[str, MetricSummary]:
    """Returns logged metrics by name."""
    return {
        metric.name: MetricSummary(
            count=metric.count,
            last=metric.last,
            min=metric.minimum,
            max=metric.maximum,
            mean=metric.mean,
            first_step=metric.first_step,
            last_step=metric.last_step,
            higher_is_better=metric.higher_is_better,
        )
        for metric in metrics
    }


def with_metrics(summary: Summary, metrics: Iterable[LoggedMetric]) -> Summary:
    """Returns a summary with these metrics instead of what it says of them itself: that of a live
    state only knows recent losses."""
    return structs.replace(summary, metrics={**summary.metrics, **metric_summaries(metrics)})
