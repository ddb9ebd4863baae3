"""A wait straggler is a rank that does something besides its work."""

import pytest

from factories import make_late, make_run, make_waiting, map_steps
from traceml.diagnose.rules import wait_straggler
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


def spending(field: str, gpu: bool = False) -> RunRecords:
    """Rank 0 spends as long as its delay on one thing that was measured."""

    def change(steps, rank):
        steps[field] = 19_000_000 if rank == 0 else 0

    return map_steps(make_late(make_run(4, gpu=gpu), 0, phase="rest"), change)


@pytest.mark.parametrize(
    ("run", "advice"),
    [
        pytest.param(make_late(make_run(4), 0, phase="rest"), "on rank 0 alone", id="unknown"),
        pytest.param(spending("gc_ns"), "gc.freeze()", id="garbage collection"),
        pytest.param(spending("logging_ns"), "log less often", id="logging"),
        pytest.param(spending("compile_ns"), "dynamic", id="compiling"),
        pytest.param(
            spending("sync_ns"), "on rank 0 alone", id="synchronising, which stays in its phase"
        ),
        pytest.param(
            spending("gc_ns", gpu=True), "on rank 0 alone", id="the host's time, the GPU's clock"
        ),
    ],
)
def test_must_fire(run: RunRecords, advice: str) -> None:
    finding = wait_straggler.check(gather(make_waiting(run)))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.WAIT_STRAGGLER, Phase.RESIDUAL)
    assert finding.ranks == (0,)
    assert advice in finding.action


def test_what_is_inside_the_rest_is_said() -> None:
    finding = wait_straggler.check(gather(make_waiting(spending("gc_ns"))))
    assert finding is not None
    assert "most of it garbage collection" in finding.claim
    assert finding.action.startswith("Rank 0: 19.0 ms of garbage collection")


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(4, rest_ms=30), id="every rank alike"),
        pytest.param(make_late(make_run(4), 0, phase="backward"), id="late in backward"),
        pytest.param(
            make_late(make_run(4, forward_ms=None), 0, phase="rest"),
            id="forward not measured, which may be it",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert wait_straggler.check(gather(make_waiting(run))) is None
