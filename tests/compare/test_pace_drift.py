"""A pace that wanders within a run wanders from run to run; independent steps do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.pace_drift import MIN_BLOCKS, drift_reach, parts, spread_of_parts

BLOCKS = 64


def wandering(random: np.random.Generator, runs: int = 2) -> list[list[float]]:
    """One long pace that wanders at every time scale, cut into runs."""
    length = runs * BLOCKS
    frequencies = np.arange(1, length // 2 + 1)
    waves = random.standard_normal(len(frequencies)) / np.sqrt(frequencies)
    phases = random.uniform(0, 2 * math.pi, len(frequencies))
    places = np.arange(length)[:, None] / length
    pace = (waves * np.cos(2 * math.pi * frequencies * places + phases)).sum(axis=1)
    return [list(np.exp(0.05 * each)) for each in pace.reshape(runs, BLOCKS)]


def test_runs_of_a_wandering_pace_differ_by_no_more_than_it_reaches() -> None:
    """Together with the error of independent blocks, which by itself covers half of the cases."""
    random = np.random.default_rng(3)
    within = by_error = 0
    for _ in range(300):
        a, b = wandering(random)
        difference = abs(math.log(np.mean(b) / np.mean(a)))
        error = math.hypot(np.std(np.log(a)), np.std(np.log(b))) / math.sqrt(BLOCKS)
        within += difference <= math.hypot(drift_reach(a, b) or 0.0, 2 * error)
        by_error += difference <= 2 * error
    assert within >= 0.85 * 300
    assert by_error < 0.6 * 300


def test_independent_blocks_hardly_reach_beyond_their_own_error() -> None:
    random = np.random.default_rng(4)
    spread = 0.05
    reaches = []
    for _ in range(200):
        a, b = (list(np.exp(spread * random.standard_normal(BLOCKS))) for _ in range(2))
        reaches.append(drift_reach(a, b) or 0.0)
    error = spread * math.sqrt(2 / BLOCKS)
    assert np.median(reaches) < 2.5 * error


def test_runs_that_change_their_pace_alike_are_steady() -> None:
    a = list(np.linspace(1.0, 2.0, BLOCKS))
    assert drift_reach(a, [3 * block for block in a]) == pytest.approx(0.0, abs=1e-6)
    assert spread_of_parts(a) == pytest.approx(0.2, abs=0.02)


def test_swapping_and_scaling_change_nothing() -> None:
    a, b = wandering(np.random.default_rng(5))
    there = drift_reach(a, b)
    assert there is not None and there > 0.02
    assert drift_reach(b, a) == pytest.approx(there)
    assert drift_reach([1e300 * block for block in a], b) == pytest.approx(there)


def test_parts_share_the_blocks_that_lie_across_them() -> None:
    assert parts([1.0, 2.0, 3.0], 2) == pytest.approx([4 / 9, 8 / 9])
    assert parts([1.0, 2.0, 3.0, 4.0], 2) == pytest.approx([1.5 / 4, 3.5 / 4])
    assert parts([5.0] * 7, 3) == pytest.approx([1.0] * 3)


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([1.0] * (MIN_BLOCKS - 1), id="too few"),
        pytest.param([0.0] + [1.0] * BLOCKS, id="a block without time"),
        pytest.param([math.inf] + [1.0] * BLOCKS, id="no number"),
        pytest.param([], id="none"),
    ],
)
def test_what_blocks_do_not_show_is_not_guessed(blocks: list[float]) -> None:
    assert drift_reach(blocks, [1.0] * BLOCKS) is None
