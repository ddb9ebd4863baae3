"""Records become facts: aligned, after warm-up, and never a guess for what was not measured."""

from dataclasses import replace

import numpy as np
import pytest

from factories import (
    GIB,
    make_rank,
    make_run,
    map_steps,
    number_steps,
    place_ranks,
    with_settings,
)
from layer_runs import layer_records
from traceml.facts.gather import gather
from traceml.model import record_layout
from traceml.model.phase import Phase
from traceml.model.rank import Region
from traceml.model.record_layout import StepFlag
from traceml.store.blocks import fold
from traceml.store.layer_records import LayerNumbers
from traceml.store.records import RunRecords


def test_the_parts_of_a_step_add_up() -> None:
    times = gather(make_run(h2d_ms=2, rest_ms=3, between_ms=4)).mean
    assert times.step_s == pytest.approx(times.input_s + times.body_s)
    assert times.compute_s == pytest.approx(times.forward_s + times.backward_s + times.optimizer_s)
    assert times.residual_s == pytest.approx(times.body_s - times.h2d_s - times.compute_s)
    assert times.residual_s == pytest.approx(0.003, rel=0.01)
    assert times.wait_s == pytest.approx(times.body_s - times.compute_s)
    assert times.between_s == pytest.approx(0.004, rel=0.01)
    assert times.wall_s == pytest.approx(times.step_s + times.between_s)


def test_one_long_first_step_changes_no_share() -> None:
    plain, stretched = gather(make_run()), gather(make_run(first_step_ms=4000))
    assert stretched.window.warmup_steps == 1
    assert (stretched.window.first_step, stretched.window.last_step) == (2, 200)
    for phase in (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD):
        expected = pytest.approx(plain.mean_share(phase), rel=0.01)
        assert stretched.mean_share(phase) == expected


def test_a_slowdown_in_the_second_half_changes_the_shares_and_is_named() -> None:
    def slow_input(steps, rank):
        steps["input_ns"][100:] += 30_000_000
        steps["wall_ns"][100:] += 30_000_000

    facts = gather(map_steps(make_run(), slow_input))
    assert facts.mean_share(Phase.INPUT) == pytest.approx(16 / 52, rel=0.02)
    assert facts.slowdown is not None
    assert facts.slowdown.onset_step == 101
    assert facts.window.warmup_steps == 0


def host_runs_ahead(steps, rank):
    """The GPU needs 37 ms for every step, and is timed in few; the host queues 33 in advance."""
    steps["body_ns"][:33] = 5_000_000
    steps["wall_ns"][:33] = 6_000_000
    untimed = np.arange(len(steps)) % 8 != 5
    for name in record_layout.GPU_FIELDS:
        steps[name][untimed] = record_layout.NOT_MEASURED


def test_a_host_that_runs_ahead_of_the_gpu_is_no_slowdown() -> None:
    def slower_on_the_gpu(steps, rank):
        host_runs_ahead(steps, rank)
        for name in ("body_ns", "wall_ns", "gpu_body_ns"):
            steps[name][100:] += 30_000_000 * (steps[name][100:] >= 0)

    ahead = gather(map_steps(make_run(gpu=True), host_runs_ahead))
    assert ahead.clock == "gpu"
    assert ahead.slowdown is None
    assert ahead.mean.p50_s == pytest.approx(0.037, rel=0.03)
    assert ahead.mean.p95_s == pytest.approx(0.037, rel=0.1)
    slower = gather(map_steps(make_run(gpu=True), slower_on_the_gpu)).slowdown
    assert slower is not None and slower.onset_step == 102  # the first that was timed after it


def test_what_was_never_measured_stays_unknown() -> None:
    times = gather(make_run(input_ms=None, optimizer_ms=None)).mean
    assert times.input_s is None
    assert times.h2d_s is None
    assert times.communication_s is None
    assert times.compute_s is None
    assert times.wait_s is None
    assert times.step_s == times.body_s
    assert times.compute_at_least_s == pytest.approx(times.forward_s + times.backward_s)
    assert times.residual_s == pytest.approx(times.body_s - times.compute_at_least_s)


@pytest.mark.parametrize("missed", [20, 150], ids=["in a few steps", "in most steps"])
def test_a_phase_that_steps_lack_took_no_time_in_them(missed: int) -> None:
    def miss(steps, rank):
        steps["forward_ns"][:missed] = -1

    times = gather(map_steps(make_run(noise=0), miss)).mean
    assert times.forward_s == pytest.approx(0.010 * (200 - missed) / 200)
    assert times.residual_s == pytest.approx(0.001 + 0.010 * missed / 200)


def test_what_was_measured_outside_an_explicit_step_is_no_part_of_its_body() -> None:
    """A script that copies its batch before `with trace_step`: the copy is in no body."""

    def outside(steps, rank):
        steps["h2d_ns"] = 10_000_000
        steps["wall_ns"] += 10_000_000

    times = gather(map_steps(make_run(noise=0), outside)).mean
    assert times.body_s == pytest.approx(0.036)
    assert times.residual_s == 0.0
    assert times.h2d_s + times.compute_s == pytest.approx(times.body_s)


