"""The live state as a record, with the names of `live.json` and `live.jsonl`, and which of its
findings are new; and metrics as a summary, live or final, has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from traceml.model.finding import Severity
from traceml.store.json_lines import UNDECODABLE, holds_huge_number
from traceml.store.records import LoggedMetric
from traceml.summaries.record import Issue, MetricSummary, Summary, sections_of


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
    until_step: int | None = None
    """The last step that it is about; `null` where it holds on."""


def final_findings(summary: Summary) -> list[LiveIssue]:
    """Returns the findings of a run that is over as live views name them: by section, the leading
    one first. What ended it is among them, and what a short run did not last long enough for."""
    return [
        LiveIssue(**structs.asdict(issue), section=name)
        for name, section in sections_of(summary)
        for issue in section.issues
    ]


AGAIN_AFTER_RESTART_S = 600.0
"""A restarted agent finds nothing at first, and then what holds: that is not news."""


class ToldFindings:
    """The kinds of findings that somebody was told of, one time each while they hold.

    A finding is new where its kind was not told, where it has become more severe since, and where
    it was gone and has come back: `again_after_s` after it was told at the earliest, or where a
    process before us told it, `AGAIN_AFTER_RESTART_S` after we began.
    """

    def __init__(self, again_after_s: float = 0.0) -> None:
        self._again_after_s = again_after_s
        self._told: dict[str, tuple[float, int]] = {}
        """When, and how severe it was then, by kind."""
        self._gone: set[str] = set()
        """Kinds that were told and have not been found since."""
        self._before_us: set[str] = set()
        """Kinds that a process before us told, and we did not."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that were told."""
        return tuple(self._told)

    def restore(self, told: Mapping[str, Iterable[str]], now_s: float) -> None:
        """Notes what a process before us told: the severities of each kind."""
        for kind, severities in told.items():
            self._told[kind] = now_s, max(map(_weight, severities), default=_weight(None))
        self._before_us |= told.keys()

    def was_told_before_us(self, kind: str, severity: str, now_s: float) -> bool:
        """Whether a finding that appears now, or is read, is one that a process before us told."""
        if kind not in self._before_us:
            return False
        told_s, weight = self._told[kind]
        return _weight(severity) <= weight and now_s - told_s < AGAIN_AFTER_RESTART_S

    def find_new(self, findings: Iterable[LiveIssue], now_s: float) -> Sequence[LiveIssue]:
        """Returns those of the current findings that are new, the most severe of each kind."""
        by_severity = sorted(findings, key=lambda issue: _weight(issue.severity))
        found = {issue.kind: issue for issue in by_severity if issue.kind}
        self._gone |= self._told.keys() - found.keys()
        return [issue for kind, issue in found.items() if self._is_new(kind, issue, now_s)]

    def add(self, kind: str, now_s: float, severity: str | None = None) -> None:
        """Notes that a kind was told; as critical where its severity is not known."""
        self._told[kind] = now_s, _weight(severity or Severity.CRITICAL.value)
        self._gone.discard(kind)
        self._before_us.discard(kind)

    def _is_new(self, kind: str, issue: LiveIssue, now_s: float) -> bool:
        if kind not in self._told:
            return True
        told_s, weight = self._told[kind]
        if _weight(issue.severity) > weight:
            return True
        after_restart_s = AGAIN_AFTER_RESTART_S if kind in self._before_us else 0.0
        return kind in self._gone and now_s - told_s >= max(self._again_after_s, after_restart_s)


def _weight(severity: str | None) -> int:
    known = {each.value: each.weight for each in Severity}
    return known.get(severity or "", 0)


_DECODER = msgspec.json.Decoder(LiveState)
_CHANGE_DECODER = msgspec.json.Decoder(LiveChange)


def read_live(content: bytes) -> LiveState | None:
    """Returns the content of a `live.json`; `None` where it is damaged or of another version."""
    try:
        return None if holds_huge_number(content) else _DECODER.decode(content)
    except UNDECODABLE:
        return None


def read_change(line: bytes) -> LiveChange | None:
    """Returns a line of a `live.jsonl`; `None` where it is damaged or of another version."""
    try:
        return None if holds_huge_number(line) else _CHANGE_DECODER.decode(line)
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
