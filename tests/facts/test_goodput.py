"""The wall time of a run is accounted for once, and its productive share is the goodput."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from factories import STARTED_UNIX_S, make_run, map_steps, spend, work_between
from failing import ENDED_UNIX_S, standing, unrecorded, with_stall
from restarted_runs import LAUNCH_S, START_UP_S, STEP_S, Start, restarted
from traceml.facts.gather import gather
from traceml.facts.goodput import Goodput
from traceml.model.failure import Death, Doing
from traceml.model.finding import Kind
from traceml.model.record_layout import StepFlag
from traceml.model.run import Ending
from traceml.model.run_time import RunPart
from traceml.store.blocks import fold
from traceml.store.records import RunRecords


def goodput_of(run: RunRecords) -> Goodput:
    found = gather(run).goodput
    assert found is not None
    return found


def follow_each_other(steps: Any, _: int) -> None:
    """Each step begins where the one before it ended, as in a record."""
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]


def test_the_parts_of_a_plain_run():
    run = make_run(noise=0.0)  # 200 steps of 37 ms, 2 s after its start, and it ends after 62 s
    found = goodput_of(run)
    assert found.wall_s == pytest.approx(62.0)
    assert found.parts_s[RunPart.STEPS] == pytest.approx(7.4)
    assert found.parts_s[RunPart.START_UP] == pytest.approx(2.0)
    assert found.parts_s[RunPart.SHUT_DOWN] == pytest.approx(52.6)
    assert found.share == pytest.approx(7.4 / 62.0)


def test_evaluation_checkpoints_compiling_and_the_time_between_steps_are_told_apart():
    run = make_run(noise=0.0, between_ms=10.0)
    run = work_between(run, "evaluation", 100.0, every=10)
    run = work_between(run, "checkpoint", 50.0, every=20)
    run = map_steps(spend(run, "compile", 8.0), follow_each_other)
    parts = goodput_of(run).parts_s
    assert parts[RunPart.EVALUATION] == pytest.approx(2.0)
    assert parts[RunPart.CHECKPOINTS] == pytest.approx(0.5)
    assert parts[RunPart.BETWEEN] == pytest.approx(2.0)
    assert parts[RunPart.COMPILATION] == pytest.approx(1.6)
    body = run.ranks[0].steps["body_ns"].sum() + run.ranks[0].steps["input_ns"].sum()
    assert parts[RunPart.STEPS] == pytest.approx(body / 1e9 - 1.6)


def test_a_restart_costs_its_time_and_the_steps_done_again():
    found = goodput_of(restarted(Start(45), Start(20, resumed=40, status=0)))
    assert found.parts_s[RunPart.STEPS] == pytest.approx(60 * STEP_S)
    assert found.parts_s[RunPart.REDONE] == pytest.approx(5 * STEP_S)
    assert found.parts_s[RunPart.START_UP] == pytest.approx(START_UP_S)
    assert found.parts_s[RunPart.RESTARTS] == pytest.approx(LAUNCH_S + START_UP_S)
    assert found.parts_s[RunPart.SHUT_DOWN] == pytest.approx(LAUNCH_S)
    assert found.parts_s[RunPart.REST] == pytest.approx(0.0, abs=1e-5)


def test_an_attempt_without_steps_is_a_restart_too():
    found = goodput_of(restarted(Start(0), Start(20, status=0)))
    assert found.parts_s[RunPart.RESTARTS] == pytest.approx(2 * START_UP_S + LAUNCH_S)
    assert found.parts_s[RunPart.START_UP] == 0


def test_time_after_the_last_step_of_a_hang_is_the_hang():
    run = with_stall(
        replace(make_run(ranks=2, noise=0.0), ending=Ending(ENDED_UNIX_S, exit_status=137)),
        standing(0, Doing.COLLECTIVE, call="all_reduce"),
        standing(1, Doing.CODE),
    )
    parts = goodput_of(run).parts_s
    assert parts[RunPart.HANG] == pytest.approx(52.6)
    assert parts[RunPart.SHUT_DOWN] == 0


def test_time_in_which_ranks_wait_for_one_that_died_is_a_hang():
    run = with_stall(
        replace(make_run(ranks=2, noise=0.0), ending=Ending(ENDED_UNIX_S, exit_status=1)),
        standing(0, Doing.COLLECTIVE, call="all_reduce"),
    )
    died = Death(1, 1001, STARTED_UNIX_S + 10, 137)
    found = gather(replace(run, seen=replace(run.seen, deaths=(died,))))
    assert found.stability.failure is not None
    assert found.stability.failure.kind is Kind.KILLED
    assert found.goodput is not None
    assert found.goodput.parts_s[RunPart.HANG] == pytest.approx(52.6)
    assert found.goodput.parts_s[RunPart.SHUT_DOWN] == 0


def test_gpu_hours_count_the_gpus_of_each_attempt():
    run = restarted(Start(40, ranks=4), Start(40, resumed=40, ranks=2, status=0), gpu=True)
    found = goodput_of(run)
    windows = [START_UP_S + 40 * STEP_S + LAUNCH_S] * 2
    assert found.gpu_hours == pytest.approx((4 * windows[0] + 2 * windows[1]) / 3600)
    assert found.productive_gpu_hours == pytest.approx(6 * 40 * STEP_S / 3600)


def test_the_share_and_all_parts_are_of_the_wall_time_whatever_the_number_of_gpus():
    run = restarted(Start(400, ranks=4), Start(10, resumed=400, ranks=2, status=0), gpu=True)
    found = goodput_of(run)
    assert found.productive_gpu_hours / found.gpu_hours > found.share + 0.02
    assert found.share == found.share_of(RunPart.STEPS)
    assert sum(map(found.share_of, RunPart)) == pytest.approx(1.0)


def test_a_run_on_the_cpu_has_no_gpu_hours():
    assert goodput_of(make_run()).gpu_hours is None


def test_steps_that_were_not_recorded_leave_the_share_unknown():
    found = goodput_of(unrecorded(make_run(), 0))
    assert found.share is None
    assert found.parts_s[RunPart.REST] > 50
    assert found.parts_s[RunPart.SHUT_DOWN] == 0


def test_an_aborted_step_is_rest_unless_it_ended_the_attempt():
    def abort(steps: Any, _: int) -> None:
        steps["flags"][[50, 199]] |= np.uint32(StepFlag.ABORTED)

    parts = goodput_of(map_steps(make_run(noise=0.0), abort)).parts_s
    assert parts[RunPart.REST] == pytest.approx(0.037, abs=1e-4)
    assert parts[RunPart.SHUT_DOWN] == pytest.approx(52.6 + 0.037, abs=1e-3)


def test_old_steps_in_blocks_count_as_the_single_ones_did():
    run = work_between(make_run(noise=0.0, between_ms=3.0), "checkpoint", 50.0, every=20)
    run = map_steps(run, follow_each_other)
    (rank,) = run.ranks
    folded = replace(rank, blocks=fold(rank.steps[:150]), steps=rank.steps[150:])
    whole, merged = goodput_of(run), goodput_of(replace(run, ranks=(folded,)))
    for part in RunPart:
        assert merged.parts_s[part] == pytest.approx(whole.parts_s[part], abs=1e-6), part


def test_without_steps_there_is_no_goodput():
    run = make_run()
    assert gather(replace(run, ranks=())).goodput is None


@given(
    starts=st.lists(
        st.builds(
            Start,
            steps=st.integers(0, 9),
            resumed=st.none() | st.integers(0, 30),
            ranks=st.integers(1, 3),
            overlap_s=st.floats(0, 12),
            status=st.sampled_from([0, 1, 137]),
        ),
        min_size=1,
        max_size=5,
    ),
    clock_s=st.floats(-100, 100),
)
def test_the_parts_sum_to_the_wall_time_whatever_happened(starts: list[Start], clock_s: float):
    run = restarted(*starts)
    assert run.ending is not None
    run = replace(run, ending=replace(run.ending, unix_s=run.ending.unix_s + clock_s))
    found = gather(run).goodput
    if found is None:
        assert not any(start.steps for start in starts)
        return
    assert found.wall_s == pytest.approx(sum(found.parts_s.values()))
    assert all(spent_s >= 0 for spent_s in found.parts_s.values())
    latest = max(STARTED_UNIX_S, gather(run).attempts[-1].until_unix_s)
    assert found.wall_s == pytest.approx(latest - STARTED_UNIX_S, abs=1e-3)
    assert found.share is None or 0 <= found.share <= 1 + 1e-9
    assert np.isfinite(list(found.parts_s.values())).all()
