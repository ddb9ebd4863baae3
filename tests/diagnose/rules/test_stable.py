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
    assert "goes on" in said(replace(with_loss([3.0, 2.0]), ending=None)).claim


def test_a_status_that_the_script_chose_is_said() -> None:
    assert "exit status 3 by itself" in said(said_goodbye(failed(status=3), 0)).claim


def test_long_pauses_are_said() -> None:
    run = with_stall(make_run(), standing(0, Doing.CODE, moved=True), resumed=True)
    assert "1 long pause without steps, the longest 40.0 s" in said(run).claim
