"""A process that gets no core, or whose memory is swapped, is starved."""

from dataclasses import replace

import pytest

from factories import flag_steps, make_run
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import cpu_starved
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity
from traceml.model.record_layout import StepFlag
from traceml.store.records import RunRecords


def on_host(run: RunRecords, **sensors: float) -> RunRecords:
    samples = tuple(replace(s, host=replace(s.host, **sensors)) for s in run.samples)
    return replace(run, samples=samples)


def waiting(run: RunRecords, *shares: float | None) -> RunRecords:
    """Each rank's main thread waited so much for a core."""
    samples = tuple(
        replace(
            s,
            processes=tuple(
                replace(process, runqueue_share=share)
                for process, share in zip(s.processes, shares, strict=True)
            ),
        )
        for s in run.samples
    )
    return replace(run, samples=samples)


GPU = make_run(gpu=True, rest_ms=0.5)


@pytest.mark.parametrize(
    ("run", "ranks"),
    [
        pytest.param(on_host(make_run(), cpu_throttled_share=0.11), (), id="by a quota"),
        pytest.param(waiting(make_run(ranks=2), 0.05, 0.21), (1,), id="one rank waits for a core"),
        pytest.param(waiting(make_run(ranks=2), 0.5, 0.4), (0, 1), id="both ranks do"),
        pytest.param(
            on_host(make_run(), swap_in_bytes_per_s=1e7, swap_out_bytes_per_s=5e6), (), id="swap"
        ),
        pytest.param(
            waiting(flag_steps(GPU, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0), 0.5),
            (0,),
            id="and so is the GPU",
        ),
    ],
)
def test_must_fire(run: RunRecords, ranks: tuple[int, ...]) -> None:
    finding = cpu_starved.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (cpu_starved.KIND, Severity.WARNING)
    assert finding.ranks == ranks


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="not measured"),
        pytest.param(on_host(make_run(), cpu_throttled_share=0.09), id="a little by a quota"),
        pytest.param(waiting(make_run(), 0.19), id="a shared machine"),
        pytest.param(
            on_host(make_run(), swap_in_bytes_per_s=1e5, swap_out_bytes_per_s=0.0), id="few pages"
        ),
        pytest.param(waiting(GPU, 0.5), id="a busy GPU hides it"),
        pytest.param(waiting(make_run(sampled_s=2), 0.5), id="a second's bad luck"),
        pytest.param(waiting(make_run(steps=0), 0.5), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert cpu_starved.check(gather(run)) is None


def test_more_than_half_of_the_time_is_critical_and_comes_before_what_it_explains() -> None:
    """A batch that is made in the training process takes longer for the same reason."""
    run = waiting(make_run(input_ms=40, rest_ms=10, workers=0), 0.85)
    first, *others = diagnose(gather(run)).sections[Section.STEP_TIME]
    assert (first.kind, first.severity) == (cpu_starved.KIND, Severity.CRITICAL)
    assert first.part_of is None
    (waits,) = [finding for finding in others if finding.kind is Kind.INPUT_BOUND]
    assert waits.part_of is cpu_starved.KIND
    half = diagnose(gather(waiting(make_run(input_ms=40, rest_ms=10, workers=0), 0.45)))
    assert half.sections[Section.STEP_TIME][0].kind is Kind.INPUT_BOUND


def test_ranks_that_get_no_core_explain_that_their_collectives_take_long() -> None:
    first, *others = diagnose(
        gather(waiting(make_run(ranks=2, communication_ms=40, noise=0), 0.6, 0.6))
    ).sections[Section.STEP_TIME]
    assert (first.kind, first.severity) == (cpu_starved.KIND, Severity.CRITICAL)
    (transfer,) = [finding for finding in others if finding.kind is Kind.COMM_BOUND]
    assert transfer.part_of is cpu_starved.KIND


def test_what_was_asked_for_stands_against_what_there_is() -> None:
    run = on_host(waiting(make_run(ranks=2, workers=4, noise=0), 0.3, 0.5), cores=4.0)
    finding = cpu_starved.check(gather(run))
    assert finding is not None
    assert "rank 1" in finding.claim
    assert "2 ranks with 4 workers each on 4 cores got 2.0 cores' worth" in finding.action
    assert "fewer workers than 4" in finding.action
    assert finding.lost_s_per_step == pytest.approx(0.5 * 0.037)
