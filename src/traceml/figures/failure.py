"""What ended a run that failed: who, in which step, where in the code."""

from __future__ import annotations

from traceml.figures.findings import facts, lead_card
from traceml.figures.page import Part, Row, Table, Verdict
from traceml.figures.words import MAX_CHARS, cell, line, output_line
from traceml.model.finding import Kind, Section
from traceml.model.quantities import count
from traceml.summaries.record import FailureSummary, Summary

MAX_FACTS = 12


def failure_part(summary: Summary | None) -> Part | None:
    """Returns rank, step, phase, module and line; `None` where the run did not fail."""
    failure = None if summary is None else summary.failure
    if summary is None or failure is None:
        return None
    told = {
        "Rank": None if failure.rank is None else str(failure.rank),
        "Step": None if failure.step is None else count(failure.step),
        "Phase": failure.phase,
        "Module": failure.module,
        "Where": failure.where,
        "Error": failure.error,
        "Message": failure.message,
    }
    rows = [Row((name, line(value, MAX_CHARS))) for name, value in told.items() if value]
    further = {name: found for name, found in failure.evidence.items() if name.title() not in told}
    rows += [Row((fact.label, fact.value)) for fact in facts(further, MAX_FACTS, failure.facts)]
    return Part(
        id="failure",
        title="What ended it",
        finding=lead_card(summary, Section.STABILITY.value),
        tables=(Table("failure-table", "The failure", ("", "What is known"), tuple(rows)),),
        printed=tuple(map(output_line, (failure.traceback or "").splitlines())),
        is_wide=True,
    )


def verdict_of(failure: FailureSummary) -> Verdict:
    """Returns the failure as the verdict of the page."""
    kind = failure.kind or ""
    known = kind in Kind.__members__
    return Verdict(
        severity="crit",
        status=Kind[kind].status if known else cell(kind.replace("_", " ")) or "FAILED",
        why=line(failure.summary or failure.message or "The run did not end well."),
        next=line(failure.action) if failure.action else None,
    )
