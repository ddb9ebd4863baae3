"""The verdict on a run: the sentence that is read first."""

from __future__ import annotations

from traceml.facts.history import History
from traceml.facts.recent_window import MIN_STEPS
from traceml.figures.failure import verdict_of
from traceml.figures.findings import TITLES, leading, prediction, section_of, tone
from traceml.figures.head import RunStanding, steps_taken
from traceml.figures.page import Verdict
from traceml.figures.words import line
from traceml.model.quantities import count
from traceml.summaries.record import Issue, PrimaryDiagnosis, Summary
from traceml.text.summary import predicted_words

_NOTHING_SAID = (None, "NO_DATA", "WARMUP")


def run_verdict(summary: Summary | None, standing: RunStanding, history: History) -> Verdict:
    """Returns the failure, else the primary diagnosis, else why there is none."""
    if summary is not None and summary.failure is not None:
        return verdict_of(summary.failure)
    primary = None if summary is None else primary_of(summary)
    if standing.is_live and (primary is None or primary.kind in _NOTHING_SAID):
        return _warming_up(summary, history)
    if summary is None or primary is None:
        return _without_summary(standing)
    predicted = prediction(primary.kind, _ranks(summary, primary), summary.what_if)
    return Verdict(
        severity=tone(primary.kind, primary.severity),
        status=line(primary.status or (primary.kind or "n/a").replace("_", " ")),
        why=line(primary.summary or ""),
        next=line(primary.action) if primary.action else None,
        gain=line(predicted_words(predicted)) if predicted and predicted.summary else None,
    )


def primary_of(summary: Summary) -> PrimaryDiagnosis | Issue | None:
    """Returns the primary diagnosis; an old or live summary may have only that of step time."""
    primary = summary.primary_diagnosis
    if primary.kind or primary.status:
        return primary
    return leading(summary.step_time)


def _ranks(summary: Summary, primary: PrimaryDiagnosis | Issue) -> tuple[int, ...]:
    """Returns the ranks of the finding that the primary diagnosis repeats."""
    for name in TITLES:
        section = section_of(summary, name)
        for issue in () if section is None else section.issues:
            if issue.kind == primary.kind:
                return issue.ranks
    return ()


def _warming_up(summary: Summary | None, history: History) -> Verdict:
    taken = steps_taken(summary, history)
    if not taken:
        return Verdict(
            "muted",
            "STARTING",
            "No training step has been taken yet.",
            next="Nothing to do: the first step is detected automatically when it comes.",
        )
    return Verdict(
        "muted",
        "WARMING UP",
        f"{count(taken, 'step')} so far; a diagnosis takes at least {MIN_STEPS} steps after "
        "the first slow ones.",
        next="Wait for more steps; the numbers below are filling already.",
    )


def _without_summary(standing: RunStanding) -> Verdict:
    if standing.state == "lost":
        return Verdict(
            "warn",
            "LOST",
            "No process is working on this run, and neither its end nor a summary was recorded.",
            next=f"Rebuild the summary from its records: traceml recover "
            f"{line(standing.manifest.run_name)}",
        )
    if standing.state == "failed":
        return Verdict(
            "crit",
            "FAILED",
            f"The run {standing.state_words}, and there is no summary of it.",
            next="Look at the last lines of its output.",
        )
    if standing.notes:
        return Verdict(
            "warn",
            "NO DATA",
            line(standing.notes[0]),
            next=f"Rebuild the summary from its records: traceml recover "
            f"{line(standing.manifest.run_name)}",
        )
    return Verdict(
        "muted",
        "NO DATA",
        "There is no summary of this run.",
        next="Check that the command takes training steps with torch under `traceml run`.",
    )
