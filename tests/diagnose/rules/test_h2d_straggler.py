"""A copy straggler is a rank whose copies to the device make the others wait."""

import pytest

from factories import make_late, make_run, make_waiting
from traceml.diagnose.rules import h2d_straggler
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_waiting(make_late(make_run(4, h2d_ms=2), 3, phase="h2d")), id="host"),
        pytest.param(
            make_waiting(make_late(make_run(4, h2d_ms=2, gpu=True), 3, phase="h2d")), id="GPU"
        ),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    finding = h2d_straggler.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.H2D_STRAGGLER, Phase.H2D)
    assert finding.ranks == (3,)
    assert "from 22.0 ms down to 2.0 ms" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_waiting(make_run(4, h2d_ms=30)), id="every rank copies alike"),
        pytest.param(make_waiting(make_late(make_run(4, h2d_ms=2), 3)), id="late in forward"),
        pytest.param(
            make_waiting(make_late(make_run(4), 3, phase="rest")), id="copies not measured"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert h2d_straggler.check(gather(run)) is None
