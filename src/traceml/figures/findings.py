"""Findings as the page shows them: cards, and spans on the axis of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from traceml.figures.page import Fact, FindingCard, Span, Tone
from traceml.figures.words import line
from traceml.model.evidence import NOT_TOLD, EvidenceUnit, label_of, unit_by_name
from traceml.model.finding import COMPUTE_CAUSES, Kind, Section, consequence
from traceml.model.quantities import count, duration, excess, memory, percent
from traceml.summaries.record import FactSummary, Issue, SectionSummary, Summary, WhatIfSummary

TITLES = {
    Section.STABILITY.value: "Stability",
    Section.STEP_TIME.value: "Step time",
    Section.STEP_MEMORY.value: "Step memory",
    Section.PROCESS.value: "Process",
    Section.SYSTEM.value: "System",
}
"""In the order of sections with equal severity."""
MAX_FACTS = 4
MAX_FACT_CHARS = 80
MAX_NUMBER = 1e18
"""No time, amount or count is that large: such a number is damaged and not shown."""
MAX_SPANS = 3

_ALWAYS_TOLD = (Section.STEP_TIME.value, Section.STEP_MEMORY.value)
_CALM = ("BALANCED", "NORMAL", "STABLE")
_NOTHING_KNOWN = ("NO_DATA", "NO_GPU", "WARMUP")
_MOMENTS = tuple(
    kind.value
    for kind in (Kind.EXCEPTION, Kind.OUT_OF_MEMORY, Kind.KILLED, Kind.HANG, Kind.LOSS_SPIKE)
)
"""Kinds that happen once and do not last."""
_WEIGHTS = {"crit": 2, "warn": 1}
_FORMATS: Mapping[str, Callable[[float], str]] = {
    EvidenceUnit.BYTES_PER_SECOND.value: lambda value: f"{memory(value)}/s",
    EvidenceUnit.BYTES.value: memory,
    # As the sentence above it says it.
    EvidenceUnit.MILLISECONDS.value: lambda value: duration(value / 1e3),
    EvidenceUnit.SECONDS.value: duration,
    EvidenceUnit.PER_SECOND.value: lambda value: f"{value:,.3g}/s",
    EvidenceUnit.SHARE.value: percent,
    EvidenceUnit.PERCENT.value: lambda value: percent(value / 100),
    EvidenceUnit.CELSIUS.value: lambda value: f"{value:.0f} °C",
    EvidenceUnit.WATTS.value: lambda value: f"{value:.0f} W",
}
"""By unit; any other number is a count, or has three digits."""


def section_of(summary: Summary, name: str) -> SectionSummary | None:
    """Returns a summary's section by its name."""
    found: SectionSummary | None = getattr(summary, name)
    return found


def leading(section: SectionSummary | None) -> Issue | None:
    """Returns the leading finding of a section."""
    if section is None:
        return None
    return section.issues[0] if section.issues else section.diagnosis


def tone(kind: str | None, severity: str | None) -> Tone:
    """Returns the tone of a finding; among those without a warning, good news is green."""
    if severity in ("crit", "critical"):
        return "crit"
    if severity in ("warn", "warning"):
        return "warn"
    if kind in _CALM:
        return "good"
    return "muted" if kind in _NOTHING_KNOWN or kind is None else "info"


def rail(summary: Summary) -> tuple[FindingCard, ...]:
    """Returns all findings by section, each section's leading one first.

    The section with what ended the run, or will end it, comes first, then the more severe.
    """
    told = [cards for name in TITLES if (cards := _told(summary, name))]
    told.sort(key=lambda cards: min(map(_reading_order, cards)))
    return tuple(card for cards in told for card in cards)


def lead_card(summary: Summary, name: str) -> FindingCard | None:
    """Returns the leading finding of a section."""
    issue = leading(section_of(summary, name))
    return None if issue is None else card(name, issue, summary)


def card(name: str, issue: Issue, summary: Summary) -> FindingCard:
    """Returns one finding of a section; the rank is left out where there is only one."""
    is_alone = (summary.meta.world_size or 1) < 2
    return FindingCard(
        section=TITLES[name],
        kind=line(issue.kind or ""),
        status=status(issue),
        severity=tone(issue.kind, issue.severity),
        summary=line(issue.summary or ""),
        action=line(issue.action) if issue.action else None,
        gain=gain(issue, summary.what_if),
        since=_since(issue),
        ranks=() if is_alone else issue.ranks,
        evidence=(*_past(issue, summary), *facts(issue.evidence, named=issue.facts)),
    )


def _past(issue: Issue, summary: Summary) -> Iterator[Fact]:
    """Yields how earlier predictions of the same kind came out, where one could be scored."""
    found = prediction(issue.kind, issue.ranks, summary.what_if)
    if found is not None and found.score is not None:
        fixes = f"{found.score.predictions} earlier fix{'es' * (found.score.predictions > 1)}"
        yield Fact(f"{fixes} saved", f"{percent(found.score.median_saved_share)} of the predicted")


def status(issue: Issue) -> str:
    """Returns a finding's status in words."""
    return line(issue.status or (issue.kind or "n/a").replace("_", " "))


