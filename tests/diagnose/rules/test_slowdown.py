"""A lasting slowdown has an onset, a size and a phase."""

import pytest

from factories import make_run, map_steps
from traceml.diagnose.rules import slowdown
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(slowdown_at=100), Severity.WARNING, id="half as long again"),
        pytest.param(
            make_run(slowdown_at=100, slowdown=1.25), Severity.INFO, id="just below the line"
        ),
        pytest.param(
            make_run(slowdown_at=100, slowdown=1.35), Severity.WARNING, id="just above the line"
        ),
        pytest.param(make_run(ranks=4, slowdown_at=150), Severity.WARNING, id="on every rank"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = slowdown.check(gather(run))
    assert finding is not None
    assert finding.kind is slowdown.KIND
    assert finding.severity is severity
    assert finding.phase is Phase.BACKWARD


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="an even run"),
        pytest.param(make_run(slowdown_at=100, slowdown=1.05), id="a drift of a few percent"),
        pytest.param(make_run(first_step_ms=4000), id="a slow beginning"),
        pytest.param(
            make_run(
                slowdown_at=100,
                input_ms=0.1,
                forward_ms=0.5,
                backward_ms=0.5,
                optimizer_ms=0.3,
                rest_ms=0.1,
            ),
            id="half of a tiny step",
        ),
        pytest.param(make_run(steps=8, slowdown_at=4), id="too few steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert slowdown.check(gather(run)) is None


def test_the_phase_that_grew_is_named() -> None:
    def slower_input(steps, rank):
        steps["input_ns"][100:] += 30_000_000
        steps["wall_ns"][100:] += 30_000_000

    finding = slowdown.check(gather(map_steps(make_run(noise=0), slower_input)))
    assert finding is not None
    assert finding.phase is Phase.INPUT
    assert "From step 101" in finding.claim
    assert "input grew by 30.0 ms, 100% of it" in finding.claim
    assert finding.lost_s_per_step == pytest.approx(0.015)
