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
            "(rank 1: ended with exit status 3)",
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
            "2 times: attempt 1 ended before its first step",
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


def test_the_first_reason_is_told_and_not_what_followed_from_it() -> None:
    """After a first failure ranks often do not find each other any more."""
    run = restarted(Start(40), Start(0, error="DistNetworkError"), Start(20, status=0))
    alone = Start(30, ranks=1)
    lost = replace(alone, error="DistBackendError")
    later = restarted(lost, alone, replace(alone, status=0))
    for each, reason in (
        (run, "attempt 1 ended after 40 steps (rank 1: ValueError"),
        (later, "attempt 2 ended after 30 steps (rank 0: ValueError"),
    ):
        finding = rule.check(gather(each))
        assert finding is not None
        assert f"2 times: {reason}" in finding.claim


@pytest.mark.parametrize(
    ("resumed", "action"),
    [
        pytest.param(20, "Nothing failed; each change", id="nothing was done again"),
        pytest.param(None, "Nothing failed; save checkpoints more often", id="all done again"),
    ],
)
def test_a_machine_that_joined_is_no_failure_to_mend(resumed: int | None, action: str) -> None:
    alone = Start(200, status=143, error=None, ranks=1, says_restart=False)
    run = restarted(alone, Start(200, resumed=resumed and 200, status=0, says_restart=False))
    finding = rule.check(gather(run))
    assert finding is not None
    assert finding.action.startswith(action)
    assert "with 2 ranks instead of 1" in finding.claim


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
