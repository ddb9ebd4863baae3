"""No memory data is said when nobody's memory was read, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_run
from traceml.diagnose.rules import no_memory_data
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(replace(make_run(), samples=()), id="too short for a sample"),
        pytest.param(replace(make_run(), ranks=(), samples=()), id="no ranks"),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    finding = no_memory_data.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.NO_DATA, Section.STEP_MEMORY)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="the host's memory"),
        pytest.param(replace(make_run(gpu=True), samples=()), id="the GPU's allocator"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert no_memory_data.check(gather(run)) is None
