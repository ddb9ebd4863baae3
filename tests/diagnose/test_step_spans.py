"""A finding says itself which steps it is about, and every surface says the same."""

from __future__ import annotations

import numpy as np
import pytest

from factories import make_run
from failing import failed, report, with_loss
from replay import with_part
from traceml.diagnose.engine import diagnose
from traceml.diagnose.live_findings import LiveDiagnosis, update
from traceml.facts.gather import gather
from traceml.facts.recent_window import gather_recent
from traceml.model.failure import MemoryAtFailure
from traceml.model.finding import Finding, Kind, Section, StepSpan
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.live_state import live_change, live_state
from traceml.summaries.record import Issue, sections_of


def spiked(at: int) -> list[float]:
    """A smooth loss with a jump in one step, counted from 1."""
    values = 1 + 3 * np.exp(-np.arange(400) / 100)
    values[at - 1] *= 60
    return values.tolist()


FULL = MemoryAtFailure(is_host=False)
SPANS = [
    pytest.param(failed(report(step=61)), Kind.EXCEPTION, StepSpan(61, 61), id="an exception"),
    pytest.param(
        failed(report(0, "OutOfMemoryError", "CUDA out of memory.", step=61, memory=FULL)),
        Kind.OUT_OF_MEMORY,
        StepSpan(61, 61),
        id="out of memory",
    ),
    pytest.param(
        failed(report(step=None)), Kind.EXCEPTION, None, id="an exception in no known step"
    ),
    pytest.param(with_loss(spiked(300)), Kind.LOSS_SPIKE, StepSpan(300, 300), id="a spike"),
    pytest.param(
        with_loss([1.0] * 100 + [float("nan")] * 100),
        Kind.NON_FINITE_LOSS,
        StepSpan(101),
        id="a loss that is lost",
    ),
    pytest.param(
        with_loss([1.0] * 100 + [float("nan")] + [1.0] * 99),
        Kind.NON_FINITE_LOSS,
        StepSpan(101, 101),
        id="a loss that comes back",
    ),
    pytest.param(
        make_run(steps=400, slowdown_at=200), Kind.SLOWDOWN, StepSpan(201), id="a slowdown"
    ),
    pytest.param(
        with_part(make_run(steps=100), "input", 9e3, slice(50, 51)),
        Kind.INPUT_BOUND,
        StepSpan(51, 51),
        id="one long step",
    ),
    pytest.param(make_run(input_ms=30.0), Kind.INPUT_BOUND, None, id="what always holds"),
]


def found(run: RunRecords, kind: Kind) -> Finding:
    told = [each for part in diagnose(gather(run)).sections.values() for each in part]
    return next(each for each in told if each.kind is kind)


def in_summary(run: RunRecords, kind: Kind) -> Issue:
    sections = sections_of(build(run, 0.0, "1"))
    return next(each for _, part in sections for each in part.issues if each.kind == kind.value)


@pytest.mark.parametrize(("run", "kind", "span"), SPANS)
def test_a_finding_says_in_which_steps_it_holds(
    run: RunRecords, kind: Kind, span: StepSpan | None
) -> None:
    steps = found(run, kind).steps
    if kind is Kind.SLOWDOWN:  # the rule estimates it
        assert steps is not None and steps.last is None and abs(steps.first - 201) <= 5
    else:
        assert steps == span


@pytest.mark.parametrize(("run", "kind", "span"), SPANS)
def test_the_summary_says_the_same(run: RunRecords, kind: Kind, span: StepSpan | None) -> None:
    issue, steps = in_summary(run, kind), found(run, kind).steps
    assert (issue.since_step, issue.until_step) == (steps or (None, None))


def test_while_a_run_goes_on_a_failure_is_of_its_own_step() -> None:
    """Not of the window's first: a tracker was told "from step 1: rank 0 failed at step 61"."""
    recent = gather_recent(failed(report(step=61, is_handled=True)))
    shown = LiveDiagnosis()
    for _ in range(4):
        shown = update(shown, recent)
    live = next(
        each
        for each in shown.sections[Section.STABILITY].findings
        if each.finding.kind is Kind.EXCEPTION
    )
    change = live_change(live, recent.whole, 0.0)
    assert (change.since_step, change.until_step) == (61, 61)
    state = live_state(shown, recent, failed(), 0.0, "1")
    issue = next(each for each in state.findings if each.kind == Kind.EXCEPTION.value)
    assert (issue.since_step, issue.until_step) == (61, 61)
