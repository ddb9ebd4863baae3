"""Evaluations and checkpoints are a remark, and a warning only where they outweigh the training.

One table for both rules: they differ in what they measure, and in what they tell to do.
"""

from importlib import import_module
from typing import Any

import pytest

from factories import make_run, map_steps, work_between
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Severity
from traceml.store.records import RunRecords

FIRES = {
    "checkpoint_heavy": ("checkpoint", "Save"),
    "evaluation_heavy": ("evaluation", "Evaluate"),
}
"""By rule: what lies between the steps, and the verb of the advice."""
SILENT = FIRES


def check(rule: str, run: RunRecords) -> Finding | None:
    module = import_module(f"traceml.diagnose.rules.{rule}")
    found: Finding | None = module.check(gather(run))
    assert found is None or found.kind is module.KIND
    return found


def worked(rule: str, each_ms: float, every: int = 1, **made: Any) -> RunRecords:
    return work_between(make_run(**made), FIRES[rule][0], each_ms, every)


@pytest.mark.parametrize("rule", FIRES)
@pytest.mark.parametrize(
    ("each_ms", "every", "steps", "severity"),
    [
        pytest.param(4.5, 1, 200, Severity.INFO, id="just above the line"),
        pytest.param(350, 10, 200, Severity.INFO, id="just below what training costs"),
        pytest.param(400, 10, 200, Severity.WARNING, id="more than training costs"),
        pytest.param(400, 10, 20, Severity.INFO, id="more than training, in a run of a second"),
    ],
)
def test_must_fire(rule: str, each_ms: float, every: int, steps: int, severity: Severity) -> None:
    finding = check(rule, worked(rule, each_ms, every, steps=steps))
    assert finding is not None
    assert finding.severity is severity


@pytest.mark.parametrize("rule", SILENT)
def test_must_stay_silent(rule: str) -> None:
    assert check(rule, worked(rule, 3.5)) is None, "just below the line"
    assert check(rule, make_run()) is None, "none"
    assert check(rule, make_run(between_ms=50)) is None, "something else between the steps"
    assert check(rule, make_run(steps=0)) is None, "no steps"
    other = next(name for name in FIRES if name != rule)
    assert check(rule, worked(other, 400, 10)) is None, "the other one"


@pytest.mark.parametrize("rule", FIRES)
def test_how_often_and_how_long_is_said(rule: str) -> None:
    finding = check(rule, worked(rule, 400, 10))
    assert finding is not None
    assert "every 10 steps" in finding.claim
    assert "400.0 ms" in finding.claim
    advice = f"{FIRES[rule][1]} 16 times less often, every 160 steps: that leaves 6"
    assert finding.action.startswith(advice)
    assert finding.lost_s_per_step == pytest.approx(0.040)


@pytest.mark.parametrize("rule", FIRES)
def test_a_job_of_several_ranks_is_told_by_its_steps(rule: str) -> None:
    finding = check(rule, worked(rule, 400, 10, ranks=2))
    assert finding is not None
    assert "every 10 steps" in finding.claim
    assert (finding.evidence["times"], finding.evidence["steps_seen"]) == (20, 200)


@pytest.mark.parametrize("rule", FIRES)
def test_what_happened_once_is_no_rhythm(rule: str) -> None:
    """It compiled, say: a warning would ask for less of what will not come again."""
    once = check(rule, worked(rule, 30_000, 150))
    assert once is not None
    assert once.severity is Severity.INFO
    assert "once in 200 steps, for 30.0 s" in once.claim
    assert "less often" not in once.action


@pytest.mark.parametrize("rule", FIRES)
def test_a_first_time_that_took_longer_does_not_stand_for_the_others(rule: str) -> None:
    def first_compiles(steps: Any, rank: int) -> None:
        steps[f"{FIRES[rule][0]}_ns"][9] += 30_000_000_000
        steps["wall_ns"][9] += 30_000_000_000

    finding = check(rule, map_steps(worked(rule, 100, 10), first_compiles))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "every 10 steps or so, for 100.0 ms, at most 30.1 s" in finding.claim
    assert finding.action.startswith(f"{FIRES[rule][1]} ")
