"""A straggler without a single cause is still named."""

import pytest

from factories import make_late, make_run, make_waiting
from traceml.diagnose.rules import straggler
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


def mixed(input_ms: float, forward_ms: float) -> RunRecords:
    late = make_late(make_run(4), 3, phase="input", by_ms=input_ms)
    return make_waiting(make_late(late, 3, phase="forward", by_ms=forward_ms))


@pytest.mark.parametrize(
    ("run", "phase"),
    [
        pytest.param(mixed(10, 9), Phase.INPUT, id="two causes, input the larger"),
        pytest.param(mixed(9, 10), Phase.FORWARD, id="two causes, forward the larger"),
        pytest.param(mixed(15, 5), Phase.INPUT, id="just below four fifths"),
        pytest.param(
            make_waiting(make_late(make_run(4, backward_ms=None), 3, phase="rest")),
            None,
            id="in something that was not measured",
        ),
    ],
)
def test_must_fire(run: RunRecords, phase: Phase | None) -> None:
    finding = straggler.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase, finding.ranks) == (Kind.STRAGGLER, phase, (3,))
    assert "rank 3" in finding.action


def test_the_causes_are_listed_the_largest_first() -> None:
    finding = straggler.check(gather(mixed(10, 9)))
    assert finding is not None
    assert "input (10.0 ms more), then forward (9.0 ms more)" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(mixed(17, 3), id="just above four fifths"),
        pytest.param(mixed(0, 20), id="one cause"),
        pytest.param(mixed(1, 1), id="too little to matter"),
        pytest.param(mixed(0, 0), id="equal ranks"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert straggler.check(gather(run)) is None
