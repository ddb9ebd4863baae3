"""Wait heavy fires on time nobody can explain, and not on the loop's own overhead."""

import pytest

from factories import make_rank, make_run, spend
from traceml.diagnose.rules import wait_heavy
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Severity
from traceml.model.phase import Phase
from traceml.model.rank import Region
from traceml.store.records import RunRecords

TINY = {"input_ms": 0.1, "forward_ms": 0.5, "backward_ms": 0.8, "optimizer_ms": 0.3, "noise": 0}


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(rest_ms=4.1), Severity.WARNING, id="just above the line"),
        pytest.param(make_run(rest_ms=9.3), Severity.CRITICAL, id="just critical"),
        pytest.param(make_run(rest_ms=40, gpu=True), Severity.CRITICAL, id="on the GPU's clock"),
        pytest.param(make_run(rest_ms=2.5, **TINY), Severity.WARNING, id="much of a short step"),
        pytest.param(
            make_run(rest_ms=40, input_ms=None),
            Severity.WARNING,
            id="a loop that may make its batches itself",
        ),
        pytest.param(
            spend(make_run(rest_ms=40, input_ms=None), "gc", 40),
            Severity.CRITICAL,
            id="without fetches, for a known reason",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = wait_heavy.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.phase) == (Kind.WAIT_HEAVY, Phase.RESIDUAL)
    assert finding.severity is severity


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(rest_ms=3.9), id="just below the line"),
        pytest.param(make_run(rest_ms=0.9, **TINY), id="the loop's own overhead in a tiny step"),
        pytest.param(
            make_run(rest_ms=8, input_ms=None), id="a little, in a loop that makes its batches"
        ),
        pytest.param(make_run(h2d_ms=40), id="copies explain it"),
        pytest.param(make_run(communication_ms=40), id="communication explains it"),
        pytest.param(make_run(rest_ms=40, forward_ms=None), id="forward not measured"),
        pytest.param(make_run(rest_ms=40, backward_ms=None), id="backward not measured"),
        pytest.param(make_run(rest_ms=40, optimizer_ms=None), id="updates by hand"),
        pytest.param(make_run(input_ms=50), id="input explains it"),
        pytest.param(make_run(between_ms=50), id="it lies between the steps"),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert wait_heavy.check(gather(run)) is None


def test_a_named_region_is_looked_at_first() -> None:
    steps = make_run(rest_ms=40, noise=0).ranks[0].steps
    rank = make_rank(steps, regions=[Region("metrics", 200, 7.2, 0.1, None)])
    run = make_run()
    finding = wait_heavy.check(gather(type(run)(run.manifest, (rank,))))
    assert finding is not None
    assert "'metrics' is 90% of it, 10% is unexplained" in finding.claim
    assert "'metrics'" in finding.action
    assert "36.0 ms" in finding.action


def found(run: RunRecords) -> Finding:
    finding = wait_heavy.check(gather(run))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("run", "words", "action"),
    [
        pytest.param(
            spend(make_run(noise=0), "gc", 9), "garbage collection is 90%", "gc.freeze", id="gc"
        ),
        pytest.param(
            spend(make_run(noise=0), "logging", 9), "logging is 90%", "less often", id="logging"
        ),
        pytest.param(
            spend(make_run(noise=0), "compile", 9), "compiling is 90%", "dynamic", id="compiling"
        ),
        pytest.param(
            spend(make_run(gpu=True, noise=0), "sync", 9),
            "waiting for the device is 90%",
            ".item()",
            id="waiting for the device",
        ),
    ],
)
def test_the_largest_known_part_is_named_and_treated(
    run: RunRecords, words: str, action: str
) -> None:
    finding = found(run)
    assert words in finding.claim
    assert "10% is unexplained" in finding.claim
    assert action in finding.action


def test_of_several_parts_the_largest_is_named() -> None:
    run = spend(spend(make_run(noise=0), "gc", 4), "logging", 15)
    assert "logging is 75% of it, 5.0% is unexplained" in found(run).claim


def test_what_nothing_explains_is_said_to_be_unexplained() -> None:
    assert "100% of it is unexplained" in found(make_run(rest_ms=40)).claim
    small = found(spend(make_run(rest_ms=40, noise=0), "gc", 10))
    assert "80% of it is unexplained" in small.claim
    assert "gc.freeze" not in small.action


def test_a_loop_without_fetches_says_that_making_batches_is_in_it() -> None:
    finding = found(make_run(rest_ms=40, input_ms=None))
    assert "includes making batches" in finding.claim
    assert "DataLoader" in finding.action


def test_on_the_gpus_clock_it_is_the_gpu_that_idles() -> None:
    assert "GPU stood idle" in found(make_run(rest_ms=40, gpu=True)).claim
