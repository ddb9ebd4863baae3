"""GPU counters over the time in which steps ran; too few of them say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import count_gpus, make_run, map_steps
from traceml.facts.gather import gather
from traceml.facts.gpu_use import MIN_SAMPLES, NOT_COUNTED, GpuUse, gpu_use, mean_use
from traceml.facts.step_stretches import Stretches
from traceml.model.sample import GpuInterval, GpuSample
from traceml.store.records import RankRecords, RunRecords

RAN = Stretches(np.array([100.0]), np.array([200.0]))


def use_of(*intervals: GpuInterval, ran: Stretches = RAN, step_s: float = 0.1) -> GpuUse:
    sample = GpuSample(0, "GPU-0", "H200", intervals=intervals)
    return gpu_use([sample], np.array([200.0]), ran, step_s)


def intervals(count: int, first_s: float = 100.0, **shares: float | None) -> list[GpuInterval]:
    return [GpuInterval(first_s + at / 4, first_s + (at + 1) / 4, **shares) for at in range(count)]


def test_intervals_are_weighed_by_their_time_in_steps() -> None:
    short = intervals(4, busy_share=1.0, sm_share=0.8)
    long = GpuInterval(110.0, 113.0, busy_share=0.5, sm_share=0.4)
    use = use_of(*short, long)
    assert use.samples == 5
    assert (use.busy_share, use.busy_peak) == (pytest.approx(2.5 / 4), 1.0)
    assert use.sm_share == pytest.approx(2.0 / 4)
    assert use.tensor_share is None


def test_what_was_counted_beside_other_processes_does_not_count() -> None:
    """The counters do not say whose work they saw."""
    seen = tuple(intervals(4, busy_share=0.5)), tuple(intervals(4, 110.0, busy_share=1.0))
    samples = [
        GpuSample(0, "GPU-0", "H200", intervals=each, other_busy_share=others)
        for each, others in zip(seen, (0.01, 0.4), strict=True)
    ]
    use = gpu_use(samples, np.array([101.0, 111.0]), RAN, 0.1)
    assert (use.samples, use.busy_share) == (4, 0.5)
    assert gpu_use(samples[1:], np.array([111.0]), RAN, 0.1) == NOT_COUNTED


def test_utilisation_beside_other_processes_does_not_count_either() -> None:
    samples = [
        GpuSample(0, "GPU-0", "A100", utilisation=1.0, other_busy_share=others)
        for others in (None, 0.0, 0.0, 0.0, 0.3)
    ]
    use = gpu_use(samples, np.arange(101.0, 106.0), RAN, 0.1)
    assert use.samples == 4


@pytest.mark.parametrize(
    ("begin", "end", "counts"),
    [
        pytest.param(99.98, 100.23, True, id="almost inside"),
        pytest.param(99.95, 100.2, False, id="a fifth before the first step"),
        pytest.param(50.0, 50.25, False, id="while it compiled"),
        pytest.param(199.9, 200.2, False, id="over the end"),
        pytest.param(110.0, 110.0, False, id="of no length"),
    ],
)
def test_what_lies_outside_the_steps_does_not_count(begin: float, end: float, counts: bool) -> None:
    inside = intervals(MIN_SAMPLES, 110.0, busy_share=1.0)
    assert use_of(*inside, GpuInterval(begin, end, 1.0)).samples == MIN_SAMPLES + counts


def test_too_few_intervals_are_not_measured() -> None:
    few = use_of(*intervals(MIN_SAMPLES - 1, busy_share=0.5))
    assert few == GpuUse(samples=MIN_SAMPLES - 1)
    assert use_of(*intervals(MIN_SAMPLES, busy_share=0.5)).busy_share == 0.5
    assert use_of() == NOT_COUNTED


def test_intervals_that_cover_less_than_a_step_are_not_measured() -> None:
    """One long step has parts in which the GPU does quite different things."""
    assert use_of(*intervals(8, busy_share=0.5), step_s=2.1).busy_share is None
    assert use_of(*intervals(9, busy_share=0.5), step_s=2.1).busy_share == 0.5


def test_a_counter_that_failed_now_and_then_needs_as_many_intervals() -> None:
    use = use_of(
        *intervals(3, busy_share=0.5, dram_share=0.9), *intervals(3, 120.0, busy_share=0.5)
    )
    assert (use.busy_share, use.dram_share) == (0.5, None)


def test_without_counters_the_sensor_is_over_the_second_before_it() -> None:
    at_s = np.array([100.5, 101.5, 102.5, 103.5, 104.5, 500.0])
    samples = [GpuSample(0, "GPU-0", "A100", utilisation=share) for share in (0, 1, 1, 1, 0.6, 0)]
    assert gpu_use(samples, at_s, RAN, 0.1).busy_share == pytest.approx(0.9)
    assert gpu_use(samples[:3], at_s[:3], RAN, 0.1).busy_share is None


def test_the_mean_over_gpus_is_of_those_that_were_counted() -> None:
    one = GpuUse(samples=5, busy_share=0.5, busy_peak=0.6, sm_share=0.2)
    other = GpuUse(samples=7, busy_share=1.0, busy_peak=1.0)
    found = mean_use([one, other])
    assert (found.samples, found.busy_share, found.busy_peak, found.sm_share) == (
        12,
        0.75,
        1.0,
        0.2,
    )
    assert mean_use([]) == NOT_COUNTED


def on_one_of_eight(run: RunRecords, uuid: str) -> RunRecords:
    """The run on a machine with eight GPUs, of which the others are somebody else's."""
    rank = replace(run.ranks[0], rank=replace(run.ranks[0].rank, device_uuid=uuid))
    samples = tuple(
        replace(
            sample,
            gpus=tuple(
                replace(
                    gpu,
                    index=index,
                    uuid=f"GPU-{index}",
                    intervals=tuple(each._replace(busy_share=index / 10) for each in gpu.intervals),
                )
                for gpu in sample.gpus
                for index in range(8)
            ),
        )
        for sample in run.samples
    )
    return replace(run, ranks=(rank,), samples=samples)


