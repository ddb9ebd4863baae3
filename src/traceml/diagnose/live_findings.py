"""Live findings: what the rules say about a moving window, without flicker.

A finding is shown once it was made several times in a row, and disappears once its measure has
clearly fallen. In between it stays, with the numbers of the last time it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import has_verdict
from traceml.diagnose.rules import warmup
from traceml.facts.facts import Facts
from traceml.facts.recent_window import MIN_STEPS, RecentFacts, since_step
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Section, Severity
from traceml.model.quantities import count

# Evaluations come twice a second at most, as long as new steps do, and less often where they take
# much of the machine.
CRITICAL_EVALUATIONS = 2
"""In a row. One window may be chance; a second one that agrees contains new steps."""
EVALUATIONS = 4
"""In a row: a less severe finding is shown once it has lasted."""
CLEARLY_BELOW = 0.8
"""Of the lowest measure at which it was found: below this it is no longer near the threshold."""
GONE_EVALUATIONS = 6
"""A finding disappears after so many evaluations clearly below."""
UNMEASURED_EVALUATIONS = 30
"""… or so many without being found: longer than the window of ten seconds holds it."""
DOUBTFUL_EVALUATIONS = 120
"""… or so many near the threshold: one minute at least."""
OUTRANKED_EVALUATIONS = 6
"""A leading finding gives way after so many evaluations in which another came first."""


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """A finding that is shown."""

    finding: Finding
    since_step: int
    """The step since which it held when it was first shown: its own, or as far back as the window
    reaches."""
    first_ranks: tuple[int, ...] = ()
    """The ranks that it named at first: another straggler is another finding."""

    def is_about(self, finding: Finding) -> bool:
        """Returns whether this is the same finding, made again."""
        one_rank_each = len(finding.ranks) == len(self.first_ranks) == 1
        is_other_rank = one_rank_each and finding.ranks != self.first_ranks
        return finding.kind is self.finding.kind and not is_other_rank


@dataclass(frozen=True, slots=True)
class _Track:
    """One finding from its first evaluation until it disappears."""

    live: LiveFinding
    """The finding as it was last made."""
    place: int
    """Its position in the rules' last order."""
    shown: Severity | None = None
    above: int = 0
    """Evaluations in a row that found it more severe than shown, …"""
    below: int = 0
    """… or less severe or not at all, …"""
    clearly_below: int = 0
    """… with a measure far below the threshold."""
    lowest: float | None = None
    """The lowest measure at which it was found as severe as it is shown."""

    def again(self, finding: Finding, place: int) -> _Track:
        """Returns the track with the finding made again."""
        return replace(self, live=replace(self.live, finding=finding), place=place)

    def as_shown(self) -> LiveFinding:
        """The finding with the severity that is shown."""
        severity = self.shown or self.live.finding.severity
        return replace(self.live, finding=replace(self.live.finding, severity=severity))