def gain(issue: Issue, what_if: Sequence[WhatIfSummary]) -> str | None:
    """Returns what a step would take without it; `None` without a prediction."""
    found = prediction(issue.kind, issue.ranks, what_if)
    if found is None or found.step_time_ms is None or found.predicted_step_time_ms is None:
        return None
    before, after = duration(found.step_time_ms / 1e3), duration(found.predicted_step_time_ms / 1e3)
    number, _, unit = before.partition(" ")
    if after.endswith(f" {unit}"):
        before = number  # the unit is said once
    times = "" if found.speedup is None else f", {found.speedup:.3g}×"
    less = " or less" if found.is_upper_bound else ""
    return f"{before} → {after}{less}{times}"


def prediction(
    kind: str | None, ranks: Sequence[int], what_if: Sequence[WhatIfSummary]
) -> WhatIfSummary | None:
    """Returns the prediction for a finding; two stragglers of one kind differ by their ranks."""
    same = [found for found in what_if if found.kind == kind]
    return next((found for found in same if found.ranks == tuple(ranks)), None) or (
        same[0] if same and not ranks else None
    )


def spans(summary: Summary | None, names: Iterable[str], first_step: int) -> tuple[Span, ...]:
    """Returns where a section's findings hold on the axis of steps, the most severe first.

    The leading finding holds for all analyzed steps, unless its first step is known.
    """
    if summary is None:
        return ()
    found = [
        span
        for name in names
        if (section := section_of(summary, name)) is not None
        for issue in section.issues
        if (span := _span(issue, section, first_step)) is not None
    ]
    found.sort(key=lambda span: -_WEIGHTS[span.tone])
    return tuple(found[:MAX_SPANS])


def _span(issue: Issue, section: SectionSummary, first_step: int) -> Span | None:
    taken_as = tone(issue.kind, issue.severity)
    begin = _begin(issue)
    if begin is None and issue is section.issues[0]:
        begin = section.global_.window.start_step
    if begin is None or taken_as not in _WEIGHTS:
        return None
    until = begin + 1.0 if issue.kind == Kind.LOSS_SPIKE.value else None
    return Span(float(max(begin, first_step)), until, status(issue), taken_as)


def facts(
    evidence: Mapping[str, Any], most: int = MAX_FACTS, named: Sequence[FactSummary] = ()
) -> Iterator[Fact]:
    """Returns the first few pieces of evidence in words.

    Files of older versions and other packages do not name the pieces: there the keys are shown.
    """
    told = 0
    for piece in named or _named_by_key(evidence):
        words = _words(evidence.get(piece.name), piece.unit)
        if words is not None and "skew" in piece.name and piece.unit == EvidenceUnit.SHARE.value:
            words = excess(evidence[piece.name])  # as in the tables of the page
        if words is not None and told < most:
            told += 1
            yield Fact(line(piece.label), words)


def _named_by_key(evidence: Mapping[str, Any]) -> list[FactSummary]:
    return [
        FactSummary(key, label_of(key), unit_by_name(key).value)
        for key in evidence
        if key not in NOT_TOLD
    ]


def _told(summary: Summary, name: str) -> list[FindingCard]:
    section = section_of(summary, name)
    lead = leading(section)
    if section is None or lead is None:
        return []
    cards = []
    for issue in section.issues or (lead,):
        is_worth_it = tone(issue.kind, issue.severity) in ("crit", "warn")
        if issue is lead:
            is_worth_it |= name in _ALWAYS_TOLD
        elif name == Section.STEP_TIME.value:
            is_worth_it |= issue.phase is not None or issue.kind in COMPUTE_CAUSES
        if name == Section.STABILITY.value:
            is_worth_it |= issue.kind not in (*_CALM, *_NOTHING_KNOWN)
        if is_worth_it:
            cards.append(card(name, issue, summary))
    return cards


def _reading_order(found: FindingCard) -> tuple[int, int]:
    """Returns the sort key: by consequence, then by severity."""
    return consequence(found.kind, found.severity), -_WEIGHTS.get(found.severity, 0)


def _begin(issue: Issue) -> int | None:
    """Returns the step since which it holds, where it is known in TraceML's numbering."""
    if issue.evidence.get("numbering") == "logged":
        return None
    told = (issue.evidence.get(name) for name in ("onset_step", "first_step", "step"))
    for step in (issue.since_step, *told):
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    return None


def _since(issue: Issue) -> str | None:
    """Returns since when it holds; `None` for what was always so, and for good news."""
    begin = _begin(issue)
    if begin is None or begin <= 1 or tone(issue.kind, issue.severity) in ("good", "muted"):
        return None
    opening = "at" if issue.kind in _MOMENTS else "since"
    return f"{opening} step {count(begin)}"


def _words(value: object, unit: str) -> str | None:
    """Returns a piece of evidence in words; `None` where there is nothing to show."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return line(value, MAX_FACT_CHARS) or None
    if not isinstance(value, (int, float)) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        return None
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return count(value) if isinstance(value, int) else f"{value:,.3g}"