def test_a_rank_that_knows_its_gpu_is_told_from_its_neighbours() -> None:
    run = count_gpus(make_run(gpu=True), busy_share=0.9)
    facts = gather(on_one_of_eight(run, "GPU-5"))
    assert [gpu.index for gpu in facts.gpus_used or ()] == [5]
    assert facts.gpu_use.busy_share == pytest.approx(0.5)
    assert facts.host.gpu_use.busy_share == pytest.approx(0.5)
    assert [gpu.index for gpu in facts.host.by_gpu if gpu.use.samples] == [5]
    assert gather(on_one_of_eight(run, "")).gpus_used is None
    assert gather(on_one_of_eight(run, "GPU-mig-instance")).gpus_used is None


def on_the_next_machine(rank: RankRecords, later_s: int) -> RankRecords:
    """The rank as one of another machine, which takes its steps so much later."""
    later_ns = rank.rank.unix_ns + later_s * 1_000_000_000
    return replace(rank, rank=replace(rank.rank, hostname="the-next", unix_ns=later_ns))


def test_a_rank_on_another_machine_takes_no_steps_on_the_gpus_of_this_one() -> None:
    """Nobody says which GPU is whose, but samples are of one machine, and name its ranks."""
    both = make_run(2, gpu=True)
    here, there = both.ranks[0], on_the_next_machine(both.ranks[1], 100)
    counted = count_gpus(
        count_gpus(make_run(gpu=True), busy_share=0.8), from_s=101, until_s=104, busy_share=0.1
    )
    (gpu,) = gather(replace(counted, ranks=(here, there))).host.by_gpu
    assert gpu.use.busy_share == pytest.approx(0.8)
    nobody = tuple(replace(sample, processes=()) for sample in counted.samples)
    (gpu,) = gather(replace(counted, ranks=(here, there), samples=nobody)).host.by_gpu
    assert gpu.use.busy_share is not None and gpu.use.busy_share < 0.7


def test_two_ranks_on_one_gpu_need_one() -> None:
    run = make_run(2, gpu=True)
    ranks = tuple(replace(r, rank=replace(r.rank, device_uuid="GPU-0")) for r in run.ranks)
    facts = gather(replace(count_gpus(make_run(gpu=True), busy_share=0.9), ranks=ranks))
    assert facts.gpus_needed == 1
    assert [gpu.index for gpu in facts.gpus_used or ()] == [0]


def test_a_gpu_that_was_not_sampled_while_training_has_no_levels() -> None:
    run = count_gpus(replace(make_run(gpu=True), samples=()), from_s=100, until_s=120)
    facts = gather(run)
    (gpu,) = facts.host.by_gpu
    assert gpu.use == NOT_COUNTED
    assert gpu.memory_bytes.mean is gpu.power_w.mean is None
    assert facts.host.gpus == 1
    assert facts.host.cpu_share.mean == 0.5  # of the host that is better than nothing


def test_evaluation_between_the_steps_is_no_idle_gpu() -> None:
    """Every fortieth step is followed by a second in which something else has the GPU."""

    def evaluate(steps, rank):
        steps["evaluation_ns"][40::40] = 1_000_000_000
        steps["wall_ns"] += steps["evaluation_ns"]
        steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]

    run = map_steps(make_run(gpu=True, noise=0), evaluate)
    starts_s = [float(at) / 1e9 for at in run.ranks[0].steps["start_ns"][40::40]]
    counted = replace(run, samples=())
    begin = 0.0
    for start_s in starts_s:
        counted = count_gpus(counted, from_s=begin, until_s=start_s, busy_share=0.8)
        counted = count_gpus(counted, from_s=start_s, until_s=start_s + 1.0, busy_share=0.0)
        begin = start_s + 1.0 + 0.037  # the step that holds the evaluation is left out whole
    use = gather(counted).gpu_use
    assert use.busy_share == pytest.approx(0.8)
    assert use.samples >= 16
