"""An input straggler is a rank whose data makes the others wait."""

import pytest

from factories import make_late, make_run, make_waiting
from traceml.diagnose.rules import input_straggler
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_waiting(make_late(make_run(2), 1, phase="input")), id="one of two"),
        pytest.param(make_waiting(make_late(make_run(8), 1, phase="input")), id="one of eight"),
        pytest.param(
            make_waiting(make_late(make_run(4), 1, phase="input", by_ms=300, every=20)),
            id="a stall now and then",
        ),
        pytest.param(
            make_waiting(make_late(make_run(2), 1, phase="input"), "backward"),
            id="with the waiting hidden in backward",
        ),
        pytest.param(
            make_waiting(make_late(make_run(2, forward_ms=None), 1, phase="input")),
            id="with forward unknown",
        ),
        pytest.param(make_late(make_run(2), 1, phase="input"), id="with nobody waiting"),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    finding = input_straggler.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.INPUT_STRAGGLER, Phase.INPUT)
    assert finding.ranks == (1,)
    assert "input of rank 1" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_waiting(make_run(4, input_ms=50)), id="every rank waits for data alike"),
        pytest.param(make_waiting(make_late(make_run(4), 1)), id="a rank late in forward"),
        pytest.param(make_waiting(make_run(4, noise=0.3)), id="noise"),
        pytest.param(make_run(1, input_ms=50), id="one rank"),
        pytest.param(make_run(2, steps=0), id="no steps"),
        pytest.param(
            make_waiting(make_late(make_run(2, input_ms=None), 1, phase="rest")),
            id="input not measured",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert input_straggler.check(gather(run)) is None