def test_a_step_without_a_fetch_waited_for_none() -> None:
    def every_other(steps, rank):
        steps["wall_ns"][::2] -= steps["input_ns"][::2]
        steps["input_ns"][::2] = -1

    times = gather(map_steps(make_run(input_ms=10, noise=0), every_other)).mean
    assert times.input_s == pytest.approx(0.005)
    assert times.wall_s == pytest.approx(times.input_s + times.body_s)


def test_aborted_and_tail_records_are_time_but_no_steps() -> None:
    def abort(steps, rank):
        steps["flags"][10] = StepFlag.ABORTED
        steps["flags"][-1] = StepFlag.TAIL

    whole, facts = gather(make_run()), gather(map_steps(make_run(), abort))
    (rank,) = facts.ranks
    assert (rank.steps_taken, rank.steps_aborted) == (198, 1)
    assert facts.window.steps_analyzed == 198
    assert rank.loop_s == pytest.approx(whole.ranks[0].loop_s)


def test_ranks_are_aligned_by_complete_steps() -> None:
    run = make_run(ranks=2, steps=50, noise=0)
    first, second = run.ranks
    longer = second.steps.copy()
    longer["flags"][3] = StepFlag.ABORTED
    short = replace(first, steps=first.steps[:40])
    facts = gather(replace(run, ranks=(short, replace(second, steps=longer))))
    assert facts.window.steps_analyzed == 40
    assert facts.window.last_step == 40
    assert facts.window.steps_taken == 49


def test_steps_that_one_rank_lost_are_left_out_on_every_rank() -> None:
    run = make_run(ranks=2, steps=50, noise=0)
    first, second = run.ranks
    holey = replace(first, steps=np.delete(first.steps, np.arange(20, 30)))
    facts = gather(replace(run, ranks=(holey, second)))
    assert facts.window.steps_analyzed == 40
    assert (facts.window.first_step, facts.window.last_step) == (1, 50)


def test_a_rank_that_never_stepped_does_not_hide_the_others() -> None:
    run = make_run(ranks=2)
    idle = replace(run.ranks[1], steps=run.ranks[1].steps[:0])
    facts = gather(replace(run, ranks=(run.ranks[0], idle)))
    assert len(facts.ranks) == 2
    assert [rank.rank.rank for rank in facts.ranks_used] == [0]
    assert facts.window.steps_analyzed == 200


@pytest.mark.parametrize("folded", [40, 120])
def test_folded_steps_enter_the_means_exactly(folded: int) -> None:
    run = make_run(ranks=2, steps=200)
    ranks = tuple(
        replace(rank, steps=rank.steps[kept:], blocks=fold(rank.steps[:kept]))
        for rank, kept in zip(run.ranks, (folded, 20), strict=True)
    )
    whole, facts = gather(run), gather(replace(run, ranks=ranks))
    assert facts.window.steps_analyzed == 200
    assert facts.window.first_step == 1
    assert [rank.steps_taken for rank in facts.ranks] == [200, 200]
    for name in ("step_s", "input_s", "forward_s", "residual_s", "wall_s", "samples_per_s"):
        assert getattr(facts.mean, name) == pytest.approx(getattr(whole.mean, name), rel=1e-12)
    assert facts.ranks[0].loop_s == pytest.approx(whole.ranks[0].loop_s)


def test_aborted_steps_in_a_block_do_not_shift_the_rank() -> None:
    run = make_run(ranks=2, steps=100)
    first, second = run.ranks
    steps = first.steps.copy()
    steps["flags"][5] = StepFlag.ABORTED
    folded = replace(first, steps=steps[20:], blocks=fold(steps[:20]))
    facts = gather(replace(run, ranks=(folded, second)))
    assert facts.ranks[0].steps_aborted == 1
    assert facts.window.last_step == 99


def test_the_gpu_clock_needs_some_timed_steps_of_every_rank() -> None:
    def untimed(count):
        def change(steps, rank):
            if rank == 1:
                for name in record_layout.GPU_FIELDS:
                    steps[name][-count:] = record_layout.NOT_MEASURED

        return change

    run = make_run(ranks=2, gpu=True)
    assert gather(run).clock == "gpu"
    few = gather(map_steps(run, untimed(5)))
    assert few.clock == "gpu"
    assert few.mean.step_s == pytest.approx(gather(run).mean.step_s, rel=0.01)
    most = gather(map_steps(run, untimed(180)))
    assert most.clock == "gpu"
    assert most.mean.step_s == pytest.approx(gather(run).mean.step_s, rel=0.02)
    nearly_all = gather(map_steps(run, untimed(197)))
    assert nearly_all.clock == "cpu"
    assert nearly_all.mean.step_s == nearly_all.mean.cpu_step_s


def test_both_clocks_are_kept() -> None:
    def shift(steps, rank):
        steps["gpu_body_ns"] *= 2

    times = gather(map_steps(make_run(gpu=True), shift)).mean
    assert times.gpu_body_s == pytest.approx(2 * times.cpu_body_s)
    assert times.body_s == times.gpu_body_s
    assert times.gpu_step_s == times.step_s


