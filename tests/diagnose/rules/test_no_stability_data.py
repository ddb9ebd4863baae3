"""Nothing is said of a run's stability where nothing was trained, or nothing is known."""

from dataclasses import replace

import pytest

from factories import make_run
from failing import failed, report, with_loss
from traceml.diagnose.rules import no_stability_data
from traceml.facts.gather import gather
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(steps=0), id="nothing was trained"),
        pytest.param(replace(make_run(), ending=None), id="neither a loss nor the end"),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    assert no_stability_data.check(gather(run)) is not None


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="the end is known"),
        pytest.param(replace(with_loss([1.0] * 9), ending=None), id="the loss is known"),
        pytest.param(failed(report(), steps=0), id="it failed in its first step"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert no_stability_data.check(gather(run)) is None
