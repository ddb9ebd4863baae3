"""The last steps of every rank: how many, under which numbers, and of which processes."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories import make_run, make_samples
from traceml.facts.step_table import complete_steps, step_table
from traceml.model.failure import NOTHING_SEEN, AgentSaw, Doing, Stall, Standing
from traceml.model.record_layout import StepFlag
from traceml.model.run import Manifest
from traceml.model.sample import StackBurst, StackSample
from traceml.store import recent_steps
from traceml.store.recent_steps import RecentSteps, select_steps
from traceml.store.records import RunRecords
from traceml.store.rings import RingReader

from .conftest import SECOND_NS


@pytest.fixture
def last() -> RecentSteps:
    return RecentSteps(Manifest(run_name="run", started_unix_s=0.0))


def follow(last: RecentSteps, path: Path, is_last: bool = False) -> None:
    with RingReader(path) as ring:
        last.follow(ring, is_last)


def numbers(window: RunRecords | None) -> dict[int, list[int]]:
    """The first and last step of each rank, counted from 1."""
    assert window is not None
    found = {rank.rank.rank: complete_steps(rank).index + 1 for rank in window.ranks}
    return {rank: [int(index[0]), int(index[-1])] for rank, index in found.items()}


def slow_steps(made, count: int, **known: int) -> None:
    """Steps of a second each, so that a window is a hundred of them."""
    for _ in range(count):
        made.step(start_ns=made.ring.steps_written * SECOND_NS, wall_ns=SECOND_NS, **known)


def test_without_steps_or_without_new_ones_there_is_no_window(last, tracer):
    assert last.window() is None
    made = tracer(steps=256)
    slow_steps(made, 3)
    follow(last, made.path)
    assert numbers(last.window()) == {0: [1, 3]}
    follow(last, made.path)
    assert last.window() is None


def test_new_steps_are_appended_and_the_oldest_go(last, tracer):
    made = tracer(steps=256)
    for _ in range(5):
        slow_steps(made, 30)
        follow(last, made.path)
    window = last.window()
    assert numbers(window) == {0: [51, 150]}
    assert window is not None
    assert window.ranks[0].earlier_steps == 50


def test_fast_steps_are_kept_for_ten_seconds(last, tracer):
    made = tracer(steps=2048)
    for number in range(1000):
        made.step(start_ns=number * SECOND_NS // 20, wall_ns=SECOND_NS // 20)
    follow(last, made.path)
    assert numbers(last.window()) == {0: [800, 1000]}


def test_very_fast_steps_are_no_more_than_can_be_looked_at(last, tracer):
    made = tracer(steps=4096)
    made.step(3000)
    follow(last, made.path)
    assert numbers(last.window()) == {0: [3001 - recent_steps.MAX_STEPS, 3000]}


def test_steps_have_the_numbers_of_the_run_though_some_were_aborted(last, tracer):
    """As the summary counts them: an aborted step has no number, before the window or in it."""
    made = tracer(steps=512)
    slow_steps(made, 5)
    slow_steps(made, 1, flags=int(StepFlag.ABORTED))
    slow_steps(made, 140)
    slow_steps(made, 1, flags=int(StepFlag.ABORTED))
    slow_steps(made, 5)
    follow(last, made.path)
    window = last.window()
    assert numbers(window) == {0: [52, 150]}
    assert window is not None
    assert len(window.ranks[0].steps) == 100


def test_ranks_line_up_though_one_of_them_aborted_a_step_long_ago(last, tracer):
    ranks = [tracer(rank, pid=100 + rank, steps=512) for rank in range(2)]
    slow_steps(ranks[1], 1, flags=int(StepFlag.ABORTED))
    for made in ranks:
        slow_steps(made, 200)
        follow(last, made.path)
    window = last.window()
    assert window is not None
    table = step_table(window.ranks)
    assert table is not None
    assert [int(table.index[0]), int(table.index[-1])] == [100, 199]


def test_steps_that_the_ring_overwrote_keep_their_numbers(last, tracer):
    made = tracer(steps=64)
    slow_steps(made, 10)
    follow(last, made.path)
    slow_steps(made, 190)
    follow(last, made.path)
    assert numbers(last.window()) == {0: [1, 200]}


def test_steps_whose_gpu_times_are_not_final_wait(last, tracer):
    made = tracer(steps=64)
    slow_steps(made, 10)
    slow_steps(made, 5, flags=int(StepFlag.GPU_TIMED))
    follow(last, made.path)
    assert numbers(last.window()) == {0: [1, 10]}
    made.ring.mark_final(15)
    follow(last, made.path)
    assert numbers(last.window()) == {0: [1, 15]}


def test_a_rank_that_starts_late_joins_with_its_own_first_step(last, tracer):
    first, second = (tracer(rank, pid=100 + rank, steps=256) for rank in range(2))
    slow_steps(first, 20)
    follow(last, first.path)
    assert numbers(last.window()) == {0: [1, 20]}
    slow_steps(second, 15)
    follow(last, second.path)
    assert numbers(last.window()) == {0: [1, 20], 1: [1, 15]}


def test_a_rank_started_again_counts_on_and_its_window_is_its_own(last, tracer):
    """Its first steps are slow again: they are a beginning, not a change."""
    first = tracer(pid=100, steps=256)
    slow_steps(first, 30)
    follow(last, first.path, is_last=True)
    assert last.window() is None
    second = tracer(pid=200, steps=256, unix_s=1_800_000_060.0)
    slow_steps(second, 12)
    follow(last, second.path)
    window = last.window()
    assert numbers(window) == {0: [31, 42]}
    assert window is not None
    assert window.ranks[0].earlier_steps == 0


@pytest.mark.parametrize(
    "former", [(30, 29), (29, 30), (30, 0)], ids=["less far", "further", "alone before"]
)
def test_a_new_attempt_begins_with_the_same_number_on_every_rank(last, tracer, former):
    for rank, steps in enumerate(former):
        if steps:
            made = tracer(rank=rank, pid=100 + rank, steps=256)
            slow_steps(made, steps)
            follow(last, made.path, is_last=rank == 1)
    second = [
        tracer(rank=rank, pid=200 + rank, steps=256, unix_s=1_800_000_060.0) for rank in (0, 1)
    ]
    for made in second:
        slow_steps(made, 12)
        follow(last, made.path)
    last.window()
    follow(last, second[0].path.with_name("rank-0-100.ring"), is_last=True)  # it is let go late
    slow_steps(second[0], 1)
    follow(last, second[0].path)
    assert numbers(last.window()) == {0: [31, 43], 1: [31, 42]}


def test_a_rank_that_has_ended_holds_up_no_other(last, tracer):
    ranks = [tracer(rank, pid=100 + rank, steps=512) for rank in range(2)]
    for made in ranks:
        slow_steps(made, 30)
    follow(last, ranks[1].path, is_last=True)
    slow_steps(ranks[0], 300)
    follow(last, ranks[0].path)
    assert numbers(last.window()) == {0: [231, 330]}


def test_processes_side_by_side_are_told_apart(last, tracer):
    for pid in (100, 200):
        made = tracer(rank=0, pid=pid, steps=256)
        slow_steps(made, 10)
        follow(last, made.path)
    assert numbers(last.window()) == {0: [1, 10], 1: [1, 10]}


def test_a_process_far_behind_the_others_is_left_out(last, tracer):
    for pid, count in ((100, 400), (200, 20)):
        made = tracer(rank=0, pid=pid, steps=512)
        slow_steps(made, count)
        follow(last, made.path)
    assert numbers(last.window()) == {0: [301, 400]}


def test_the_last_samples_come_along_under_the_ranks_final_numbers(last, tracer):
    for pid in (1000, 1001):
        made = tracer(rank=0, pid=pid, steps=256)
        slow_steps(made, 10)
        follow(last, made.path)
    for sample in make_samples(ranks=2, seconds=100):
        claimed = tuple(replace(process, rank=0) for process in sample.processes)
        last.add_sample(replace(sample, processes=claimed))
    window = last.window()
    assert window is not None
    assert len(window.samples) == recent_steps.MAX_SAMPLES
    assert [process.rank for process in window.samples[-1].processes] == [0, 1]


def test_of_long_bursts_of_stack_samples_the_last_are_kept(last, tracer, monkeypatch):
    monkeypatch.setattr(recent_steps, "MAX_STACK_SAMPLES", 5)
    made = tracer(rank=0, pid=1000, steps=256)
    slow_steps(made, 10)
    follow(last, made.path)
    for number in range(4):
        samples = (StackSample(float(number), 1, "forward"),) * (9 if number == 1 else 2)
        last.add_stacks(StackBurst(number, 1000, "py-spy", 2, 0, samples))
    last.add_stacks(StackBurst(9, 1000, "py-spy", 2, 0, samples, is_of_worker=True))
    window = last.window()
    assert window is not None
    assert [burst.rank for burst in window.stack_bursts] == [2, 3]


def test_what_goes_wrong_is_news_for_a_few_windows_though_no_step_comes(last, tracer):
    made = tracer(pid=100, steps=256)
    slow_steps(made, 10)
    follow(last, made.path)
    assert last.window().seen == NOTHING_SEEN
    seen = AgentSaw(stalls=(Stall(1.0, 2.0, 0.1, (Standing(5, 100, Doing.CODE, 10),)),))
    last.add_failures(seen)
    expected = recent_steps.NEWS_LOOKS
    windows = [last.window() for _ in range(expected)]
    assert [window.seen.stalls[0].ranks[0].rank for window in windows] == [0] * expected
    last.add_failures(seen)
    assert last.window() is None


def test_what_ranks_say_comes_along_as_far_as_it_is_of_this_start(last, tracer):
    made = tracer(pid=100, steps=256, messages=64, unix_s=1_800_000_000.0)
    slow_steps(made, 10)
    said = {"kind": "failure", "rank": 0, "error": "ValueError", "message": "bad", "pid": 100}
    made.say({**said, "unix_s": 1_700_000_000.0, "message": "of an earlier start"})
    made.say({**said, "unix_s": 1_800_000_010.0})
    made.metrics(10, loss=0.5, lr=0.1)
    with RingReader(made.path) as ring:
        last.follow(ring, is_last=False)
        last.add_messages([message for _, message in ring.messages_from(0)])
    window = last.window()
    assert window is not None
    assert [report.message for report in window.reports] == ["bad"]
    assert [(metric.name, metric.last) for metric in window.metrics] == [("loss", 0.5)]


def test_a_part_of_a_run_keeps_its_numbers():
    run = make_run(ranks=2, steps=50)
    run.ranks[1].steps["flags"][3] = StepFlag.ABORTED
    part = select_steps(run, np.array([10, 11, 20]))
    for rank in part.ranks:
        assert complete_steps(rank).index.tolist() == [10, 11, 20]
        assert rank.earlier_steps == 10


@pytest.mark.parametrize("kind", ["metrics", "losses", "params"])
def test_names_that_grow_without_end_do_not_grow_the_agent(kind):
    """Twice as many names again take hardly any more memory."""
    recent = RecentSteps(Manifest("run", 0.0))
    name = {"metrics": "value", "losses": "loss", "params": "param"}[kind]
    said = "params" if kind == "params" else "metrics"

    def log(first: int, end: int) -> None:
        for start in range(first, end, 50):
            values = {f"{name} {n}": float(n) for n in range(start, start + 50)}
            message = {"kind": said, "step": start, "values": values}
            recent.add_messages([json.dumps(message).encode()])
            if start % 5000 == 0:  # as a look at the window does
                recent._metrics()

    tracemalloc.start()
    try:
        log(0, 20_000)
        first = tracemalloc.get_traced_memory()[0]
        log(20_000, 60_000)
        assert tracemalloc.get_traced_memory()[0] < 1.1 * first + 100_000
    finally:
        tracemalloc.stop()
