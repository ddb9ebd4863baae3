"""Which findings of a run in progress are new."""

from __future__ import annotations

import pytest

from traceml.summaries.live_record import LiveIssue, ToldFindings

HANG = LiveIssue(kind="HANG", severity="crit", section="stability")
SLOW = LiveIssue(kind="INPUT_BOUND", severity="warn", section="step_time")
SLOWER = LiveIssue(kind="INPUT_BOUND", severity="crit", section="step_time")


def told_over_time(told: ToldFindings, *states: tuple[LiveIssue, ...]) -> list[list[str | None]]:
    """Evaluates one state per second; the severities that were told in each."""
    found = []
    for now_s, findings in enumerate(states):
        new = told.find_new(findings, now_s)
        for issue in new:
            told.add(issue.kind or "", now_s, issue.severity)
        found.append([issue.severity for issue in new])
    return found


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param([(SLOW,), (SLOW,)], [["warn"], []], id="holds"),
        pytest.param([(SLOW,), (SLOW, HANG)], [["warn"], ["crit"]], id="another kind"),
        pytest.param([(SLOW,), (SLOWER,)], [["warn"], ["crit"]], id="more severe"),
        pytest.param([(SLOWER,), (SLOW,)], [["crit"], []], id="less severe"),
        pytest.param([(SLOW,), (SLOWER, SLOW)], [["warn"], ["crit"]], id="more severe on one rank"),
        pytest.param([(SLOW,), (), (SLOW,)], [["warn"], [], ["warn"]], id="comes back"),
    ],
)
def test_a_finding_is_new_once_while_it_holds(states, expected):
    assert told_over_time(ToldFindings(), *states) == expected


def test_one_that_comes_back_is_new_after_a_while_although_it_came_back_earlier():
    told = ToldFindings(again_after_s=4)
    states = [(HANG,), (), (HANG,), (HANG,), (HANG,), (HANG,)]
    assert told_over_time(told, *states) == [["crit"], [], [], [], ["crit"], []]


def test_what_was_told_before_us_is_not_new():
    told = ToldFindings(again_after_s=4)
    told.add("HANG", now_s=0)
    assert told.find_new([HANG], now_s=100) == []
