"""A compute straggler is a rank whose own forward, backward or optimizer makes the others wait."""

import pytest

from factories import make_late, make_run, make_waiting
from traceml.diagnose.rules import compute_straggler
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.model.phase import COMPUTE, Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("phase", COMPUTE)
def test_must_fire(phase: Phase, ranks: int) -> None:
    run = make_waiting(make_late(make_run(ranks), 1, phase=phase.value))
    finding = compute_straggler.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase, finding.ranks) == (Kind.COMPUTE_STRAGGLER, phase, (1,))
    assert f"the {phase.value} of rank 1" in finding.action


def test_must_fire_on_a_slow_device_and_name_the_largest_phase() -> None:
    run = make_run(4)
    for phase, by_ms in (("forward", 5), ("backward", 10), ("optimizer", 3)):
        run = make_late(run, 0, phase=phase, by_ms=by_ms)
    finding = compute_straggler.check(gather(make_waiting(run)))
    assert finding is not None
    assert (finding.phase, finding.ranks) == (Phase.BACKWARD, (0,))
    assert finding.evidence["excess_ms"] == pytest.approx(18, rel=0.05)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_waiting(make_run(4)), id="equal ranks"),
        pytest.param(make_waiting(make_run(4, 60, noise=0.3)), id="noise"),
        pytest.param(make_waiting(make_late(make_run(4), 1, phase="input")), id="late in input"),
        pytest.param(
            make_waiting(make_late(make_run(4), 1, phase="backward"), "backward"),
            id="late in backward, with the waiting unmeasured in backward",
        ),
        pytest.param(
            make_waiting(make_late(make_run(2), 1, by_ms=3000, every=100)), id="two odd steps"
        ),
        pytest.param(make_run(1), id="one rank"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert compute_straggler.check(gather(run)) is None
