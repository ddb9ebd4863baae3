"""Memory that goes on growing is told from memory that settles, swings or peaks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml.facts.trend import BLOCKS, FLOOR, MIN_READINGS, Growth, Trend, _floors, find_trend

MIB = 1 << 20
STEPS = 300
STEP_S = 0.1

Series = npt.NDArray[np.float64]

x = np.arange(STEPS, dtype=np.float64)
noise = np.random.default_rng(0).normal(0, 1, STEPS)


def trend_of(mib: Series) -> Trend:
    sizes = (np.asarray(mib) * MIB).astype(np.int64) + 500 * MIB
    numbers = np.arange(1, len(sizes) + 1)
    found = find_trend(numbers, numbers * STEP_S, sizes)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mib", "growth", "onset"),
    [
        pytest.param(2 * x, Growth.STEADY, 1, id="a leak"),
        pytest.param(2 * x + 30 * noise, Growth.STEADY, 1, id="a leak in noise"),
        pytest.param(2 * np.maximum(x - 100, 0), Growth.STEADY, 101, id="a leak from step 100 on"),
        pytest.param(2 * np.maximum(x - 150, 0), Growth.STEADY, 151, id="a leak from half-way on"),
        pytest.param(
            2 * x + np.where(x > 5, 400, 0), Growth.STEADY, 1, id="a leak behind a warm-up"
        ),
        pytest.param(
            x / 2 + np.where(x % 50 < 5, 900, 0), Growth.STEADY, 1, id="a leak under evaluations"
        ),
        pytest.param(x + 5 * (x % 40), Growth.LIKELY, 1, id="a leak under a sawtooth"),
        pytest.param(100 * (x // 40), Growth.LIKELY, 1, id="a stair that goes on"),
    ],
)
def test_growth_that_goes_on(mib: Series, growth: Growth, onset: int) -> None:
    found = trend_of(mib)
    assert found.growth is growth
    assert found.onset_step == pytest.approx(onset, abs=STEPS / 12)


def test_jumps_of_an_allocator_give_a_leak_no_late_onset() -> None:
    """A heap grows ahead of what is kept, by chunks of any size: some bend always fits a little."""
    bent = 0
    for seed in range(100):
        chunks = np.random.default_rng(seed).exponential(12, STEPS) + 0.5
        heap = np.cumsum(chunks)
        found = trend_of(heap[np.searchsorted(heap, x / 2)])
        bent += found.onset_step > 1
        assert found.per_step_bytes == pytest.approx(MIB / 2, rel=0.5)
    assert bent <= 5


@pytest.mark.parametrize(
    "mib",
    [
        pytest.param(0 * x, id="nothing moves"),
        pytest.param(30 * noise, id="noise alone"),
        pytest.param(-x, id="it shrinks"),
        pytest.param(5 * (x % 30), id="a short sawtooth"),
        pytest.param(5 * (x % 100), id="a sawtooth of a third of the run"),
        pytest.param(5 * (x % 150), id="a sawtooth of half the run"),
        pytest.param(100 * np.minimum(x // 30, 5), id="a stair that ends"),
        pytest.param(np.where(x > 200, 100, 0) + np.where(x > 270, 100, 0), id="two late steps up"),
        pytest.param(600 * (1 - np.exp(-x / 50)), id="a warm-up with its plateau"),
        pytest.param(600 * (1 - np.exp(-x / 150)), id="a slow warm-up that levels off"),
        pytest.param(2 * np.minimum(x, 225), id="growth that ended before the last quarter"),
        pytest.param(100 * np.log1p(x), id="the growth of a logarithm"),
        pytest.param(np.where(x % 50 < 5, 900, 0), id="evaluation peaks"),
        pytest.param(np.where(x > 295, 900, 0), id="a checkpoint at the end"),
    ],
)
def test_movement_that_is_no_growth(mib: Series) -> None:
    assert trend_of(mib).growth is Growth.NONE


def test_the_rate_is_per_step_and_per_second() -> None:
    found = trend_of(2 * x)
    assert found.per_step_bytes == pytest.approx(2 * MIB)
    assert found.per_s_bytes == pytest.approx(2 * MIB / STEP_S)
    assert found.rise_bytes == found.end_bytes - found.start_bytes
    assert (found.first_step, found.last_step, found.readings) == (1, STEPS, STEPS)


def test_the_rate_since_the_onset_leaves_the_calm_before_it_out() -> None:
    found = trend_of(2 * np.maximum(x - 100, 0))
    assert found.per_step_bytes == pytest.approx(2 * MIB, rel=0.1)


def test_readings_far_apart_count_the_steps_between() -> None:
    numbers = 1 + 10 * np.arange(30)
    found = find_trend(numbers, numbers * STEP_S, 20 * MIB * np.arange(30))
    assert found is not None
    assert found.per_step_bytes == pytest.approx(2 * MIB)


@pytest.mark.parametrize(
    ("readings", "growth"),
    [
        pytest.param(MIN_READINGS - 1, None, id="too few"),
        pytest.param(MIN_READINGS, Growth.LIKELY, id="enough to be likely"),
        pytest.param(12, Growth.STEADY, id="one in every block"),
    ],
)
def test_few_readings_say_little(readings: int, growth: Growth | None) -> None:
    numbers = np.arange(readings)
    found = find_trend(numbers, numbers * 1.0, 50 * MIB * numbers)
    assert (None if found is None else found.growth) is growth


def test_steps_that_become_slower_grow_no_less() -> None:
    """Memory is read ten times a second: of slow steps all, of quick ones a few."""
    numbers = np.concatenate([np.arange(0, 200, 5), np.arange(200, 300)])
    times_s = np.arange(len(numbers)) * STEP_S
    found = find_trend(numbers, times_s, 2 * MIB * numbers)
    assert found is not None
    assert found.growth is Growth.STEADY
    assert found.per_step_bytes == pytest.approx(2 * MIB)


sizes = st.lists(st.integers(0, 1 << 36), min_size=MIN_READINGS, max_size=60)


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(0, 1 << 44))
def test_memory_that_is_always_there_changes_no_verdict(read: list[int], more: int) -> None:
    numbers = np.arange(len(read))
    held = np.array(read, dtype=np.int64)
    one, other = (find_trend(numbers, numbers * 1.0, found) for found in (held, held + more))
    assert one is not None
    assert other is not None
    assert (one.growth, one.onset_step) == (other.growth, other.onset_step)
    assert (one.per_step_bytes, one.rise_bytes) == (other.per_step_bytes, other.rise_bytes)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, STEPS // 2), st.integers(0, STEPS), st.integers(1, 1000))
def test_no_sawtooth_that_comes_back_is_growth(period: int, phase: int, height: int) -> None:
    assert trend_of(height * ((x + phase) % period) / period).growth is Growth.NONE


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.floats(0.0, 0.65))
def test_no_rise_that_has_ended_is_growth(steps_up: list[int], ended: float) -> None:
    """However it rose: what stands still for the last third of a run does not leak."""
    places = np.linspace(0, ended * STEPS, len(steps_up))
    stair = sum(np.where(x >= place, up, 0.0) for place, up in zip(places, steps_up, strict=True))
    assert trend_of(np.asarray(stair)).growth is Growth.NONE


@pytest.mark.parametrize("readings", [MIN_READINGS, 12, 13, 59, 300, 301])
def test_each_block_has_a_floor_of_its_own_however_long_it_is(readings: int) -> None:
    sizes = np.random.default_rng(readings).integers(0, 1000, readings)
    blocks = np.split(sizes, np.linspace(0, readings, min(BLOCKS, readings) + 1).astype(int)[1:-1])
    floors, _ = _floors(sizes, np.arange(readings))
    assert floors.tolist() == [np.sort(b)[int(FLOOR * (len(b) - 1))] for b in blocks[1:]]
