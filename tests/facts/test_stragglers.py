"""The rank that others wait for is found, however even the collective makes their steps look."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import make_late, make_run, make_waiting, map_steps
from traceml.facts.gather import gather
from traceml.facts.stragglers import Straggler, excess_share, lost_s, median_of_others
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


def stragglers(run: RunRecords) -> tuple[Straggler, ...]:
    return gather(run).stragglers


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 9).flatmap(
        lambda rows: st.lists(
            st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=rows, max_size=rows
        )
    )
)
def test_the_median_of_the_others_leaves_out_the_row_itself(rows: list[list[int]]) -> None:
    table = np.array(rows, dtype=np.float64)
    expected = [np.median(np.delete(table, row, axis=0), axis=0) for row in range(len(table))]
    assert median_of_others(table) == pytest.approx(np.array(expected))
    assert median_of_others(table[:, 0]) == pytest.approx(np.array(expected)[:, 0])


@pytest.mark.parametrize("phase", ["input", "h2d", "forward", "backward", "optimizer", "rest"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_delay_is_found_in_its_rank_and_phase(phase: str, ranks: int) -> None:
    run = make_late(make_run(ranks, h2d_ms=1.0), ranks - 1, phase=phase, by_ms=20)
    (found,) = stragglers(make_waiting(run))
    assert found.rank == ranks - 1
    assert found.own.excess_s == pytest.approx(0.020, rel=0.05)
    assert found.slowest_share == pytest.approx(1.0, abs=0.02)
    held = Phase.RESIDUAL if phase == "rest" else Phase(phase)
    for each, part in found.phases.items():
        assert part.excess_s == pytest.approx(0.020 if each is held else 0.0, abs=0.001)


def test_the_collective_makes_every_rank_look_the_same() -> None:
    """What the comparison of plain phases would see: nothing."""
    run = make_waiting(make_late(make_run(4), 2, phase="backward"), "backward")
    means = [rank.steps["backward_ns"].mean() for rank in run.ranks]
    assert max(means) / min(means) < 1.02
    assert stragglers(run) == ()


def test_two_evenly_slow_ranks_of_four_are_both_found() -> None:
    found = stragglers(make_waiting(make_late(make_run(4), 2, 3)))
    assert sorted(late.rank for late in found) == [2, 3]


def test_one_fast_rank_makes_no_stragglers() -> None:
    assert stragglers(make_waiting(make_late(make_run(4), 1, 2, 3))) == ()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_stall_every_twentieth_step_counts_by_the_time_it_takes(ranks: int) -> None:
    run = make_late(make_run(ranks, 200), 1, phase="input", by_ms=200, every=20, since=7)
    (found,) = stragglers(make_waiting(run))
    assert found.rank == 1
    assert found.own.excess_s == pytest.approx(0.010, rel=0.1)


def test_three_odd_steps_are_an_accident() -> None:
    run = make_late(make_run(2, 200), 1, phase="input", by_ms=2000, every=70, since=5)
    assert stragglers(make_waiting(run)) == ()


def test_a_rank_that_becomes_slow_is_found_with_its_onset() -> None:
    (found,) = stragglers(make_waiting(make_late(make_run(2), 1, by_ms=20, since=120)))
    assert found.since_step == 121
    assert found.standard_errors > 10


def test_a_rank_that_is_late_all_along_and_becomes_later_has_no_onset() -> None:
    late = make_late(make_run(2), 1, by_ms=20)
    (found,) = stragglers(make_waiting(make_late(late, 1, by_ms=20, since=120)))
    assert found.since_step is None


def noisy(ranks: int, steps: int, seed: int, spread: float, memory: float) -> RunRecords:
    """Equal ranks on an overloaded machine: long tails, and slow spells that last."""

    def change(records, rank):
        random = np.random.default_rng((seed, rank, 1))
        spell = np.zeros(steps)
        for step in range(1, steps):
            spell[step] = memory * spell[step - 1] + random.standard_normal()
        stretch = np.exp(spread * spell)
        for name in ("input_ns", "forward_ns", "backward_ns", "optimizer_ns"):
            records[name] = records[name] * stretch
        records["body_ns"] = sum(
            records[name] for name in ("forward_ns", "backward_ns", "optimizer_ns")
        )
        records["wall_ns"] = records["input_ns"] + records["body_ns"]

    return make_waiting(map_steps(make_run(ranks, steps, seed=seed), change))


@pytest.mark.parametrize("memory", [0.0, 0.8], ids=["independent steps", "slow spells"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_ranks_on_a_noisy_machine_are_within_chance(ranks: int, memory: float) -> None:
    found = [
        late
        for seed in range(25)
        for late in stragglers(noisy(ranks, 60, seed, 0.2, memory))
        if late.standard_errors > 4
    ]
    assert found == []


def test_a_delay_on_a_noisy_machine_is_beyond_chance() -> None:
    for seed in range(5):
        run = make_late(noisy(4, 60, seed, 0.2, 0.5), 3, phase="backward", by_ms=40)
        worst = stragglers(make_waiting(run))[0]
        assert (worst.rank, worst.standard_errors > 4) == (3, True)


def sampled(run: RunRecords, every: int) -> RunRecords:
    """The GPU's clock runs now and then, in other steps on every rank."""

    def change(steps, rank):
        for name in steps.dtype.names:
            if name.startswith("gpu_"):
                steps[name][np.arange(len(steps)) % every != rank] = -1

    return map_steps(run, change)


