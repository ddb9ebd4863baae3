"""A handful of steps is too few for any share."""

import pytest

from factories import make_run
from traceml.diagnose.rules import warmup
from traceml.facts.gather import gather
from traceml.model.finding import Severity


@pytest.mark.parametrize(
    "steps", [pytest.param(1, id="one step"), pytest.param(4, id="just below the line")]
)
def test_must_fire(steps: int) -> None:
    finding = warmup.check(gather(make_run(steps=steps)))
    assert finding is not None
    assert (finding.kind, finding.severity) == (warmup.KIND, Severity.INFO)
    assert f"{5 - steps} step" in finding.action


def test_steps_spent_warming_up_do_not_count() -> None:
    finding = warmup.check(gather(make_run(steps=5, first_step_ms=4000)))
    assert finding is not None
    assert "4 steps" in finding.claim
    assert "1 warm-up step" in finding.claim


@pytest.mark.parametrize(
    "steps", [pytest.param(5, id="just enough"), pytest.param(0, id="none, which is no data")]
)
def test_must_stay_silent(steps: int) -> None:
    assert warmup.check(gather(make_run(steps=steps))) is None
