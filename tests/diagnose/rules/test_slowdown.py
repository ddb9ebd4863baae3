"""A lasting slowdown has an onset, a size and a phase."""

from dataclasses import replace

import pytest

from factories import STARTED_UNIX_S, make_run, make_samples, map_steps
from restarted_runs import Start, restarted
from traceml.diagnose.rules import slowdown
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.phase import Phase
from traceml.model.sample import ProcessSample
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(make_run(slowdown_at=100), Severity.WARNING, id="half as long again"),
        pytest.param(
            make_run(slowdown_at=100, slowdown=1.25), Severity.INFO, id="just below the line"
        ),
        pytest.param(
            make_run(slowdown_at=100, slowdown=1.35), Severity.WARNING, id="just above the line"
        ),
        pytest.param(make_run(ranks=4, slowdown_at=150), Severity.WARNING, id="on every rank"),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = slowdown.check(gather(run))
    assert finding is not None
    assert finding.kind is slowdown.KIND
    assert finding.severity is severity
    assert finding.phase is Phase.BACKWARD


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="an even run"),
        pytest.param(make_run(slowdown_at=100, slowdown=1.05), id="a drift of a few percent"),
        pytest.param(make_run(first_step_ms=4000), id="a slow beginning"),
        pytest.param(
            make_run(
                slowdown_at=100,
                input_ms=0.1,
                forward_ms=0.5,
                backward_ms=0.5,
                optimizer_ms=0.3,
                rest_ms=0.1,
            ),
            id="half of a tiny step",
        ),
        pytest.param(make_run(steps=8, slowdown_at=4), id="too few steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert slowdown.check(gather(run)) is None


def test_the_phase_that_grew_is_named() -> None:
    def slower_input(steps, rank):
        steps["input_ns"][100:] += 30_000_000
        steps["wall_ns"][100:] += 30_000_000

    finding = slowdown.check(gather(map_steps(make_run(noise=0), slower_input)))
    assert finding is not None
    assert finding.phase is Phase.INPUT
    assert "From step 101" in finding.claim
    assert "input grew by 30.0 ms, 100% of it" in finding.claim
    assert finding.lost_s_per_step == pytest.approx(0.015)


def with_core_wait(since_s: float, share: float) -> RunRecords:
    """A run half as fast from half-way on, whose thread waits for a core from some second on."""
    run = make_run(steps=200, slowdown_at=100, slowdown=2.0, noise=0)

    def waiting(process: ProcessSample, second: float) -> ProcessSample:
        waited_s = max(0.0, second - since_s) * share
        return replace(process, train_thread_cpu_s=second, train_thread_wait_s=waited_s)

    samples = tuple(
        replace(s, processes=tuple(waiting(p, s.unix_s - STARTED_UNIX_S) for p in s.processes))
        for s in make_samples(1, 60)
    )
    return replace(run, samples=samples)


def onset_s(run: RunRecords) -> float:
    return float(run.ranks[0].steps["start_ns"][99]) * 1e-9


def test_neighbours_that_took_the_cores_are_named() -> None:
    begins_s = onset_s(with_core_wait(0.0, 0.0))
    finding = slowdown.check(gather(with_core_wait(begins_s, 0.5)))
    assert finding is not None
    assert "waited for a CPU core" in finding.claim
    assert "keep other jobs off" in finding.action
    said = finding.evidence
    assert said["core_wait_before_ms"] == pytest.approx(0.0, abs=2.0)
    assert said["core_wait_after_ms"] == pytest.approx(said["after_ms"] / 2, rel=0.1)


@pytest.mark.parametrize(
    "share",
    [pytest.param(0.0, id="no wait"), pytest.param(0.1, id="a little of it")],
)
def test_other_slowdowns_blame_no_neighbour(share: float) -> None:
    begins_s = onset_s(with_core_wait(0.0, 0.0))
    finding = slowdown.check(gather(with_core_wait(begins_s, share)))
    assert finding is not None
    assert "CPU core" not in finding.claim
    assert "longer sequences" in finding.action


def test_steps_that_are_slower_since_the_ranks_were_started_again_say_so() -> None:
    run = restarted(Start(100), Start(100, status=0, factors=(1.5, 1.6)))
    finding = slowdown.check(gather(run))
    assert finding is not None
    assert "From step 101, with which attempt 2 began, on a step takes" in finding.claim
    assert finding.action.startswith("Look at what is different in attempt 2 from the one before")


def test_a_slowdown_within_an_attempt_is_not_laid_to_the_restart() -> None:
    slower = (1.0,) * 60 + (1.6, 1.7) * 70
    finding = slowdown.check(gather(restarted(Start(40), Start(200, status=0, factors=slower))))
    assert finding is not None
    assert "From step 101 on a step takes" in finding.claim
    assert finding.action.startswith("Look at what changed at step 101")


def test_another_number_of_ranks_is_no_slowdown() -> None:
    """With fewer ranks each has more to do."""
    run = restarted(Start(100), Start(100, ranks=1, status=0, factors=(1.8, 2.0)))
    assert slowdown.check(gather(run)) is None