def test_ranks_timed_in_different_steps_are_compared_by_their_means() -> None:
    run = make_waiting(make_late(make_run(3, 400, gpu=True), 1, phase="backward", by_ms=20))
    (found,) = stragglers(sampled(run, 7))
    assert (found.rank, found.slowest_share) == (1, None)
    assert found.phases[Phase.BACKWARD].excess_s == pytest.approx(0.020, rel=0.02)
    assert stragglers(sampled(make_waiting(make_run(3, 400, gpu=True)), 7)) == ()


def test_a_phase_that_was_not_measured_lies_in_the_rest() -> None:
    run = make_late(make_run(2, forward_ms=None), 1, phase="rest")
    (found,) = stragglers(make_waiting(run))
    assert found.unmeasured == (Phase.FORWARD,)
    assert found.phases[Phase.RESIDUAL].excess_s == pytest.approx(0.020, rel=0.02)


def test_too_few_steps_say_nothing() -> None:
    assert stragglers(make_waiting(make_late(make_run(2, 7), 1))) == ()
    assert len(stragglers(make_waiting(make_late(make_run(2, 9), 1)))) == 1


def test_the_known_parts_of_the_rest_are_compared_too() -> None:
    def collect(steps, rank):
        steps["gc_ns"] = 20_000_000 if rank == 1 else 0

    run = make_waiting(map_steps(make_late(make_run(2), 1, phase="rest"), collect))
    (found,) = stragglers(run)
    assert found.inside_rest["gc_s"].excess_s == pytest.approx(0.020)
    assert "compile_s" not in found.inside_rest


def collecting(run: RunRecords) -> RunRecords:
    """Rank 1 is late, and as long in garbage collection and in waits for the device."""

    def change(steps, rank):
        steps["gc_ns"] = steps["sync_ns"] = 20_000_000 if rank == 1 else 0

    return make_waiting(map_steps(make_late(run, 1, phase="rest"), change))


def test_a_wait_for_the_device_is_no_part_of_the_rest() -> None:
    """It stays in the phase that it happened in."""
    (found,) = stragglers(collecting(make_run(2)))
    assert list(found.inside_rest) == ["gc_s"]


def test_the_hosts_time_is_no_part_of_a_rest_on_the_gpus_clock() -> None:
    (found,) = stragglers(collecting(make_run(2, gpu=True)))
    assert found.inside_rest == {}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_excess_of_a_rank_can_be_asked_for_late_or_not(ranks: int) -> None:
    facts = gather(make_waiting(make_late(make_run(ranks, noise=0), 1, by_ms=20)))
    assert facts.job is not None
    times = [rank.times for rank in facts.ranks]
    assert excess_share(facts.job, times, [0, 1]) == pytest.approx(20 / 37)
    assert excess_share(facts.job, times, [0]) == pytest.approx(-20 / 57 if ranks == 2 else 0)
    assert excess_share(facts.job, times, []) is None


def stepped(**late: int | float) -> Callable[[RunRecords], RunRecords]:
    return lambda run: make_late(run, 1, **late)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(stepped(by_ms=20), id="in every step"),
        pytest.param(stepped(by_ms=200, every=20), id="in every twentieth step"),
        pytest.param(stepped(by_ms=40, every=2), id="in every other step"),
        pytest.param(stepped(by_ms=20, since=100), id="in the second half"),
        pytest.param(stepped(by_ms=20, since=50), id="in three quarters of the run"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_time_lost_is_the_difference_to_the_run_without_the_fault(
    fault: Callable[[RunRecords], RunRecords], ranks: int
) -> None:
    healthy = make_run(ranks, noise=0.05)
    slow = gather(make_waiting(fault(healthy)))
    assert slow.job is not None and slow.mean.step_s is not None
    predicted_s = slow.mean.step_s - lost_s(slow.job, [1])
    assert predicted_s == pytest.approx(gather(make_waiting(healthy)).mean.step_s, rel=0.02)


def test_a_rank_that_is_late_behind_a_later_one_costs_nothing() -> None:
    run = make_late(make_late(make_run(4, noise=0), 1, by_ms=20), 2, by_ms=40)
    job = gather(make_waiting(run)).job
    assert job is not None
    assert lost_s(job, [1]) == 0
    assert lost_s(job, [2]) == pytest.approx(0.020, rel=0.01)
    assert lost_s(job, [1, 2]) == pytest.approx(0.040, rel=0.01)
