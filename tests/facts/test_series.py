"""How step times are distributed, and whether they grew."""

import numpy as np
import pytest

from traceml.facts.series import describe_series, find_slowdown


def noise(steps: int, spread: float = 0.05, seed: int = 0) -> np.ndarray:
    return 0.02 * (1 + spread * np.random.default_rng(seed).standard_normal(steps))


def numbered(series: np.ndarray) -> np.ndarray:
    return np.arange(1, len(series) + 1)


def test_independent_steps_are_worth_about_their_number() -> None:
    series = describe_series(noise(4000))
    assert series.count == 4000
    assert series.effective_count > 1500
    assert abs(series.autocorrelation[0]) < 0.1


def test_correlated_steps_are_worth_far_fewer() -> None:
    walk = np.zeros(4000)
    shocks = np.random.default_rng(0).standard_normal(4000)
    for step in range(1, 4000):
        walk[step] = 0.95 * walk[step - 1] + shocks[step]
    series = describe_series(1 + 0.01 * walk)
    assert series.effective_count < 400
    assert series.autocorrelation[0] == pytest.approx(0.95, abs=0.03)


def test_block_means_are_of_equal_length_and_at_most_64() -> None:
    for steps in (1, 5, 64, 65, 1000):
        series = describe_series(noise(steps))
        assert 1 <= len(series.block_means_s) <= 64
        assert len(series.block_means_s) == steps // series.block_steps
    assert np.mean(describe_series(noise(640)).block_means_s) == pytest.approx(noise(640).mean())


def test_a_constant_series_has_no_correlation() -> None:
    series = describe_series(np.full(100, 0.02))
    assert set(series.autocorrelation) == {0.0}
    assert series.effective_count == 100


def test_a_single_step_is_described() -> None:
    series = describe_series(np.array([0.02]))
    assert (series.count, series.mean_s, series.stdev_s) == (1, 0.02, 0.0)


def test_a_slowdown_names_its_onset() -> None:
    series = noise(200)
    series[120:] *= 1.4
    found = find_slowdown(series, numbered(series))
    assert found is not None
    assert abs(found.onset_step - 121) <= 1
    assert found.ratio == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(noise(200), id="plain noise"),
        pytest.param(noise(200, 0.5, 3).clip(0.001), id="strong noise"),
        pytest.param(np.where(np.arange(200) % 20 == 19, 0.4, noise(200)), id="regular stalls"),
        pytest.param(np.where(np.arange(200) > 196, 2.0, noise(200)), id="stalls at the end"),
        pytest.param(noise(200) * np.repeat([1.0, 0.6], 100), id="a speed-up"),
        pytest.param(noise(200) * np.repeat([1.0, 1.05], 100), id="a shift too small to tell"),
        pytest.param(noise(6), id="too few steps"),
    ],
)
def test_no_slowdown_is_claimed_without_one(series: np.ndarray) -> None:
    assert find_slowdown(series, numbered(series)) is None


def test_noise_alone_hardly_ever_looks_like_a_slowdown() -> None:
    found = [find_slowdown(s, numbered(s)) for s in (noise(300, 0.3, seed) for seed in range(200))]
    assert sum(each is not None for each in found) <= 1
