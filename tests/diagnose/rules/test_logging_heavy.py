"""Logging is named where it holds the step up."""

import pytest

from factories import make_run, spend
from traceml.diagnose.rules import logging_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(spend(make_run(), "logging", 2.1), Severity.WARNING, id="just above the line"),
        pytest.param(spend(make_run(), "logging", 20), Severity.CRITICAL, id="a third of the step"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = logging_heavy.check(gather(run))
    assert finding is not None
    assert finding.kind is logging_heavy.KIND
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(spend(make_run(), "logging", 1.8), id="just below the line"),
        pytest.param(spend(make_run(), "logging", 10, every=20), id="now and then"),
        pytest.param(make_run(), id="not measured"),
        pytest.param(
            spend(make_run(gpu=True, rest_ms=0.5), "logging", 9, hidden=True),
            id="a busy GPU hides it",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert logging_heavy.check(gather(run)) is None


def test_the_advice_says_what_logging_less_often_would_cost() -> None:
    finding = logging_heavy.check(gather(spend(make_run(noise=0), "logging", 20)))
    assert finding is not None
    assert "20.0 ms per step become 2.0 ms" in finding.action
