"""A wait for the device costs something only where the device then waits too."""

import pytest

from factories import flag_steps, make_run, spend
from traceml.diagnose.rules import host_sync
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.layout import StepFlag
from traceml.store.records import RunRecords

GPU = make_run(gpu=True, noise=0, rest_ms=0.5)


def dry(run: RunRecords) -> RunRecords:
    return flag_steps(run, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(spend(GPU, "sync", 5), Severity.WARNING, id="the GPU idles meanwhile"),
        pytest.param(
            spend(make_run(gpu=True, noise=0, input_ms=6), "sync", 5, hidden=True),
            Severity.WARNING,
            id="the GPU waits for a batch that could have been fetched meanwhile",
        ),
        pytest.param(spend(GPU, "sync", 12), Severity.CRITICAL, id="for a quarter of the step"),
        pytest.param(
            spend(dry(GPU), "sync", 5, hidden=True), Severity.WARNING, id="its queue is dry"
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = host_sync.check(gather(run))
    assert finding is not None
    assert finding.kind is host_sync.KIND
    assert finding.severity is severity
    assert ".item()" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(spend(GPU, "sync", 30, hidden=True), id="the GPU is busy all the while"),
        pytest.param(spend(GPU, "sync", 3.9), id="just below the line"),
        pytest.param(spend(make_run(), "sync", 12), id="on the host's clock"),
        pytest.param(GPU, id="no wait"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert host_sync.check(gather(run)) is None
