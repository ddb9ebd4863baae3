"""Describes the last steps of a run in progress in the form of a final summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from traceml.diagnose.engine import primary
from traceml.diagnose.live_findings import LiveDiagnosis, LiveFinding, too_early
from traceml.diagnose.what_if import predict
from traceml.facts.facts import Facts
from traceml.facts.recent_window import RecentFacts
from traceml.model.finding import Section
from traceml.store.records import RunRecords
from traceml.summaries import sections
from traceml.summaries.build import SummaryFindings, assemble, finding_of_failure
from traceml.summaries.live_record import LiveChange, LiveIssue, LiveState
from traceml.summaries.record import Issue, Summary
from traceml.summaries.tables import number


def live_state(
    diagnosis: LiveDiagnosis, recent: RecentFacts, records: RunRecords, unix_s: float, version: str
) -> LiveState:
    """Returns everything that live views show: the findings without flicker, and the current
    numbers."""
    shown = {
        section: live.findings for section, live in diagnosis.sections.items() if live.findings
    }
    return LiveState(
        unix_s=unix_s,
        step=recent.whole.window.last_step,
        findings=tuple(_live_issue(live) for findings in shown.values() for live in findings),
        summary=_summary(shown, recent, records, unix_s, version),
    )


def live_change(live: LiveFinding, window: Facts, unix_s: float) -> LiveChange:
    """Returns a change of the leading finding, as `live.jsonl` lists it."""
    finding = live.finding
    return LiveChange(
        unix_s=unix_s,
        step=window.window.last_step,
        section=finding.section.value,
        kind=finding.kind.value,
        severity=finding.severity.value,
        since_step=live.since_step if finding.steps is None else finding.steps.first,
        ranks=finding.ranks,
        summary=finding.claim,
        action=finding.action,
        until_step=None if finding.steps is None else finding.steps.last,
    )


def _summary(
    shown: Mapping[Section, tuple[LiveFinding, ...]],
    recent: RecentFacts,
    records: RunRecords,
    unix_s: float,
    version: str,
) -> Summary:
    """Returns the last steps as a summary; without findings until they are stable."""
    facts = _so_far(recent.whole)
    found = {section: tuple(live.finding for live in shown.get(section, ())) for section in Section}
    issues = {section: tuple(map(_issue, shown.get(section, ()))) for section in Section}
    if not found[Section.STEP_TIME]:
        early = too_early(facts)
        found[Section.STEP_TIME], issues[Section.STEP_TIME] = (early,), (sections.issue(early),)
    told = SummaryFindings(
        facts=facts,
        primary=primary(found),
        issues=issues,
        ended_by=finding_of_failure(facts, found[Section.STABILITY]),
        what_if=predict(recent.now, found[Section.STEP_TIME]),
    )
    summary = assemble(records, told, unix_s, version)
    lasted_s = max(0.0, unix_s - records.manifest.started_unix_s)
    return structs.replace(summary, duration_s=number(lasted_s))


def _so_far(window: Facts) -> Facts:
    """Returns the window's facts with the number of steps taken since the run began.

    What the wall time went to is known of a whole run alone.
    """
    taken = max(window.window.steps_taken, window.window.last_step or 0)
    steps = replace(window.window, steps_taken=taken)
    return replace(window, window=steps, attempts=(), goodput=None)


def _issue(live: LiveFinding) -> Issue:
    return sections.issue(live.finding, live.since_step)


def _live_issue(live: LiveFinding) -> LiveIssue:
    return LiveIssue(**structs.asdict(_issue(live)), section=live.finding.section.value)
