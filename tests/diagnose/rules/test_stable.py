"""A run that nothing happened to is said to be stable, with what is known."""

from dataclasses import replace

from factories import make_run
from failing import failed, said_goodbye, standing, with_loss, with_stall
from traceml.diagnose.engine import diagnose
from traceml.facts.gather import gather
from traceml.model.failure import Doing
from traceml.model.finding import Finding, Kind, Section
from traceml.store.records import RunRecords


def said(run: RunRecords) -> Finding:
    (finding,) = diagnose(gather(run)).sections[Section.STABILITY]
    assert finding.kind is Kind.STABLE
    return finding


def test_must_fire_when_nothing_happened() -> None:
    assert said(make_run()).claim == "The run came to its end."
    lost = said(with_loss([3.0, 2.0, 1.5]))
    assert lost.claim == "The run came to its end. loss went from 3 to 1.5."
    assert "in progress" in said(replace(with_loss([3.0, 2.0]), ending=None)).claim


def test_the_loss_is_told_in_significant_digits() -> None:
    assert "loss went from 0.3141 to 0.000928." in said(with_loss([0.3141, 0.000928])).claim
    assert "loss went from 0 to 1.234e-6." in said(with_loss([-0.0, 1.2341e-6])).claim


def test_the_loss_of_an_accumulating_loop_is_told_with_its_scale() -> None:
    equal = said(with_loss([3.0, 2.0, 1.5], micro_batches=4))
    assert (
        "loss went from 3 to 1.5, as passed to the first of 4 backward calls of a step."
        in equal.claim
    )
    sizes = [4, 4, 4, 1, 4, 4]
    divided = said(with_loss([6.0 / size for size in sizes], micro_batches=sizes))
    assert "loss went from 6 to 6, multiplied by the micro-batches of each step" in divided.claim


def test_a_status_that_the_script_chose_is_said() -> None:
    assert "exit status 3 by itself" in said(said_goodbye(failed(status=3), 0)).claim


def test_long_pauses_are_said() -> None:
    run = with_stall(make_run(), standing(0, Doing.CODE, moved=True), resumed=True)
    assert "1 long pause without steps, the longest 40.0 s" in said(run).claim
