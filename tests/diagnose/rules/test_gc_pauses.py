"""Garbage collection is named where it stops the step, and not where the GPU hides it."""

import pytest

from factories import make_run, spend
from traceml.diagnose.rules import gc_pauses
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords

GPU = make_run(gpu=True, noise=0, rest_ms=0.5)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(spend(make_run(), "gc", 2.1), Severity.WARNING, id="just above the line"),
        pytest.param(
            spend(make_run(), "gc", 80, every=20), Severity.WARNING, id="one long pause in twenty"
        ),
        pytest.param(spend(make_run(), "gc", 10), Severity.CRITICAL, id="a fifth of the step"),
        pytest.param(spend(GPU, "gc", 5), Severity.WARNING, id="the GPU stands still meanwhile"),
        pytest.param(
            spend(GPU, "gc", 100, every=20), Severity.WARNING, id="the GPU runs out of work"
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = gc_pauses.check(gather(run))
    assert finding is not None
    assert finding.kind is gc_pauses.KIND
    assert finding.severity is severity
    assert finding.ranks == (0,)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="no collection"),
        pytest.param(spend(make_run(), "gc", 1.8), id="just below the line"),
        pytest.param(
            spend(make_run(forward_ms=1, backward_ms=2, optimizer_ms=1), "gc", 0.9),
            id="a share of a tiny step",
        ),
        pytest.param(spend(GPU, "gc", 10, hidden=True), id="a busy GPU hides it"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert gc_pauses.check(gather(run)) is None


def test_the_numbers_are_those_of_the_run() -> None:
    finding = gc_pauses.check(gather(spend(make_run(noise=0), "gc", 80, every=20)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.004)
    assert "10 of 200 steps" in finding.claim
    assert "80.0 ms" in finding.claim
    assert "gc.freeze()" in finding.action
