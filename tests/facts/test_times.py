"""The parts of a step, block by block of the run: what a comparison needs of each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factories import make_run, map_steps, stall
from traceml.facts.gather import gather
from traceml.facts.series import StepTimeSeries
from traceml.facts.step_table import complete_steps, with_long_steps
from traceml.model.phase import Phase
from traceml.model.record_layout import GPU_FIELDS, NOT_MEASURED
from traceml.store.records import RunRecords


def series_of(run: RunRecords) -> StepTimeSeries:
    found = gather(run).series
    assert found is not None
    return found


@pytest.mark.parametrize("gpu", [False, True], ids=["on the host", "on a GPU"])
def test_the_parts_of_a_block_sum_to_its_step(gpu: bool) -> None:
    series = series_of(make_run(ranks=2, steps=500, h2d_ms=2.0, between_ms=3.0, gpu=gpu))
    parts = series.part_block_means_s
    phases = ("input", "h2d", "forward", "backward", "optimizer", "residual")
    assert set(parts) == {*phases, "between", "wall"}
    summed = np.sum([parts[name] for name in phases], axis=0)
    assert summed.tolist() == pytest.approx(series.block_means_s, rel=1e-6)
    assert (summed + parts["between"]).tolist() == pytest.approx(parts["wall"], rel=1e-6)


def test_the_mean_of_the_blocks_is_that_of_the_run() -> None:
    facts = gather(make_run(ranks=3, steps=640, communication_ms=0.5, slow_rank=1))
    assert facts.series is not None
    for name, blocks in facts.series.part_block_means_s.items():
        mean = getattr(facts.mean, f"{name}_s")
        assert np.mean(blocks) == pytest.approx(mean), name


def test_what_was_not_measured_has_no_blocks() -> None:
    parts = series_of(make_run(input_ms=None, backward_ms=None)).part_block_means_s
    assert set(parts) == {"forward", "optimizer", "residual", "between", "wall"}


def test_steps_timed_now_and_then_have_fewer_and_longer_blocks() -> None:
    """With every 13th step timed, not every block of eight steps has one."""

    def change(steps: Any, rank: int) -> None:
        untimed = np.arange(len(steps)) % 13 != 0
        for name in GPU_FIELDS:
            steps[name][untimed] = NOT_MEASURED

    series = series_of(map_steps(make_run(steps=512, gpu=True), change))
    assert len(series.block_means_s) == 64
    assert {len(blocks) for blocks in series.part_block_means_s.values()} == {32}
    assert np.mean(series.part_block_means_s["forward"]) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    "long_steps",
    [[52], [52, 104, 156], [51, 52, 53, 107], [53], [53, 107]],
    ids=["one", "three", "some not timed", "one not timed", "two not timed"],
)
def test_a_long_step_among_the_few_that_are_timed_counts_once(long_steps: list[int]) -> None:
    """Every fourth step is timed: one of 200 would count as one of 50."""
    whole = stall(
        make_run(steps=200, gpu=True, noise=0), "rest", 0.4, *(at + 1 for at in long_steps)
    )

    def leave_out(steps: Any, rank: int) -> None:
        for name in GPU_FIELDS:
            steps[name][np.arange(len(steps)) % 4 != 0] = NOT_MEASURED

    truth, found = (gather(run).mean for run in (whole, map_steps(whole, leave_out)))
    assert truth.step_s == pytest.approx(0.036 + 0.002 * len(long_steps), rel=0.06)
    assert found.step_s == pytest.approx(truth.step_s)
    assert found.phases_s == pytest.approx(truth.phases_s)
    assert sum(each or 0.0 for each in found.phases_s) == pytest.approx(found.step_s)


def test_a_step_that_waits_for_earlier_ones_is_no_longer_on_the_gpu() -> None:
    """The host runs ahead for nineteen steps; none of those in which it waits is timed."""

    def run_ahead(steps: Any, rank: int) -> None:
        waits = np.arange(len(steps)) % 20 == 13
        saved = steps["body_ns"] // 2
        steps["body_ns"] -= saved
        steps["body_ns"][waits] += 20 * saved[waits]
        steps["wall_ns"] = steps["body_ns"] + np.maximum(steps["input_ns"], 0)
        for name in GPU_FIELDS:
            steps[name][np.arange(len(steps)) % 4 != 0] = NOT_MEASURED

    whole = make_run(steps=200, gpu=True, noise=0)
    truth, found = (gather(run).mean for run in (whole, map_steps(whole, run_ahead)))
    assert found.step_s == pytest.approx(truth.step_s)


def test_where_long_steps_were_timed_nothing_is_copied() -> None:
    def time_some(steps: Any, rank: int) -> None:
        for name in GPU_FIELDS:
            steps[name][np.arange(len(steps)) % 4 != 0] = NOT_MEASURED

    run = map_steps(stall(make_run(steps=200, gpu=True, noise=0), "rest", 0.4, 53), time_some)
    rank = complete_steps(run.ranks[0])
    assert with_long_steps(rank, 0) is rank


def test_a_block_without_a_fetch_waited_for_none() -> None:
    def change(steps: Any, rank: int) -> None:
        steps["input_ns"][10:20] = NOT_MEASURED

    waited = series_of(map_steps(make_run(steps=60, noise=0), change)).part_block_means_s["input"]
    assert set(waited[:10] + waited[20:]) == {0.001}
    assert set(waited[10:20]) == {0.0}


def test_a_phase_that_some_steps_lack_took_no_time_in_their_blocks() -> None:
    def change(steps: Any, rank: int) -> None:
        steps["h2d_ns"][::3] = NOT_MEASURED

    copies = series_of(map_steps(make_run(steps=60, h2d_ms=2.0), change)).part_block_means_s["h2d"]
    assert set(copies[::3]) == {0.0} and min(copies[1::3]) > 0.001
    assert np.mean(copies) == pytest.approx(0.002 * 2 / 3, rel=0.02)


def replay(
    run: RunRecords,
    phases: tuple[str, ...] = ("forward", "backward", "optimizer"),
    since: int = 0,
) -> RunRecords:
    """The same run with these phases captured in a CUDA graph, from a step on."""

    def change(steps: Any, rank: int) -> None:
        for clock in ("", "gpu_"):
            captured = [f"{clock}{phase}_ns" for phase in phases]
            if (steps[captured[0]] < 0).all():
                continue  # that clock does not run
            later = steps[since:]
            later[f"{clock}graph_ns"] = sum(later[name] for name in captured)
            for name in captured:
                later[name] = NOT_MEASURED

    return map_steps(run, change)


@pytest.mark.parametrize("gpu", [False, True], ids=["on the host", "on a GPU"])
@pytest.mark.parametrize(
    ("phases", "since"),
    [
        pytest.param(("forward", "backward", "optimizer"), 0, id="every step"),
        pytest.param(("forward", "backward"), 0, id="all but the optimizer"),
        pytest.param(("forward", "backward", "optimizer"), 10, id="all but the first steps"),
        pytest.param(("forward", "backward", "optimizer"), 150, id="a few at the end"),
    ],
)
def test_compute_is_the_same_whether_it_is_replayed_or_not(
    gpu: bool, phases: tuple[str, ...], since: int
) -> None:
    run = make_run(h2d_ms=2.0, gpu=gpu)
    eager, replayed = gather(run).mean, gather(replay(run, phases, since)).mean
    for name in ("step_s", "compute_s", "compute_at_least_s", "residual_s", "wait_s"):
        assert getattr(replayed, name) == pytest.approx(getattr(eager, name)), name


def test_what_is_replayed_is_not_divided() -> None:
    times = gather(replay(make_run(noise=0))).mean
    assert (times.forward_s, times.backward_s, times.optimizer_s) == (None, None, None)
    assert times.compute_s == pytest.approx(0.035)
    partial = gather(replay(make_run(noise=0), ("forward", "backward"))).mean
    assert (partial.forward_s, partial.backward_s) == (None, None)
    assert partial.optimizer_s == pytest.approx(0.005)


def test_the_rest_of_each_replayed_step_is_the_rest() -> None:
    parts = gather(replay(make_run(noise=0))).step_table
    assert parts is not None
    assert parts.phase(Phase.RESIDUAL).ravel().tolist() == pytest.approx([0.001] * 200)


def test_blocks_of_replays_tell_compute_as_a_whole() -> None:
    parts = series_of(replay(make_run(noise=0))).part_block_means_s
    assert set(parts) == {"input", "compute", "residual", "between", "wall"}
    assert set(np.round(parts["compute"], 9)) == {0.035}


def test_samples_per_second_are_all_samples_in_all_the_time() -> None:
    """A loader that looks ahead fetches twice in an epoch's first step, and not in its last."""

    def change(steps: Any, rank: int) -> None:
        steps["samples"][0::4] = 64
        steps["samples"][3::4] = 0

    run = make_run(noise=0, first_step_ms=None)
    expected = gather(run).mean.samples_per_s
    assert gather(map_steps(run, change)).mean.samples_per_s == pytest.approx(expected, rel=0.02)
