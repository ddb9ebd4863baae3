"""Copies are named where they take a noticeable part of the step."""

from dataclasses import replace

import pytest

from factories import make_run
from traceml.diagnose.rules import h2d_bound
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(h2d_ms=4.2, gpu=True), Severity.WARNING, id="just above the line"),
        pytest.param(make_run(h2d_ms=8.9, gpu=True), Severity.WARNING, id="just below critical"),
        pytest.param(make_run(h2d_ms=9.6, gpu=True), Severity.CRITICAL, id="just critical"),
        pytest.param(make_run(h2d_ms=40), Severity.CRITICAL, id="on the host's clock"),
        pytest.param(
            make_run(
                h2d_ms=2.5, input_ms=0, forward_ms=1, backward_ms=1, optimizer_ms=0.5, rest_ms=0
            ),
            Severity.WARNING,
            id="half of a short step, never critical",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = h2d_bound.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (h2d_bound.KIND, Phase.H2D)
    assert finding.severity is severity
    assert finding.ranks == (0,)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(h2d_ms=4.0, gpu=True), id="just below the line"),
        pytest.param(
            make_run(h2d_ms=0.9, forward_ms=1, backward_ms=2, optimizer_ms=0.5, gpu=True),
            id="a share of a tiny step",
        ),
        pytest.param(make_run(gpu=True), id="not measured"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert h2d_bound.check(gather(run)) is None


@pytest.mark.parametrize(
    ("pinned", "words"),
    [
        pytest.param(False, "does not pin", id="pinning is off"),
        pytest.param(True, "pins its batches already", id="pinning is on"),
        pytest.param(None, "Where batches are not pinned", id="nobody knows"),
    ],
)
def test_the_advice_follows_from_the_loader(pinned: bool | None, words: str) -> None:
    run = make_run(h2d_ms=40, gpu=True)
    ranks = tuple(replace(rank, loader_pinned=pinned) for rank in run.ranks)
    finding = h2d_bound.check(gather(replace(run, ranks=ranks)))
    assert finding is not None
    assert words in finding.action
    assert "non_blocking=True" in finding.action
