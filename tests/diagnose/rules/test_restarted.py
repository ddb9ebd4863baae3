"""Ranks that were started again are told with their reason and cost."""

from dataclasses import replace

import pytest

from factories import make_run
from restarted_runs import Start, restarted
from traceml.diagnose.rules import restarted as rule
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity", "words"),
    [
        pytest.param(
            restarted(Start(45), Start(20, resumed=40, status=0)),
            Severity.WARNING,
            "once: attempt 1 ended after 45 steps (rank 1: ValueError: bad at train.py:7 in main)",
            id="an exception",
        ),
        pytest.param(
            restarted(Start(45, status=137, error=None), Start(20, resumed=40, status=0)),
            Severity.WARNING,
            "(rank 1: killed by SIGKILL)",
            id="a kill",
        ),
        pytest.param(
            restarted(Start(45, status=3, error=None), Start(20, resumed=40, status=0)),
            Severity.WARNING,
            "(rank 1: ended with status 3)",
            id="an exit status",
        ),
        pytest.param(
            restarted(Start(45, status=None, error=None), Start(20, resumed=40, status=0)),
            Severity.WARNING,
            "(rank 1: ended, and nobody saw how)",
            id="an end that nobody saw",
        ),
        pytest.param(
            restarted(Start(0), Start(0), Start(20, status=0)),
            Severity.WARNING,
            "2 times: attempt 2 ended before its first step",
            id="attempts without steps",
        ),
        pytest.param(
            restarted(Start(45), Start(900, resumed=40, status=0)),
            Severity.INFO,
            "with 5 steps done again",
            id="just below the line",
        ),
        pytest.param(
            replace(restarted(Start(45), Start(900, resumed=40)), ending=None),
            Severity.WARNING,
            "with 5 steps done again",
            id="while it goes on",
        ),
        pytest.param(
            restarted(Start(45), Start(20, has_loaded=True, status=0)),
            Severity.WARNING,
            "how many steps were done again is not known",
            id="what was loaded does not say its step",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity, words: str) -> None:
    finding = rule.check(gather(run))
    assert finding is not None
    assert finding.severity is severity
    assert words in finding.claim


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(ranks=2), id="one attempt"),
        pytest.param(
            restarted(
                Start(45, status=0, ranks=1, says_restart=False),
                Start(20, status=0, ranks=1, says_restart=False),
            ),
            id="a second script",
        ),
        pytest.param(restarted(Start(0), Start(0)), id="no step was ever taken"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert rule.check(gather(run)) is None
