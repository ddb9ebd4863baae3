"""Evaluation is a remark, and a warning only where it outweighs the training."""

from typing import Any

import pytest

from factories import make_run, map_steps, work_between
from traceml.diagnose.rules import evaluation_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(
            work_between(make_run(), "evaluation", 4.5), Severity.INFO, id="just above the line"
        ),
        pytest.param(
            work_between(make_run(), "evaluation", 350, every=10),
            Severity.INFO,
            id="just below what training costs",
        ),
        pytest.param(
            work_between(make_run(), "evaluation", 400, every=10),
            Severity.WARNING,
            id="more than training costs",
        ),
        pytest.param(
            work_between(make_run(steps=20), "evaluation", 400, every=10),
            Severity.INFO,
            id="more than training, in a run of a second",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = evaluation_heavy.check(gather(run))
    assert finding is not None
    assert finding.kind is evaluation_heavy.KIND
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(work_between(make_run(), "evaluation", 3.5), id="just below the line"),
        pytest.param(make_run(), id="none"),
        pytest.param(make_run(between_ms=50), id="something else between the steps"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert evaluation_heavy.check(gather(run)) is None


def test_how_often_and_how_long_is_said() -> None:
    finding = evaluation_heavy.check(gather(work_between(make_run(), "evaluation", 400, every=10)))
    assert finding is not None
    assert "every 10 steps" in finding.claim
    assert "400.0 ms" in finding.claim
    assert finding.action.startswith("Evaluate 16 times less often, every 160 steps: that leaves 6")
    assert finding.lost_s_per_step == pytest.approx(0.040)


def test_a_job_of_several_ranks_is_told_by_its_steps() -> None:
    run = work_between(make_run(ranks=2), "evaluation", 400, every=10)
    finding = evaluation_heavy.check(gather(run))
    assert finding is not None
    assert "every 10 steps" in finding.claim
    assert (finding.evidence["times"], finding.evidence["steps_seen"]) == (20, 200)


def test_what_happened_once_is_no_rhythm() -> None:
    """It compiled, say: a warning would ask for less of what will not come again."""
    once = evaluation_heavy.check(gather(work_between(make_run(), "evaluation", 30_000, every=150)))
    assert once is not None
    assert once.severity is Severity.INFO
    assert "once in 200 steps, for 30.0 s" in once.claim
    assert "less often" not in once.action


def test_a_first_time_that_took_longer_does_not_stand_for_the_others() -> None:
    def first_compiles(steps: Any, rank: int) -> None:
        steps["evaluation_ns"][9] += 30_000_000_000
        steps["wall_ns"][9] += 30_000_000_000

    run = map_steps(work_between(make_run(), "evaluation", 100, every=10), first_compiles)
    finding = evaluation_heavy.check(gather(run))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "every 10 steps or so, for 100.0 ms, at most 30.1 s" in finding.claim
    assert finding.action.startswith("Evaluate ")
