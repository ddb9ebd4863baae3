"""Wait heavy fires on time nobody can explain, and not on the loop's own overhead."""

import pytest

from factories import make_rank, make_run
from traceml.diagnose.rules import wait_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.model.phase import Phase
from traceml.model.rank import Region
from traceml.store.records import RunRecords

TINY = {"input_ms": 0.1, "forward_ms": 0.5, "backward_ms": 0.8, "optimizer_ms": 0.3, "noise": 0}


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(rest_ms=4.1), Severity.WARNING, id="just above the line"),
        pytest.param(make_run(rest_ms=9.3), Severity.CRITICAL, id="just critical"),
        pytest.param(make_run(rest_ms=40, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(
            make_run(rest_ms=40, input_ms=None), Severity.CRITICAL, id="with input unknown"
        ),
        pytest.param(
            make_run(rest_ms=0.7, **TINY),
            Severity.WARNING,
            id="much of a tiny step, never critical",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = wait_heavy.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.WAIT_HEAVY, Phase.RESIDUAL)
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(rest_ms=3.9), id="just below the line"),
        pytest.param(make_run(rest_ms=0.4, **TINY), id="the loop's own overhead in a tiny step"),
        pytest.param(make_run(h2d_ms=40), id="copies explain it"),
        pytest.param(make_run(communication_ms=40), id="communication explains it"),
        pytest.param(make_run(rest_ms=40, forward_ms=None), id="forward not measured"),
        pytest.param(make_run(rest_ms=40, backward_ms=None), id="backward not measured"),
        pytest.param(make_run(rest_ms=40, optimizer_ms=None), id="updates by hand"),
        pytest.param(make_run(input_ms=50), id="input explains it"),
        pytest.param(make_run(between_ms=50), id="it lies between the steps"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert wait_heavy.check(gather(run)) is None


def test_a_named_region_is_looked_at_first() -> None:
    steps = make_run(rest_ms=40).ranks[0].steps
    rank = make_rank(steps, regions=[Region("metrics", 200, 7.0, 0.1, None)])
    run = make_run()
    finding = wait_heavy.check(gather(type(run)(run.manifest, (rank,))))
    assert finding is not None
    assert "'metrics'" in finding.action
    assert "35.0 ms" in finding.action
