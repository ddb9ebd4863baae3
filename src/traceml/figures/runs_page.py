"""The list of runs: a row each, with its verdict, its speed and its state."""

from __future__ import annotations

from traceml.facts.history import History
from traceml.figures.head import elapsed_s, ranks_words, steps_taken
from traceml.figures.page import RunRow
from traceml.figures.run_page import RunStanding
from traceml.figures.standing import moment
from traceml.figures.verdict import run_verdict
from traceml.model.quantities import count, duration, milliseconds
from traceml.summaries.record import Summary

_NO_HISTORY = History()


def run_row(name: str, summary: Summary | None, standing: RunStanding) -> RunRow:
    """Returns a run's row; `name` is the name of its page."""
    verdict = run_verdict(summary, standing, _NO_HISTORY)
    section = None if summary is None else summary.step_time
    step_ms = None if section is None else section.global_.average.get("step_time_ms")
    lasted_s, steps = elapsed_s(summary, standing), steps_taken(summary, _NO_HISTORY)
    return RunRow(
        name=name,
        state=standing.state,
        state_words=standing.state_words,
        severity=verdict.severity,
        status=verdict.status,
        why=verdict.why,
        started=moment(standing.manifest.started_unix_s),
        duration=duration(lasted_s),
        steps=count(steps),
        step_time=milliseconds(step_ms),
        ranks=ranks_words(summary, standing, _NO_HISTORY),
        started_unix_s=standing.manifest.started_unix_s,
        duration_s=lasted_s,
        step_count=steps,
        step_time_s=None if step_ms is None else step_ms / 1e3,
    )
