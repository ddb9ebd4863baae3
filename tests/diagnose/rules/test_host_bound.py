"""Host bound: a dry queue, and a host that is busy all the while."""

from dataclasses import replace

import pytest

from factories import flag_steps, make_run, map_steps, spend
from traceml.diagnose.rules import host_bound
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.layout import StepFlag
from traceml.store.records import RunRecords


def launching(
    dry: float = 1.0, utilisation: float | None = 0.9, run: RunRecords | None = None
) -> RunRecords:
    """A run whose queue is dry in this share of its steps."""
    made = make_run(gpu=True, noise=0) if run is None else run
    samples = tuple(
        replace(s, gpus=tuple(replace(gpu, utilisation=utilisation) for gpu in s.gpus))
        for s in made.samples
    )
    flagged = flag_steps(made, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, dry)
    return replace(flagged, samples=samples)


def quick_host(run: RunRecords) -> RunRecords:
    """The host launches its work in half of the GPU's time."""

    def halve(steps, rank):
        steps["body_ns"] //= 2

    return map_steps(run, halve)


TINY = make_run(
    gpu=True, input_ms=0.1, forward_ms=0.5, backward_ms=0.8, optimizer_ms=0.3, rest_ms=0.1
)


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(launching(), Severity.WARNING, id="always dry"),
        pytest.param(launching(dry=0.81), Severity.WARNING, id="just above the line"),
        pytest.param(launching(utilisation=0.3), Severity.CRITICAL, id="the GPU is mostly unused"),
        pytest.param(launching(utilisation=None), Severity.WARNING, id="utilisation unknown"),
        pytest.param(launching(utilisation=0.1, run=TINY), Severity.WARNING, id="a toy"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = host_bound.check(gather(run))
    assert finding is not None
    assert finding.kind is host_bound.KIND
    assert finding.severity is severity
    assert "torch.compile" in finding.action


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(launching(dry=0.79), id="dry now and then"),
        pytest.param(make_run(gpu=True), id="the queue was not watched"),
        pytest.param(quick_host(launching()), id="the host has time to spare"),
        pytest.param(
            launching(run=spend(make_run(gpu=True), "sync", 60)), id="the host waits for the GPU"
        ),
        pytest.param(
            launching(run=make_run(gpu=True, rest_ms=60)), id="the host does something else"
        ),
        pytest.param(make_run(), id="no GPU"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert host_bound.check(gather(run)) is None


@pytest.mark.parametrize("neighbour", [0.0, 0.9], ids=["idle", "busy"])
def test_a_gpu_that_may_be_somebody_elses_is_not_quoted(neighbour: float) -> None:
    run = launching(utilisation=0.3)
    beside = tuple(
        replace(s, gpus=(*s.gpus, replace(s.gpus[0], index=1, uuid="GPU-1", utilisation=neighbour)))
        for s in run.samples
    )
    finding = host_bound.check(gather(replace(run, samples=beside)))
    assert finding is not None
    assert finding.severity is Severity.WARNING
    assert finding.evidence["gpu_utilisation"] is None
    assert finding.lost_s_per_step is None
    assert "in use" not in finding.claim