@dataclass(frozen=True, slots=True)
class LiveSection:
    """One section's live findings, and those not shown yet."""

    findings: tuple[LiveFinding, ...] = ()
    """The leading one first; empty until something was found often enough."""
    tracks: tuple[_Track, ...] = ()
    outranked: int = 0
    """Evaluations in a row in which another finding came before the leading one."""

    @property
    def found(self) -> tuple[Finding, ...]:
        """What the rules found in the last steps, whether shown or not."""
        return tuple(track.live.finding for track in self.tracks)

    @property
    def lead(self) -> LiveFinding | None:
        """The finding to read first."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True, slots=True)
class LiveDiagnosis:
    """What is shown of a run in progress."""

    sections: Mapping[Section, LiveSection] = field(default_factory=dict)


def update(before: LiveDiagnosis, recent: RecentFacts) -> LiveDiagnosis:
    """Returns what to show after another evaluation of the last steps; unchanged with too few
    steps."""
    if recent.whole.window.steps_analyzed < MIN_STEPS:
        return before
    return LiveDiagnosis(
        {
            section: _follow(
                before.sections.get(section, LiveSection()),
                findings,
                recent,
                recent.now if section is Section.STEP_TIME else recent.whole,
            )
            for section, findings in _found(recent).items()
        }
    )


def new_leads(before: LiveDiagnosis, after: LiveDiagnosis) -> tuple[LiveFinding, ...]:
    """Returns the leading findings that did not lead before, or were less severe."""
    return tuple(
        live.lead
        for section, live in after.sections.items()
        if live.lead is not None
        and _label(live.lead) != _label(before.sections.get(section, LiveSection()).lead)
    )


def too_early(window: Facts) -> Finding:
    """Returns what to say about the step while nothing was found often enough."""
    steps = window.window.steps_analyzed
    return warmup.check(window) or Finding(
        kind=warmup.KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=f"{count(steps, 'step')} so far: too early to say what holds.",
        action="Wait a few seconds: a finding is shown once it has been made several times.",
        evidence=Evidence(as_number("steps_analyzed", steps)),
    )


def _label(live: LiveFinding | None) -> object:
    if live is None:
        return None
    return live.finding.kind, live.finding.severity, live.since_step


def _found(recent: RecentFacts) -> Mapping[Section, Sequence[Finding]]:
    """Returns findings about step time from how the run is now, all others from the whole
    window."""
    window = diagnose(recent.whole).sections
    if recent.now is recent.whole:
        return window
    now = diagnose(recent.now).sections[Section.STEP_TIME]
    step_time = sorted(
        (*now, *_of_the_change(recent.whole, window[Section.STEP_TIME])),
        key=lambda finding: -finding.severity.weight,
    )
    return {**window, Section.STEP_TIME: step_time}


def _of_the_change(window: Facts, found: Sequence[Finding]) -> list[Finding]:
    """Returns the findings about the change itself, which only a slowdown causes."""
    if window.slowdown is None:
        return []
    otherwise = diagnose(replace(window, slowdown=None)).sections[Section.STEP_TIME]
    kinds = {finding.kind for finding in otherwise}
    return [finding for finding in found if finding.kind not in kinds]


def _follow(
    before: LiveSection, found: Sequence[Finding], recent: RecentFacts, facts: Facts
) -> LiveSection:
    """Returns one section after one more evaluation."""
    fallback = all_rules().fallback(found[0].section, facts)
    unmatched = [finding for finding in found if finding.kind is not fallback.kind]
    tracks = []
    for track in before.tracks:
        now = next(filter(track.live.is_about, unmatched), None)
        if now is not None:
            unmatched.remove(now)
            track = track.again(now, found.index(now))
        tracks.append(_advance(track, now, recent, facts))
    for finding in unmatched:
        new = _Track(LiveFinding(finding, 0, finding.ranks), found.index(finding))
        tracks.append(_advance(new, finding, recent, facts))
    tracks = [track for track in tracks if track.shown or track.above]
    tracks.sort(key=lambda track: (-_weight(track.shown), track.place))
    shown = [track.as_shown() for track in tracks if track.shown is not None]
    if has_verdict(fallback.section, [live.finding for live in shown]):
        return _with_lead(before, tuple(tracks), shown)
    is_fallback = any(finding.kind is fallback.kind for finding in found)
    lead = _lead_without_verdict(before.lead, fallback, is_fallback, facts)
    rest = [live for live in shown if not lead or not lead.is_about(live.finding)]
    return LiveSection((*([lead] if lead else []), *rest), tuple(tracks))


def _advance(track: _Track, now: Finding | None, recent: RecentFacts, facts: Facts) -> _Track:
    """Returns one finding's track after one more evaluation; `now` is `None` where no rule made
    it."""
    measure = _measure(track, now, facts)
    severity = None if now is None else now.severity
    if _weight(severity) > _weight(track.shown):
        above = replace(track, above=track.above + 1, below=0, clearly_below=0)
        return _raised(above, measure, recent)
    if severity is track.shown:
        known = [value for value in (track.lowest, measure) if value is not None]
        lowest = min(known, default=None)
        return replace(track, above=0, below=0, clearly_below=0, lowest=lowest)
    clear = measure is not None and track.lowest and measure < CLEARLY_BELOW * track.lowest
    track = replace(
        track,
        above=0,
        below=track.below + 1,
        clearly_below=track.clearly_below + 1 if clear else 0,
    )
    if track.clearly_below < GONE_EVALUATIONS and track.below < _patience(track, measure):
        return track
    return replace(track, shown=severity, below=0, clearly_below=0, lowest=measure)


def _patience(track: _Track, measure: float | None) -> int:
    """Returns for how many evaluations a finding stays that is neither found nor clearly gone."""
    if measure is not None:
        return DOUBTFUL_EVALUATIONS
    # What only describes the run is believed as it is said.
    return GONE_EVALUATIONS if track.shown is Severity.INFO else UNMEASURED_EVALUATIONS


def _raised(track: _Track, measure: float | None, recent: RecentFacts) -> _Track:
    """Returns the finding as severe as it is, once that was found often enough."""
    finding = track.live.finding
    critical = finding.severity is Severity.CRITICAL
    if track.above < (CRITICAL_EVALUATIONS if critical else EVALUATIONS):
        return track
    live = replace(track.live, since_step=_since(finding, recent))
    return replace(track, live=live, shown=finding.severity, above=0, lowest=measure)


def _with_lead(
    before: LiveSection, tracks: tuple[_Track, ...], shown: list[LiveFinding]
) -> LiveSection:
    """Returns the leading finding: the old one until another led for long, or is more severe."""
    best, last = shown[0], before.lead
    lead = next((live for live in shown if last and _is_same(live, last)), best)
    outranked = before.outranked + 1
    if lead is best or _weight(best.finding.severity) > _weight(lead.finding.severity):
        return LiveSection(tuple(shown), tracks)
    if outranked >= _patience_with(lead.finding, best.finding):
        return LiveSection(tuple(shown), tracks)
    rest = tuple(each for each in shown if each is not lead)
    return LiveSection((lead, *rest), tracks, outranked)


def _lead_without_verdict(
    lead: LiveFinding | None, fallback: Finding, is_fallback: bool, facts: Facts
) -> LiveFinding | None:
    """Returns the fallback ("all is well"); while something else may be true, the last lead."""
    if lead is not None and lead.finding.kind is fallback.kind:
        return replace(lead, finding=fallback)
    return LiveFinding(fallback, _first_step(facts)) if is_fallback else lead


def _patience_with(lead: Finding, better: Finding) -> int:
    """Returns for how many evaluations a finding leads although another of its severity comes
    first."""
    lost_s, more_s = lead.lost_s_per_step or 0.0, better.lost_s_per_step or 0.0
    is_close = CLEARLY_BELOW * more_s <= lost_s <= more_s
    return DOUBTFUL_EVALUATIONS if is_close else OUTRANKED_EVALUATIONS


def _is_same(one: LiveFinding, other: LiveFinding) -> bool:
    return one.finding.kind is other.finding.kind and one.first_ranks == other.first_ranks


def _weight(severity: Severity | None) -> int:
    return -1 if severity is None else severity.weight


def _measure(track: _Track, now: Finding | None, facts: Facts) -> float | None:
    """Returns the share that its rule judges by, from the rule itself where it made the finding."""
    if now is None:
        return share_now(track.live.finding, facts)
    return None if all_rules().of(now.kind).measure is None else now.share


def share_now(finding: Finding, facts: Facts) -> float | None:
    """Returns the finding's `share` in these facts, whether its rule makes it there or not.

    `None` where it cannot be measured, or where the finding is not about a part of the step.
    """
    measure = all_rules().of(finding.kind).measure
    return None if measure is None else measure(facts, finding)


def _since(finding: Finding, recent: RecentFacts) -> int:
    if finding.steps is not None:
        return finding.steps.first
    table = recent.whole.step_table
    if finding.section is not Section.STEP_TIME or table is None:
        return _first_step(recent.whole)
    began = since_step(table, finding.phase, finding.ranks)
    return max(began, _first_step(recent.now))  # of the steps before, something else was true


def _first_step(facts: Facts) -> int:
    return facts.window.first_step or 1
