"""A run that mostly starts is told so, if it is long enough to matter."""

from dataclasses import replace

import pytest

from factories import STARTED_UNIX_S, make_run
from traceml.diagnose.rules import slow_start
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.run import Ending
from traceml.store.records import RunRecords


def run_of(start_up_s: float, steps: int, is_over: bool = True) -> RunRecords:
    """A run of so many steps of half a second."""
    run = make_run(steps=steps, forward_ms=463.0, noise=0.0)
    return replace(
        run,
        manifest=replace(run.manifest, started_unix_s=STARTED_UNIX_S - start_up_s),
        ending=Ending(STARTED_UNIX_S + steps * 0.49, exit_status=0) if is_over else None,
    )


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(run_of(60.0, 300), Severity.INFO, id="a third of the run"),
        pytest.param(run_of(200.0, 300), Severity.WARNING, id="longer than the steps"),
        pytest.param(run_of(51.0, 300), Severity.INFO, id="just above the line"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = slow_start.check(gather(run))
    assert finding is not None
    assert finding.severity is severity
    assert finding.lost_s_per_step is None  # it is no step's time


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_of(46.0, 300), id="just below the line"),
        pytest.param(run_of(60.0, 50), id="a short run"),
        pytest.param(run_of(60.0, 300, is_over=False), id="while it goes on"),
        pytest.param(run_of(29.0, 100), id="a short start"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert slow_start.check(gather(run)) is None