def test_samples_per_second_only_where_the_batch_size_was_seen() -> None:
    assert gather(make_run(samples=32)).mean.samples_per_s == pytest.approx(32 / 0.037, rel=0.01)
    assert gather(make_run(samples=-1)).mean.samples_per_s is None
    assert gather(make_run(samples=0)).mean.samples_per_s is None  # one batch, before warm-up


def test_percentiles_describe_the_step_beside_the_mean() -> None:
    def stall(steps, rank):
        steps["body_ns"][::20] += 400_000_000

    times = gather(map_steps(make_run(noise=0, first_step_ms=None), stall)).mean
    assert times.p50_s == pytest.approx(0.037)
    assert times.p99_s > 0.4
    assert times.step_s > 0.055


def test_memory_peaks_come_from_the_allocator_or_the_samples() -> None:
    (on_gpu,) = gather(make_run(gpu=True)).ranks
    assert on_gpu.memory.peak_allocated_bytes == 10 * GIB
    assert on_gpu.memory.peak_reserved_bytes == 12 * GIB
    (on_host,) = gather(make_run()).ranks
    assert on_host.memory.peak_allocated_bytes is None
    assert on_host.memory.peak_rss_bytes == GIB


def test_only_samples_taken_during_steps_count() -> None:
    assert gather(make_run(steps=200, sampled_s=30)).host.samples == 8
    assert gather(make_run(steps=0, sampled_s=30)).host.samples == 30


def test_regions_are_summed_over_ranks() -> None:
    steps = make_run().ranks[0].steps
    regions = [Region("augment", 10, 1.0, 0.3, None), Region("augment", 5, 2.0, 0.5, 0.1)]
    ranks = tuple(make_rank(steps, rank, 2, regions=[regions[rank]]) for rank in range(2))
    (region,) = gather(replace(make_run(), ranks=ranks)).regions
    assert region == Region("augment", 15, 3.0, 0.5, 0.1)


def test_ranks_without_a_common_step_say_so() -> None:
    run = make_run(ranks=2, steps=10)
    later = run.ranks[1].steps.copy()
    number_steps(later, first=100)
    facts = gather(replace(run, ranks=(run.ranks[0], replace(run.ranks[1], steps=later))))
    assert facts.window.steps_analyzed == 0
    assert facts.reason_without_steps == "The ranks have no complete step in common."


def test_a_run_without_ranks_has_no_facts() -> None:
    facts = gather(RunRecords(manifest=make_run().manifest, ranks=()))
    assert facts.mean.step_s is None
    assert facts.ranks == ()
    assert facts.window.steps_analyzed == 0


def test_many_ranks_are_aligned_when_each_ends_elsewhere() -> None:
    run = make_run(ranks=64, steps=100, sampled_s=0)
    ranks = tuple(replace(rank, steps=rank.steps[: 100 - rank.rank.rank % 7]) for rank in run.ranks)
    facts = gather(replace(run, ranks=ranks))
    assert facts.window.steps_analyzed == 94
    assert len(facts.ranks_used) == 64
    assert facts.mean.step_s == pytest.approx(0.037, rel=0.01)


def test_a_deep_profile_without_layers_says_why() -> None:
    def notes(run: RunRecords, profile: str = "deep") -> tuple[str, ...]:
        return gather(replace(run, manifest=replace(run.manifest, profile=profile))).layers.notes

    run = make_run(steps=60)

    def without_forward(steps: np.ndarray, rank: int) -> None:
        steps["forward_ns"] = -1

    without_model = map_steps(run, without_forward)
    (said,) = notes(without_model)
    assert said.startswith("No layers: no torch.nn.Module was called in a training step.")
    (said,) = notes(make_run(steps=5))
    assert said.startswith("No layers: the run took 5 steps")
    (said,) = notes(run)
    assert said == "No layers: none of the steps could be looked at layer by layer."
    assert notes(without_model, "essential") == ()


def test_gradient_norms_of_parameters_that_are_spread_over_ranks_are_said_to_be_of_parts() -> None:
    norms = LayerNumbers((5, 6), np.ones((2, 1)))

    def notes(run: RunRecords) -> str:
        seen = [
            layer_records(each.rank.pid, forward_ms={"a": 1.0}, norms=norms) for each in run.ranks
        ]
        return " ".join(gather(replace(run, layers=tuple(seen))).layers.notes)

    run = make_run(ranks=2)
    words = "of a rank's own part of the parameters"
    for parallelism in ("FSDP2", "DDP + FSDP2"):
        said = notes(with_settings(run, parallelism=parallelism))
        assert words in said and "(FSDP2)" in said
    assert "(tensor parallelism)" in notes(place_ranks(run, tp=2))
    assert words not in notes(with_settings(run, parallelism="DDP"))
    assert words not in notes(place_ranks(run, dp=2))
    assert words not in notes(with_settings(make_run(), parallelism="FSDP2"))
