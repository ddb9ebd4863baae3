"""A normal process section says so."""

from factories import make_run
from traceml.diagnose.rules import process_normal
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity


def test_must_fire_as_a_calm_word() -> None:
    finding = process_normal.check(gather(make_run()))
    assert (finding.kind, finding.section) == (Kind.NORMAL, Section.PROCESS)
    assert finding.severity is Severity.INFO
