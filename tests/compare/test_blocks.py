"""Which errors the blocks of a run's steps give: of each phase, and of what follows from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.blocks import errors_of_steps
from traceml.compare.within_run_error import error_of_mean
from traceml.summaries.record import StepSeries

BLOCKS = 32
LEVELS = {
    "input": 30.0,
    "h2d": 2.0,
    "forward": 10.0,
    "backward": 20.0,
    "optimizer": 5.0,
    "residual": 1.0,
    "between": 3.0,
    "wall": 71.0,
}


def parts_of(*left_out: str, seed: int = 0) -> dict[str, tuple[float, ...]]:
    random = np.random.default_rng(seed)
    return {
        name: tuple((level * (1 + 0.05 * random.standard_normal(BLOCKS))).tolist())
        for name, level in LEVELS.items()
        if name not in left_out
    }


def series(parts: dict[str, tuple[float, ...]]) -> StepSeries:
    steps = tuple(70 + math.sin(block) for block in range(BLOCKS))
    return StepSeries(BLOCKS, block_means_ms=steps, part_block_means_ms=parts)


def test_every_part_has_an_error_in_its_own_unit() -> None:
    found = errors_of_steps(series(parts_of()), {})
    for metric, part in (("input_wait_ms", "input"), ("h2d_ms", "h2d"), ("wall_step_ms", "wall")):
        error = found[metric]
        assert error.size == pytest.approx(0.05 * LEVELS[part] / math.sqrt(BLOCKS), rel=0.6)
        assert 3 <= error.freedom < BLOCKS


def test_sums_have_the_error_of_their_sum() -> None:
    parts = parts_of()
    found = errors_of_steps(series(parts), {})
    expected = {
        "compute_ms": ("forward", "backward", "optimizer"),
        "wait_ms": ("h2d", "residual"),
        "traced_step_time_ms": ("h2d", "residual", "forward", "backward", "optimizer"),
    }
    for metric, names in expected.items():
        error = error_of_mean([sum(each) for each in zip(*(parts[n] for n in names), strict=True)])
        assert error is not None
        assert found[metric].size == pytest.approx(error.size)


def test_phases_that_make_up_for_each_other_leave_their_sum_well_known() -> None:
    swing = tuple(math.sin(block) for block in range(BLOCKS))
    parts = {
        "forward": tuple(10 + x for x in swing),
        "backward": tuple(20 - x for x in swing),
        "optimizer": (5.0,) * BLOCKS,
    }
    found = errors_of_steps(series(parts), {})
    assert found["forward_ms"].size > 0.01
    assert found["compute_ms"].size < 1e-12


def test_the_share_of_the_wait_moves_only_with_the_share() -> None:
    level = [1 + 0.2 * math.sin(block) for block in range(BLOCKS)]
    in_step = {name: tuple(level_ms * x for x in level) for name, level_ms in LEVELS.items()}
    found = errors_of_steps(series(in_step), {})
    assert found["wait_ms"].size > 0.01
    assert found["wait_share_percent"].size < 1e-9
    assert errors_of_steps(series(parts_of()), {})["wait_share_percent"].size > 0.01


def test_what_goes_with_the_step_or_the_wall_has_the_same_share_of_error() -> None:
    values = {
        "step_time_ms": 70.0,
        "sample_time_ms": 7.0,
        "wall_step_ms": 71.0,
        "steps_per_s": 14.0,
    }
    found = errors_of_steps(series(parts_of()), values)
    assert found["sample_time_ms"].size == pytest.approx(found["step_time_ms"].size / 10)
    assert found["steps_per_s"].size == pytest.approx(14 / 71 * found["wall_step_ms"].size)
    assert "samples_per_s" not in found


@pytest.mark.parametrize(
    ("parts", "lacks"),
    [
        pytest.param({}, {"input_wait_ms", "compute_ms", "wait_ms"}, id="an earlier version"),
        pytest.param(parts_of("backward"), {"compute_ms", "wait_share_percent"}, id="no backward"),
        pytest.param(
            {**parts_of(), "forward": (1.0,) * 8}, {"compute_ms"}, id="blocks of other length"
        ),
        pytest.param({"forward": (1.0, 2.0, 3.0)}, {"forward_ms"}, id="three blocks"),
        pytest.param({"forward": ()}, {"forward_ms"}, id="no block"),
        pytest.param(dict.fromkeys(LEVELS, (1e308, 1.0) * 4), set(), id="sums beyond any number"),
    ],
)
def test_what_the_blocks_do_not_show_is_left_out(
    parts: dict[str, tuple[float, ...]], lacks: set[str]
) -> None:
    found = errors_of_steps(series(parts), {"step_time_ms": 70.0})
    assert "step_time_ms" in found
    assert not lacks & set(found)
    assert all(math.isfinite(error.size) for error in found.values())


def test_a_run_without_steps_has_none() -> None:
    assert errors_of_steps(None, {"step_time_ms": 70.0}) == {}


def test_a_step_is_known_no_better_than_the_parts_that_its_mean_is_of() -> None:
    """Timed on the GPU now and then: the host's clock has many more steps, and says too much."""
    parts = parts_of()
    told = series(parts)
    found = errors_of_steps(told, {"step_time_ms": 68.0, "sample_time_ms": 34.0})
    names = ("input", "h2d", "forward", "backward", "optimizer", "residual")
    blocks = [sum(each) for each in zip(*(parts[name] for name in names), strict=True)]
    error = error_of_mean(blocks)
    alone = errors_of_steps(
        StepSeries(BLOCKS, block_means_ms=told.block_means_ms), {"step_time_ms": 68.0}
    )
    assert error is not None and error.size > 2 * alone["step_time_ms"].size
    assert found["step_time_ms"].size == pytest.approx(68.0 * error.size / np.mean(blocks))
    assert found["sample_time_ms"].size == pytest.approx(found["step_time_ms"].size / 2)
