"""A wait for the device costs something only where the device then waits too."""

import pytest

from factories import count_syncs, flag_steps, make_run, spend
from traceml.diagnose.rules import host_sync
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.record_layout import StepFlag
from traceml.store.records import RunRecords

GPU = make_run(gpu=True, noise=0, rest_ms=0.5)


def dry(run: RunRecords) -> RunRecords:
    return flag_steps(run, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(spend(GPU, "sync", 5), Severity.WARNING, id="the GPU idles meanwhile"),
        pytest.param(spend(GPU, "sync", 12), Severity.CRITICAL, id="for a quarter of the step"),
        pytest.param(spend(dry(GPU), "sync", 5), Severity.WARNING, id="its queue is dry"),
        pytest.param(
            count_syncs(spend(make_run(gpu=True, noise=0, rest_ms=8), "sync", 1), 150),
            Severity.CRITICAL,
            id="many short waits, whose round trips fill the rest",
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
        pytest.param(
            spend(make_run(gpu=True, noise=0, input_ms=6), "sync", 5, hidden=True),
            id="the GPU waits for a batch, which is the input's time",
        ),
        pytest.param(
            spend(dry(GPU), "sync", 30, hidden=True), id="a dry queue, and nothing in the rest"
        ),
        pytest.param(
            count_syncs(spend(make_run(gpu=True, noise=0, rest_ms=8), "sync", 1), 3),
            id="a few reads beside a host that is slow otherwise",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert host_sync.check(gather(run)) is None


def test_it_never_claims_more_than_the_rest_holds() -> None:
    for rest_ms in (0.5, 6, 30):
        run = count_syncs(spend(dry(make_run(gpu=True, rest_ms=rest_ms, noise=0)), "sync", 60), 10)
        finding = host_sync.check(gather(run))
        assert finding is not None
        assert finding.lost_s_per_step == pytest.approx(60e-3)  # the wait lengthened the rest
        hidden = spend(dry(make_run(gpu=True, rest_ms=rest_ms, noise=0)), "sync", 60, hidden=True)
        finding = host_sync.check(gather(hidden))
        assert finding is None or finding.lost_s_per_step <= rest_ms * 1.001e-3


def test_a_loop_that_reads_value_by_value_is_told_how_often_it_does() -> None:
    run = count_syncs(spend(make_run(gpu=True, noise=0, rest_ms=14), "sync", 1), 150)
    finding = host_sync.check(gather(run))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(15e-3)
    assert "15.0 ms of 51.0 ms" in finding.claim
    assert "150 times and 1.0 ms per step" in finding.claim
    assert "read the result once" in finding.action


def test_a_loop_of_reads_that_fits_into_the_rest_costs_no_more_than_the_rest() -> None:
    """A hundred reads in 4 ms are 40 µs each, not the round trip that some take."""
    short = count_syncs(spend(dry(make_run(gpu=True, noise=0, rest_ms=3)), "sync", 1), 100)
    finding = host_sync.check(gather(short))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(4e-3)
    elsewhere = spend(dry(make_run(gpu=True, noise=0, rest_ms=0.1)), "sync", 1, hidden=True)
    finding = host_sync.check(gather(count_syncs(elsewhere, 100)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(10e-3)
