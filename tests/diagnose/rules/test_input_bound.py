"""Input bound fires on a wait that matters, and says what to do about it."""

from dataclasses import replace

import pytest

from factories import make_run, make_samples
from traceml.diagnose.rules import input_bound
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.model.phase import Phase
from traceml.model.sample import ProcessSample
from traceml.store.records import RunRecords


def run_with_share(share: float, step_ms: float = 100.0) -> RunRecords:
    body = step_ms * (1 - share)
    return make_run(
        input_ms=step_ms * share,
        forward_ms=body * 0.3,
        backward_ms=body * 0.5,
        optimizer_ms=body * 0.1,
        rest_ms=body * 0.1,
        noise=0,
    )


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(run_with_share(0.101), Severity.WARNING, id="just above the line"),
        pytest.param(run_with_share(0.199), Severity.WARNING, id="just below critical"),
        pytest.param(run_with_share(0.201), Severity.CRITICAL, id="just critical"),
        pytest.param(run_with_share(0.86), Severity.CRITICAL, id="nothing but waiting"),
        pytest.param(
            run_with_share(0.3, 2.0), Severity.CRITICAL, id="a large share of a tiny step"
        ),
        pytest.param(make_run(input_ms=50, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(
            make_run(input_ms=50, forward_ms=None), Severity.CRITICAL, id="with forward unknown"
        ),
        pytest.param(
            make_run(input_ms=50, first_step_ms=4000),
            Severity.CRITICAL,
            id="despite a long warm-up",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = input_bound.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.INPUT_BOUND, Phase.INPUT)
    assert finding.severity is severity
    assert finding.ranks == (0,)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_with_share(0.099), id="just below the line"),
        pytest.param(run_with_share(0.15, 5.0), id="a lost time nobody would notice"),
        pytest.param(make_run(input_ms=None), id="input not measured"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert input_bound.check(gather(run)) is None


def test_the_wait_is_the_time_lost() -> None:
    finding = input_bound.check(gather(run_with_share(0.5)))
    assert finding is not None
    assert finding.lost_s_per_step == pytest.approx(0.05)
    assert finding.share == pytest.approx(0.5)
    assert "50%" in finding.claim
    assert "50.0 ms of 100.0 ms" in finding.claim


def advice(run: RunRecords) -> str:
    finding = input_bound.check(gather(run))
    assert finding is not None
    return finding.action


def with_workers(workers: int, cores: float) -> RunRecords:
    run = make_run(input_ms=100, workers=workers)
    process = ProcessSample(0, 1, workers=workers, workers_cpu_cores=cores)
    samples = tuple(replace(s, processes=(process,)) for s in make_samples(1, 3))
    return replace(run, samples=samples)


def test_the_advice_follows_from_the_workers_seen() -> None:
    assert "num_workers=3 " in advice(make_run(input_ms=100, workers=0))
    assert "num_workers=8 " in advice(with_workers(2, 2.0))
    assert "storage" in advice(with_workers(4, 0.4))
    assert "more workers" in advice(make_run(input_ms=100, workers=None))
    assert "cheaper first" in advice(make_run(input_ms=10_000, workers=0))


def test_only_the_ranks_that_wait_are_named() -> None:
    run = make_run(ranks=2, steps=50, input_ms=50)
    calm = run.ranks[1].steps.copy()
    calm["wall_ns"] -= calm["input_ns"]
    calm["input_ns"] = 0
    finding = input_bound.check(
        gather(replace(run, ranks=(run.ranks[0], replace(run.ranks[1], steps=calm))))
    )
    assert finding is not None
    assert finding.ranks == (0,)
