"""Checkpoint is a remark, and a warning only where it outweighs the training."""

import pytest

from factories import make_run, work_between
from traceml.diagnose.rules import checkpoint_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(
            work_between(make_run(), "checkpoint", 4.5), Severity.INFO, id="just above the line"
        ),
        pytest.param(
            work_between(make_run(), "checkpoint", 350, every=10),
            Severity.INFO,
            id="just below what training costs",
        ),
        pytest.param(
            work_between(make_run(), "checkpoint", 400, every=10),
            Severity.WARNING,
            id="more than training costs",
        ),
        pytest.param(
            work_between(make_run(steps=20), "checkpoint", 400, every=10),
            Severity.INFO,
            id="more than training, in a run of a second",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = checkpoint_heavy.check(gather(run))
    assert finding is not None
    assert finding.kind is checkpoint_heavy.KIND
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(work_between(make_run(), "checkpoint", 3.5), id="just below the line"),
        pytest.param(make_run(), id="none"),
        pytest.param(make_run(between_ms=50), id="something else between the steps"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert checkpoint_heavy.check(gather(run)) is None


def test_how_often_and_how_long_is_said() -> None:
    finding = checkpoint_heavy.check(gather(work_between(make_run(), "checkpoint", 400, every=10)))
    assert finding is not None
    assert "every 10 steps" in finding.claim
    assert "400.0 ms" in finding.claim
    assert "less often than every 10 steps" in finding.action


def test_what_happened_once_is_not_to_happen_less_often() -> None:
    finding = checkpoint_heavy.check(
        gather(work_between(make_run(), "checkpoint", 8000, every=200))
    )
    assert finding is not None
    assert "less often" not in finding.action
    assert finding.lost_s_per_step == pytest.approx(0.040)
