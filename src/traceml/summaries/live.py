"""The live state as a record: the names are those of `live.json` and `live.jsonl`."""

from __future__ import annotations

from msgspec import Struct, structs

from traceml.diagnose.engine import CALM
from traceml.diagnose.live import LiveDiagnosis, LiveFinding
from traceml.facts.facts import Facts
from traceml.model.finding import Section
from traceml.summaries import sections
from traceml.summaries.record import Global, Issue


class LiveIssue(Issue, frozen=True):
    """A finding that is shown while the run goes on."""

    section: str | None = None
    since_step: int | None = None


class LiveState(Struct, frozen=True):
    """What is shown of a run that goes on."""

    unix_s: float
    step: int | None
    """The last step that the findings cover."""
    findings: tuple[LiveIssue, ...]
    """Section by section, the leading one first."""
    step_time: Global
    """The window and where its time went, as in a summary's section of this name."""


class LiveChange(Struct, frozen=True):
    """A finding that leads its section from now on."""

    unix_s: float
    step: int | None
    section: str
    kind: str
    severity: str
    since_step: int
    ranks: tuple[int, ...]
    summary: str
    action: str


def live_state(diagnosis: LiveDiagnosis, window: Facts, nodes: int, unix_s: float) -> LiveState:
    """Everything that is shown."""
    unsaid = CALM[Section.STEP_TIME](window)  # only the section's numbers are asked for here
    return LiveState(
        unix_s=unix_s,
        step=window.window.last_step,
        findings=tuple(
            _issue(live) for section in diagnosis.sections.values() for live in section.findings
        ),
        step_time=sections.step_time(window, (unsaid,), nodes).global_,
    )


def live_change(live: LiveFinding, window: Facts, unix_s: float) -> LiveChange:
    """A change as the file lists it."""
    finding = live.finding
    return LiveChange(
        unix_s=unix_s,
        step=window.window.last_step,
        section=finding.section.value,
        kind=finding.kind.value,
        severity=finding.severity.value,
        since_step=live.since_step,
        ranks=finding.ranks,
        summary=finding.claim,
        action=finding.action,
    )


def _issue(live: LiveFinding) -> LiveIssue:
    return LiveIssue(
        **structs.asdict(sections.issue(live.finding)),
        section=live.finding.section.value,
        since_step=live.since_step,
    )
