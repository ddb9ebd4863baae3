"""A job takes as long as its slowest rank, and is known by whether its ranks wait."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_late, make_run, make_waiting, map_steps, stall
from traceml.facts.gather import gather
from traceml.facts.job import Job
from traceml.model.phase import Phase
from traceml.model.record_layout import GPU_FIELDS, NOT_MEASURED
from traceml.store.records import RunRecords


def job_of(run: RunRecords) -> Job:
    job = gather(run).job
    assert job is not None
    return job


@pytest.mark.parametrize(
    ("run", "waits", "hidden"),
    [
        pytest.param(make_waiting(make_late(make_run(2), 1)), True, False, id="measured waiting"),
        pytest.param(
            make_waiting(make_late(make_run(2), 1), "backward"), True, True, id="hidden waiting"
        ),
        pytest.param(make_late(make_run(2), 1), False, False, id="each rank for itself"),
        pytest.param(
            make_run(1), True, False, id="one rank waits for nobody, and alone is the job"
        ),
    ],
)
def test_ranks_that_wait_for_each_other_do_not_drift_apart(
    run: RunRecords, waits: bool, hidden: bool
) -> None:
    job = job_of(run)
    assert (job.waits, job.wait_is_hidden) == (waits, hidden)


def test_own_work_leaves_out_where_the_waiting_hides() -> None:
    late = make_late(make_run(2, noise=0), 1, phase="input")
    for where, expected in (("communication", [37, 57]), ("backward", [17, 37])):
        own_s = job_of(make_waiting(late, where)).own_s()
        assert own_s.mean(axis=1) * 1e3 == pytest.approx(expected, rel=0.01)


def test_removing_nothing_saves_nothing() -> None:
    job = job_of(make_waiting(make_run(3)))
    assert job.saved_s(np.zeros((3, 200))) == 0
    assert job.saved_s(np.full((3, 200), np.nan)) == 0
    assert job.saved_s(np.full((3, 200), -1.0)) == 0


def test_only_the_slowest_ranks_time_counts_where_ranks_wait() -> None:
    late = make_late(make_run(3, noise=0), 1, phase="input", by_ms=20)
    late = make_late(late, 2, phase="forward", by_ms=15)
    waits, alone = job_of(make_waiting(late)), job_of(late)
    for job, saved_s in ((waits, 0.005 + 0.001), (alone, (20 + 3) / 3e3)):
        assert job.saved_s(job.table.phase(Phase.INPUT)) == pytest.approx(saved_s, rel=0.01)


def test_no_more_than_all_of_a_step_can_be_saved() -> None:
    job = job_of(make_run(noise=0))
    assert job.saved_s(job.own_s() * 10) == pytest.approx(0.037)


def test_what_the_last_rank_communicates_is_the_transfer() -> None:
    job = job_of(make_waiting(make_late(make_run(2, communication_ms=3, noise=0), 1)))
    assert job.transfer_s() == pytest.approx(0.003)


def test_ranks_timed_in_different_steps_are_compared_by_their_means() -> None:
    run = make_late(make_run(2, 400, gpu=True), 1, by_ms=20)

    def now_and_then(steps, rank):
        for name in steps.dtype.names:
            if name.startswith("gpu_"):
                steps[name][np.arange(len(steps)) % 7 != rank] = -1

    job = job_of(map_steps(make_waiting(run), now_and_then))
    assert job.table.clock == "gpu"
    assert job.saved_s(job.table.phase(Phase.FORWARD)) == pytest.approx(0.030, rel=0.02)


def test_steps_that_the_gpu_timed_have_their_weight_only_on_its_clock() -> None:
    """Of 200 steps every fourth is timed on rank 1 and all on rank 0; one of them is long."""
    run = stall(make_run(ranks=2, steps=200, gpu=True, noise=0), "rest", 0.4, 53)

    def change(steps: Any, rank: int) -> None:
        steps["checkpoint_ns"][2::10] = 10_000_000  # in steps that are not timed on the GPU
        steps["wall_ns"] += np.maximum(steps["checkpoint_ns"], 0)
        for name in GPU_FIELDS if rank else ():
            steps[name][np.arange(len(steps)) % 4 != 0] = NOT_MEASURED

    facts = gather(map_steps(run, change))
    job = facts.job
    assert job is not None and job.table.clock == "gpu" and job.table.weights is not None
    both = replace(job, waits=True)
    saved_s = both.saved_s(job.table.field("checkpoint_ns"), both.own_wall_s())
    assert saved_s == pytest.approx(0.001, rel=0.01)
    step_s = both.table.step()
    assert both.saved_s(step_s, step_s) == pytest.approx(facts.mean.step_s, rel=0.01)
