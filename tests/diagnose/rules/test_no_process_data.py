"""No process data is said without samples, and only then."""

from dataclasses import replace

from factories import make_run
from traceml.diagnose.rules import no_process_data
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section


def test_must_fire_without_samples() -> None:
    finding = no_process_data.check(gather(replace(make_run(), samples=())))
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.NO_DATA, Section.PROCESS)


def test_must_stay_silent_with_them() -> None:
    assert no_process_data.check(gather(make_run())) is None
