"""No data says why there is nothing to analyse."""

from dataclasses import replace

import pytest

from factories import make_run, map_steps
from traceml.diagnose.rules import no_data
from traceml.facts.gather import gather
from traceml.model.record_layout import StepFlag
from traceml.model.run import Ending


def test_must_fire_with_the_reason_given() -> None:
    ending = Ending(unix_s=0.0, reason_without_steps="The script never imported torch.")
    finding = no_data.check(gather(replace(make_run(steps=0), ending=ending)))
    assert finding is not None
    assert finding.kind is no_data.KIND
    assert finding.claim == "The script never imported torch."


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("The script never imported torch.", "Trace the script that trains"),
        ("No Python interpreter loaded the tracer: python -I …", "traceml.init()"),
        ("The script imported torch, but no optimizer step …", "traceml.trace_step(model)"),
    ],
)
def test_no_steps_are_to_be_marked_where_there_are_none(reason: str, advice: str) -> None:
    ending = Ending(unix_s=0.0, exit_status=0, reason_without_steps=reason)
    finding = no_data.check(gather(replace(make_run(steps=0), ending=ending)))
    assert finding is not None and advice in finding.action


def test_must_fire_without_a_reason_too() -> None:
    finding = no_data.check(gather(replace(make_run(steps=0), ending=None)))
    assert finding is not None
    assert finding.claim == no_data.REASON


def test_aborted_steps_point_at_the_exception() -> None:
    def abort(steps, rank):
        steps["flags"] = StepFlag.ABORTED

    finding = no_data.check(gather(map_steps(make_run(steps=2), abort)))
    assert finding is not None
    assert "exception" in finding.action
    assert finding.evidence["steps_aborted"] == 2


def test_must_stay_silent_after_a_single_step() -> None:
    assert no_data.check(gather(make_run(steps=1))) is None
