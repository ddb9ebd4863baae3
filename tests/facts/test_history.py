"""A run over its whole length: true to the records, and true to the summary's own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drawn_runs
from factories import GIB, STARTED_UNIX_S, make_run, map_steps, work_between
from traceml.facts.gather import gather
from traceml.facts.history import (
    StepHistory,
    sensor_history,
    step_history,
)
from traceml.facts.loss_values import LossScale
from traceml.facts.metric_history import (
    MAX_METRICS,
    MAX_POINTS,
    MAX_STRETCHES,
    metric_histories,
)
from traceml.model.phase import Phase
from traceml.model.record_layout import NOT_MEASURED, StepFlag
from traceml.store.buckets import Grid
from traceml.store.metric_follower import Logged
from traceml.store.records import RunRecords
from traceml.store.sample_follower import GPU, HOST, PROCESS, NodeSamples, SampleTable


def history_of(run: RunRecords, most: int = 16) -> StepHistory:
    longest = max(len(rank.steps) for rank in run.ranks)
    found = drawn_runs.step_history(run, Grid.over(0, longest, most).length)
    assert found is not None
    return found


def logged(steps: Any, values: Any) -> Logged:
    found = Logged()
    found.steps.extend(map(int, steps))
    found.values.extend(map(float, values))
    return found


# Steps


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(ranks=3, steps=100), id="on the host's clock"),
        pytest.param(make_run(ranks=2, steps=96, gpu=True, h2d_ms=2.0), id="on the GPU's clock"),
        pytest.param(make_run(steps=5, input_ms=None, forward_ms=None), id="hardly measured"),
        pytest.param(make_run(ranks=2, communication_ms=4.0), id="with communication"),
    ],
)
def test_phases_add_up_to_the_step(run: RunRecords) -> None:
    found = history_of(run)
    stacked = sum(np.nan_to_num(table) for table in found.phase_s.values())
    np.testing.assert_allclose(stacked, found.step_s, rtol=1e-9)


@pytest.mark.parametrize("gpu", [False, True])
def test_means_are_those_of_the_summary(gpu: bool) -> None:
    run = make_run(ranks=2, steps=128, gpu=gpu, h2d_ms=2.0, communication_ms=1.0)
    found, facts = history_of(work_between(run, "checkpoint", 30.0, every=10)), gather(run, 0)
    for row, rank in enumerate(facts.ranks):
        assert found.step_s[row].mean() == pytest.approx(rank.times.step_s)
        for phase in (Phase.INPUT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            expected = rank.times.phase(phase)
            assert found.phase_s[phase][row].mean() == pytest.approx(expected)
    assert facts.step_table is not None
    residual_s = facts.step_table.phase(Phase.RESIDUAL).mean(axis=1)
    assert found.phase_s[Phase.RESIDUAL].mean(axis=1) == pytest.approx(residual_s, rel=1e-3)
    assert found.between_s.mean() == pytest.approx(0.030 * 12 / 128)


def test_buckets_say_where_they_begin_and_how_long_they_are() -> None:
    found = history_of(make_run(ranks=2, steps=100, noise=0.0))
    assert found.ranks == (0, 1) and found.bucket_steps == 8
    assert found.first_steps.tolist() == list(range(1, 100, 8))
    began_s = (found.first_steps - 1) * 0.037 + 2.0  # the first step came two seconds late
    assert found.began_s == pytest.approx(began_s)


def test_the_longest_step_and_the_last_loss_of_a_bucket_are_kept() -> None:
    def change(steps: Any, rank: int) -> None:
        steps["body_ns"][19] += 500_000_000
        for number in (3, 17, 18):
            steps["flags"][number] |= int(StepFlag.LOSS_SEEN)
            steps["loss"][number] = number

    found = history_of(map_steps(make_run(steps=32, noise=0.0), change), most=4)
    assert found.longest_s[0] == pytest.approx([0.037, 0.037, 0.537, 0.037])
    np.testing.assert_array_equal(found.loss[0], [3.0, np.nan, 18.0, np.nan])


def test_a_loss_that_came_late_lies_where_its_backward_pass_was() -> None:
    def change(steps: Any, rank: int) -> None:
        steps["flags"][18] |= int(StepFlag.LOSS_SEEN)
        steps["loss_lag"][18] = 7
        steps["loss"][18] = 11.0

    found = history_of(map_steps(make_run(steps=32, noise=0.0), change), most=4)
    np.testing.assert_array_equal(found.loss[0], [np.nan, 11.0, np.nan, np.nan])


def test_a_loss_that_is_divided_by_the_windows_micro_batches_is_drawn_as_the_steps() -> None:
    def change(steps: Any, rank: int) -> None:
        steps["micro_batches"] = 8
        steps["micro_batches"][7::8] = 1
        steps["flags"] |= int(StepFlag.LOSS_SEEN)
        steps["loss"] = 6.0 / steps["micro_batches"]

    found = history_of(map_steps(make_run(steps=32, noise=0.0), change), most=32)
    assert found.loss_scale is LossScale.DIVIDED
    assert found.loss[0] == pytest.approx([6.0] * 32)


def test_memory_is_the_most_that_was_seen_and_nothing_where_nothing_was() -> None:
    found = history_of(make_run(steps=32, gpu=True), most=4)
    assert (found.allocated_bytes == 10 * GIB).all() and (found.reserved_bytes == 12 * GIB).all()
    assert np.isnan(found.rss_bytes).all()
    assert np.isnan(history_of(make_run()).allocated_bytes).all()


def test_a_rank_that_is_behind_has_gaps_at_the_end() -> None:
    run = make_run(ranks=2, steps=64)
    short = replace(run.ranks[1], steps=run.ranks[1].steps[:40])
    found = history_of(replace(run, ranks=(run.ranks[0], short)), most=8)
    assert np.isfinite(found.step_s[0]).all()
    assert np.isfinite(found.step_s[1]).tolist() == [True] * 5 + [False] * 3


def timed(run: RunRecords, every: int) -> RunRecords:
    """Only every so many steps are timed on the GPU."""

    def change(steps: Any, rank: int) -> None:
        for name in (name for name in steps.dtype.names if name.startswith("gpu_")):
            kept = steps[name][::every].copy()
            steps[name] = NOT_MEASURED
            steps[name][::every] = kept

    return map_steps(run, change)


def test_steps_that_are_timed_now_and_then_are_taken_together() -> None:
    run = timed(make_run(ranks=2, steps=1000, gpu=True), every=7)
    found = history_of(run, most=1024)
    assert found.bucket_steps == 8
    assert np.isfinite(found.phase_s[Phase.FORWARD]).mean() > 0.9
    assert np.isfinite(found.step_s).all()  # the host's clock has every step


def test_a_few_timed_steps_make_no_clock() -> None:
    run = timed(make_run(steps=100, gpu=True), every=30)
    found = history_of(map_steps(run, lambda steps, rank: steps["forward_ns"].fill(7_000_000)))
    assert found.phase_s[Phase.FORWARD] == pytest.approx(
        np.full((1, len(found.first_steps)), 0.007)
    )


def test_without_steps_there_is_no_history() -> None:
    assert step_history((), 0.0) is None
    assert drawn_runs.step_history(make_run(steps=0)) is None


# Sensors


def table(moments: int = 3) -> SampleTable:
    def full(names: tuple[str, ...], value: float) -> Any:
        return np.full((moments, len(names)), value)

    host = full(HOST, np.nan)
    host[:, HOST.index("cpu_share")] = 0.5
    first, second = full(PROCESS, 1.0), full(PROCESS, 2.0)
    first[1:], second[:1] = np.nan, np.nan
    return SampleTable(
        unix_s=STARTED_UNIX_S + np.arange(moments),
        host=host,
        processes={10: (0, first), 11: (0, second), 12: (1, full(PROCESS, 3.0))},
        gpus={1: ("NVIDIA H200", full(GPU, 0.9))},
    )


def test_sensors_are_by_final_rank_and_a_rank_that_started_again_has_one_curve() -> None:
    found = sensor_history([NodeSamples("", table())], {10: 0, 11: 0, 12: 5}, STARTED_UNIX_S - 10)
    assert found is not None
    assert found.at_s.tolist() == [10.0, 11.0, 12.0]
    assert list(found.processes) == [0, 5]
    assert found.processes[0]["cpu_cores"].tolist() == [1.0, 2.0, 2.0]
    assert found.gpus[1]["power_w"].tolist() == [0.9] * 3 and found.gpu_names == {1: "NVIDIA H200"}


def test_a_sensor_that_was_never_read_is_left_out() -> None:
    found = sensor_history([NodeSamples("", table())], {}, STARTED_UNIX_S)
    assert found is not None and list(found.host) == ["cpu_share"]
    assert sensor_history([], {}, STARTED_UNIX_S) is None


def test_the_sensors_of_two_nodes_stand_at_the_same_moments() -> None:
    head, other = table(moments=6), table(moments=3)
    other = replace(
        other,
        unix_s=other.unix_s + 2.3,
        processes={20: (0, np.arange(3.0)[:, None] + np.zeros(len(PROCESS)))},
    )
    nodes = [NodeSamples("host-a", head), NodeSamples("host-b", other)]
    found = sensor_history(nodes, {10: 0, 11: 0, 12: 1, 20: 2}, STARTED_UNIX_S)
    assert found is not None
    assert found.at_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(found.hosts) == ["host-a", "host-b"]
    seen = found.processes[2]["cpu_cores"]
    assert np.isnan(seen[:2]).all()  # it had not begun
    assert seen[2:].tolist() == [0.0, 1.0, 2.0, 2.0]
    assert found.gpu_labels == {0: "host-a GPU 1", 1: "host-b GPU 1"}


# The right edge of a run in progress


def cut_short(run: RunRecords, rank: int, steps: int) -> RunRecords:
    """The run with only the first steps of one rank read so far."""
    ranks = [
        replace(each, steps=each.steps[:steps]) if number == rank else each
        for number, each in enumerate(run.ranks)
    ]
    return replace(run, ranks=tuple(ranks))


def test_the_newest_step_waits_until_every_rank_has_been_read() -> None:
    run = cut_short(make_run(ranks=2, steps=50), 1, 48)
    found = drawn_runs.step_history(run, is_live=True)
    assert found is not None and found.first_steps[-1] == 48
    assert np.isfinite(found.step_s[:, -1]).all()
    over = drawn_runs.step_history(run)
    assert over is not None and over.first_steps[-1] == 50, "of a run that is over nothing follows"


def test_a_rank_that_takes_no_steps_any_more_is_not_waited_for() -> None:
    run = cut_short(make_run(ranks=3, steps=2000), 1, 400)  # of 24 ms each
    found = drawn_runs.step_history(run, is_live=True)
    assert found is not None and found.first_steps[-1] == 2000


# Metrics


def test_a_long_metric_is_thinned_to_means() -> None:
    (found,) = metric_histories({"loss": [logged(range(2500), range(2500))]})
    assert len(found.steps) <= MAX_POINTS
    assert found.steps[:3].tolist() == [0, 3, 6]
    np.testing.assert_allclose(found.values[:3], [1.0, 4.0, 7.0])
    assert (found.low[:2].tolist(), found.high[:2].tolist()) == ([0.0, 3.0], [2.0, 5.0])
    assert (found.logged, found.is_thinned) == (2500, True)


def test_a_range_of_steps_has_each_of_its_values() -> None:
    (found,) = metric_histories({"loss": [logged(range(2500), range(2500))]}, (100, 200))
    assert found.steps.tolist() == list(range(100, 201)) and not found.is_thinned


def test_values_near_the_largest_double_have_a_mean() -> None:
    (found,) = metric_histories({"loss": [logged(range(2500), [1e300] * 2500)]})
    np.testing.assert_allclose(found.values, 1e300)


def test_a_step_that_was_taken_again_has_its_last_value() -> None:
    lives = [logged([1, 2, 3], [1.0, 2.0, 3.0]), logged([3, 4], [30.0, 4.0])]
    (found,) = metric_histories({"loss": lives})
    assert found.steps.tolist() == [1, 2, 3, 4]
    assert found.values.tolist() == [1.0, 2.0, 30.0, 4.0]


def test_what_is_no_number_is_a_gap() -> None:
    (found,) = metric_histories({"loss": [logged([1, 2, 3], [1.0, "inf", "nan"])]})
    np.testing.assert_array_equal(found.values, [1.0, np.nan, np.nan])
    assert [(each.first_step, each.kind) for each in found.stretches] == [(2, "Inf"), (3, "NaN")]


def test_values_that_cannot_be_drawn_are_all_counted_in_few_stretches() -> None:
    values = ["nan" if step % 7 == 0 else 1.0 for step in range(5000)]
    (found,) = metric_histories({"loss": [logged(range(5000), values)]})
    assert 0 < len(found.stretches) <= MAX_STRETCHES
    assert sum(each.count for each in found.stretches) == 715
    assert found.stretches[-1].last_step == 4998


def test_of_very_many_metrics_the_losses_come_first() -> None:
    names = [f"a-{number:03}" for number in range(100)] + ["train/Loss"]
    found = metric_histories({name: [logged([1], [1.0])] for name in names})
    assert len(found) == MAX_METRICS
    assert [metric.name for metric in found[:2]] == ["train/Loss", "a-000"]
