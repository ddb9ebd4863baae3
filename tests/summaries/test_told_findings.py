"""Which findings of a run in progress are new."""

from __future__ import annotations

import pytest

from traceml.summaries.live_record import AGAIN_AFTER_RESTART_S, LiveIssue, ToldFindings

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


def restored(*severities: str) -> ToldFindings:
    told = ToldFindings()
    told.restore({"INPUT_BOUND": severities}, now_s=0)
    return told


def test_what_a_process_before_us_told_and_we_find_only_later_is_not_new():
    assert told_over_time(restored("warn"), (), (), (SLOW,), (), (SLOW,)) == [[]] * 5


def test_what_became_more_severe_than_a_process_before_us_told_is_new_and_then_ours():
    states = [(SLOW,), (SLOWER,), (), (SLOWER,)]
    assert told_over_time(restored("warn"), *states) == [[], ["crit"], [], ["crit"]]
    assert told_over_time(restored("warn", "crit"), *states) == [[]] * 4


def test_what_comes_back_long_after_a_restart_is_new():
    told = restored("warn")
    assert told.find_new((), 1.0) == []
    assert told.was_told_before_us("INPUT_BOUND", "warn", AGAIN_AFTER_RESTART_S - 1)
    assert not told.was_told_before_us("INPUT_BOUND", "crit", 1.0)
    assert not told.was_told_before_us("HANG", "crit", 1.0)
    assert not told.was_told_before_us("INPUT_BOUND", "warn", AGAIN_AFTER_RESTART_S)
    assert told.find_new([SLOW], AGAIN_AFTER_RESTART_S) == [SLOW]
