"""Each rank's peaks and trends come from its steps, from its process and from those below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from factories import GIB, make_rank, make_run, make_samples, number_steps
from memory_runs import MIB, STEPS, with_sampled_memory, with_steps_memory
from restarted_runs import Start, restarted
from traceml.facts.gather import gather
from traceml.facts.memory import NO_MEMORY, MemoryOwner, RankMemory, processes_by_rank, rank_memory
from traceml.facts.trend import Growth
from traceml.store.blocks import fold
from traceml.store.joined_ranks import number_attempts, one_per_rank
from traceml.store.records import RunRecords
from traceml.store.step_trace_records import StepTraceRecords


def memory_of(run: RunRecords, rank: int = 0) -> RankMemory:
    return gather(run).ranks[rank].memory


def test_nothing_read_is_no_memory() -> None:
    assert memory_of(replace(make_run(), samples=())) == NO_MEMORY


def test_the_peak_is_the_larger_of_steps_and_samples() -> None:
    run = with_steps_memory("rss_bytes", lambda x, rank: 1500 + 0 * x)
    assert memory_of(run).peak_rss_bytes == 1500 * MIB
    run = with_steps_memory("rss_bytes", lambda x, rank: 500 + 0 * x)
    assert memory_of(run).peak_rss_bytes == GIB  # what a sample saw


@pytest.mark.parametrize(
    ("field", "place"), [("allocated_bytes", MemoryOwner.GPU), ("rss_bytes", MemoryOwner.HOST)]
)
def test_a_leak_is_found_where_it_is(field: str, place: MemoryOwner) -> None:
    memory = memory_of(with_steps_memory(field, lambda x, rank: 500 + 2 * x))
    assert memory.trends[place].growth is Growth.STEADY
    assert memory.trends[place].per_step_bytes == pytest.approx(2 * MIB)


@pytest.mark.parametrize(
    "recorded", [(20, 60, 100, 150), (*range(5, 60, 4), *range(65, 150, 5))], ids=["few", "many"]
)
def test_what_recordings_of_ours_take_is_no_growth_and_a_leak_beside_them_is(
    recorded: tuple[int, ...],
) -> None:

    def with_recordings(per_step: float) -> RunRecords:
        def sizes(x: np.ndarray, rank: int) -> np.ndarray:
            return 500 + per_step * x + sum(40.0 * (x >= step) for step in recorded)

        run = with_steps_memory("rss_bytes", sizes)
        traces = StepTraceRecords(
            run.ranks[0].rank.pid, recorded=tuple((step, 1) for step in recorded)
        )
        return replace(run, step_traces=(traces,))

    assert memory_of(with_recordings(0)).trends[MemoryOwner.HOST].growth is Growth.NONE
    leak = memory_of(with_recordings(2)).trends[MemoryOwner.HOST]
    assert leak.growth is Growth.STEADY
    assert leak.per_step_bytes == pytest.approx(2 * MIB, rel=0.1)


def test_steps_in_which_nothing_was_read_are_passed_over() -> None:
    run = with_steps_memory("rss_bytes", lambda x, rank: np.where(x % 10, np.nan, 500 + 2 * x))
    trend = memory_of(run).trends[MemoryOwner.HOST]
    assert (trend.growth, trend.readings) == (Growth.STEADY, STEPS // 10)
    assert trend.per_step_bytes == pytest.approx(2 * MIB)


def test_without_readings_in_the_steps_the_samples_tell() -> None:
    run = with_sampled_memory(lambda x, rank: 500 + 20 * x, of_workers=False)
    trend = memory_of(run).trends[MemoryOwner.HOST]
    assert trend.growth is Growth.STEADY
    assert trend.per_s_bytes == pytest.approx(20 * MIB)
    assert trend.per_step_bytes == pytest.approx(2 * MIB, rel=0.02)


def test_a_step_of_many_seconds_is_one_reading() -> None:
    run = with_sampled_memory(lambda x, rank: 500 + 20 * x, seconds=30)
    few = run.ranks[0].steps[::30].copy()
    number_steps(few)
    longer = replace(run, ranks=(make_rank(few),))
    assert MemoryOwner.WORKERS in memory_of(run).trends
    assert memory_of(longer).trends[MemoryOwner.WORKERS].readings <= 10


def test_workers_are_told_from_their_trainer() -> None:
    trends = memory_of(with_sampled_memory(lambda x, rank: 500 + 20 * x)).trends
    assert trends[MemoryOwner.WORKERS].growth is Growth.STEADY
    assert trends[MemoryOwner.HOST].growth is Growth.NONE


def test_workers_that_come_and_go_do_not_count_as_growth() -> None:
    run = with_sampled_memory(lambda x, rank: 400 + 0 * x)
    samples = [
        replace(
            sample,
            processes=tuple(
                replace(process, workers=second // 8, workers_rss_bytes=200 * MIB * (second // 8))
                for process in sample.processes
            ),
        )
        for second, sample in enumerate(run.samples)
    ]
    trends = memory_of(replace(run, samples=tuple(samples))).trends
    assert MemoryOwner.WORKERS not in trends or trends[MemoryOwner.WORKERS].growth is Growth.NONE


def test_folded_steps_belong_to_the_trend() -> None:
    """Under a sawtooth, whose lowest point alone a folded block keeps."""
    run = with_steps_memory("rss_bytes", lambda x, rank: 500 + x / 10 + x % 20, steps=4096)
    steps = run.ranks[0].steps
    folded = make_rank(steps[2048:], blocks=fold(steps[:2048]))
    trend = rank_memory(folded, ()).trends[MemoryOwner.HOST]
    assert (trend.growth, trend.readings, trend.first_step) == (Growth.STEADY, 64, 1)
    assert trend.per_step_bytes == pytest.approx(MIB / 10, rel=0.1)


def test_folding_makes_no_growth() -> None:
    run = with_steps_memory("rss_bytes", lambda x, rank: 500 + 50 * (x % 20), steps=4096)
    steps = run.ranks[0].steps
    folded = make_rank(steps[2048:], blocks=fold(steps[:2048]))
    assert rank_memory(folded, ()).trends[MemoryOwner.HOST].growth is Growth.NONE


def test_samples_of_other_ranks_are_theirs() -> None:
    sampled = processes_by_rank(make_samples(2, 20))
    assert {rank: len(seen) for rank, seen in sampled.items()} == {0: 20, 1: 20}
    assert all(process.rank == 1 for _, process in sampled[1])


def with_allocated(run: RunRecords, gib_of: Callable[[int, np.ndarray], np.ndarray]) -> RunRecords:
    """Each attempt's steps hold so much memory on the GPU, by its place and the step in it."""
    attempts: dict[int, int] = {}
    processes = []
    for process in run.processes:
        place = attempts.setdefault(process.rank.rank, 0)
        attempts[process.rank.rank] += 1
        steps = np.array(process.steps)
        steps["allocated_bytes"] = gib_of(place, np.arange(len(steps))) * GIB
        processes.append(replace(process, steps=steps))
    ranks, each = one_per_rank(processes)
    return number_attempts(replace(run, ranks=ranks, processes=each))


def test_memory_that_differs_from_attempt_to_attempt_does_not_grow() -> None:
    """Each has a larger model, or fewer ranks to share it; none leaks."""
    run = restarted(*[Start(60)] * 5, Start(60, status=0), gpu=True)
    found = gather(with_allocated(run, lambda place, at: 10.0 + place + 0 * at))
    for rank in found.ranks:
        assert rank.memory.trends[MemoryOwner.GPU].growth is Growth.NONE
        assert rank.memory.peak_allocated_bytes == 15 * GIB


def test_memory_that_grows_within_an_attempt_grows_though_each_begins_anew() -> None:
    run = restarted(Start(60), Start(200), Start(60, status=0), gpu=True)
    found = gather(with_allocated(run, lambda place, at: 10.0 + 0.01 * at))
    for rank in found.ranks:
        trend = rank.memory.trends[MemoryOwner.GPU]
        assert trend.growth is Growth.STEADY
        assert (trend.first_step, trend.last_step) == (61, 260)
