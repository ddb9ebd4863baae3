"""What `traceml run --notify` sends: one JSON object for each event, the same for webhooks and
commands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from traceml.model.finding import Kind
from traceml.model.quantities import duration
from traceml.model.run import Manifest, status_words
from traceml.summaries.live_record import LiveIssue, LiveState
from traceml.summaries.record import Summary, has_failed

FORMAT = 1
"""The version of what is sent; keys may be added to it, and none changes its meaning."""

FINDING, HANG, FAILURE, END = "finding", "hang", "failure", "end"
"""The events."""
_FAILURES = (Kind.EXCEPTION.value, Kind.OUT_OF_MEMORY.value, Kind.KILLED.value)
_SEVERITIES = {"crit": "critical", "warn": "warning", "info": "info"}


class NotifiedRun(Struct, frozen=True):
    """The run that a notification is about."""

    name: str
    folder: str
    host: str
    command: tuple[str, ...]
    """Without secrets."""
    started_at: str
    duration_s: float | None = None
    step: int | None = None
    world_size: int | None = None


class NotifiedFinding(Struct, frozen=True):
    """A finding, or the verdict of the run."""

    kind: str | None = None
    status: str | None = None
    severity: str | None = None
    section: str | None = None
    summary: str | None = None
    action: str | None = None
    evidence: dict[str, Any] = {}
    ranks: tuple[int, ...] = ()
    since_step: int | None = None


class Notification(Struct, frozen=True):
    """One event of a run."""

    format: int
    event: str
    """`finding`, `hang`, `failure` or `end`."""
    text: str
    """All of it in one line, under the name that Slack's webhooks show."""
    time: str
    is_over: bool
    """Whether the run has ended; every run sends one such notification, its last."""
    run: NotifiedRun
    exit_status: int | None = None
    verdict: NotifiedFinding | None = None
    """The finding to read first; `None` where nothing is known of the run."""
    finding: NotifiedFinding | None = None
    """What caused the event; `None` at the end of a run that went well."""
    link: str | None = None
    """The run's page, where `TRACEML_UI_URL` says where `traceml ui` is."""


class NotifiedPlace(Struct, frozen=True):
    """Where a run is found: what every notification of it says alike."""

    manifest: Manifest
    folder: str
    ui_url: str | None = None

    @property
    def link(self) -> str | None:
        """The address of the run's page."""
        if not self.ui_url:
            return None
        return f"{self.ui_url.rstrip('/')}/runs/{quote(self.manifest.run_name, safe='')}"

    def describe(self, summary: Summary | None, step: int | None = None) -> NotifiedRun:
        """Returns the run as it is now."""
        manifest = self.manifest
        return NotifiedRun(
            name=manifest.run_name,
            folder=self.folder,
            host=manifest.hostname,
            command=tuple(manifest.command),
            started_at=_iso(manifest.started_unix_s),
            duration_s=None if summary is None else summary.duration_s,
            step=step,
            world_size=None if summary is None else summary.meta.world_size,
        )


def event_of(kind: str | None) -> str:
    """Returns the event that a critical finding is."""
    if kind == Kind.HANG.value:
        return HANG
    return FAILURE if kind in _FAILURES else FINDING


def critical_findings(state: LiveState) -> Sequence[LiveIssue]:
    """Returns the findings that people are notified of."""
    return [issue for issue in state.findings if issue.severity == "crit" and issue.kind]


def of_finding(place: NotifiedPlace, state: LiveState, issue: LiveIssue) -> Notification:
    """Returns the notification of a critical finding of a run in progress."""
    event = event_of(issue.kind)
    name, since = place.manifest.run_name, issue.since_step
    what = {HANG: "hangs", FAILURE: "has lost a rank and goes on"}.get(event)
    if what is None:
        severity = _SEVERITIES.get(issue.severity or "", "")
        what = f"is {issue.status} ({severity}{'' if since is None else f', since step {since}'})"
    found = NotifiedFinding(
        kind=issue.kind,
        status=issue.status,
        severity=issue.severity,
        section=issue.section,
        summary=issue.summary,
        action=issue.action,
        evidence=issue.evidence,
        ranks=issue.ranks,
        since_step=since,
    )
    return Notification(
        format=FORMAT,
        event=event,
        text=_line(f"TraceML: {name} {what}", issue.summary, issue.action, place.link),
        time=_iso(state.unix_s),
        is_over=False,
        run=place.describe(state.summary, state.step),
        verdict=_verdict(state.summary),
        finding=found,
        link=place.link,
    )


def of_end(
    place: NotifiedPlace, summary: Summary | None, exit_status: int | None, unix_s: float
) -> Notification:
    """Returns the last notification of a run: `failure` where it failed, else `end`.

    `summary` is `None` where none could be written.
    """
    failure = None if summary is None else summary.failure
    is_failure = has_failed(summary, exit_status)
    steps = None if summary is None or summary.step_time is None else summary.step_time.metadata
    run = place.describe(summary, None if steps is None else steps.training_total_steps)
    after = "" if run.duration_s is None else f" after {duration(run.duration_s)}"
    status = f", exit {status_words(exit_status)}" if is_failure and exit_status is not None else ""
    verdict = _verdict(summary)
    words = [] if verdict is None else [f"{verdict.status}: {verdict.summary}", verdict.action]
    if failure is not None:
        words = [failure.summary or failure.message or "", failure.action]
    cause = None
    if failure is not None:
        cause = NotifiedFinding(
            kind=failure.kind,
            status=(failure.kind or "").replace("_", " "),
            severity="crit",
            section="stability",
            summary=failure.summary,
            action=failure.action,
            evidence=failure.evidence,
            ranks=() if failure.rank is None else (failure.rank,),
        )
    what = f"{'failed' if is_failure else 'finished'}{after}{status}"
    return Notification(
        format=FORMAT,
        event=FAILURE if is_failure else END,
        text=_line(f"TraceML: {run.name} {what}", *words, place.link),
        time=_iso(unix_s),
        is_over=True,
        run=run,
        exit_status=exit_status,
        verdict=verdict,
        finding=cause,
        link=place.link,
    )


def _verdict(summary: Summary | None) -> NotifiedFinding | None:
    found = None if summary is None else summary.primary_diagnosis
    if found is None or found.kind is None:
        return None
    return NotifiedFinding(
        kind=found.kind,
        status=found.status,
        severity=found.severity,
        section=found.section,
        summary=found.summary,
        action=found.action,
        evidence=found.evidence,
    )


def _line(head: str, *words: str | None) -> str:
    rest = " ".join(" ".join(part.split()) for part in words if part)
    return f"{head}. {rest}" if rest else f"{head}."


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="seconds")
