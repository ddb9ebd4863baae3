"""The comparison keeps its promises, as far as a few hundred trials can tell."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import calibration

pytestmark = pytest.mark.slow  # hundreds of comparisons each

TRIALS = 400
MAX_FALSE, MIN_FOUND = 0.05, 0.90
COVERAGE = 0.93, 0.97


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_random", np.random.default_rng(7))


def at_most(share: float, target: float) -> bool:
    """Whether so many trials leave room for the target: chance alone fails one test in forty."""
    return calibration.wilson(share, TRIALS)[0] <= target


def at_least(share: float, target: float) -> bool:
    return calibration.wilson(share, TRIALS)[1] >= target


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.2])
def test_equal_runs_rarely_get_a_verdict(spread: float) -> None:
    noise = calibration.Noise(calibration.independent, spread, 64)
    assert at_most(calibration.decided_share(noise, 3, trials=TRIALS), MAX_FALSE)


def test_different_runs_mostly_get_one() -> None:
    noise = calibration.Noise(calibration.independent, 0.01)
    assert at_least(calibration.decided_share(noise, 3, 1.05, trials=TRIALS), MIN_FOUND)


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("spread", [0.001, 0.01])
def test_a_change_is_rarely_called_none(spread: float, runs: int) -> None:
    noise = calibration.Noise(calibration.independent, spread)
    assert at_most(calibration.missed_share(noise, runs, TRIALS), MAX_FALSE)


def test_one_run_per_side_errs_where_runs_differ_much() -> None:
    noise = calibration.Noise(calibration.independent, 0.1, 64)
    assert calibration.decided_share(noise, 1, trials=60) > 0.5


@pytest.mark.parametrize("name", calibration.STATIONARY)
def test_the_interval_holds_the_truth_as_often_as_it_says(name: str) -> None:
    noise = calibration.Noise(calibration.STATIONARY[name], 0.0)
    share = calibration.coverage(noise, 1, trials=TRIALS)
    assert at_least(share, COVERAGE[0]) and at_most(share, COVERAGE[1])


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("metric", ["input_wait_ms", "step_time_ms"])
def test_the_interval_of_a_large_difference_does_too(metric: str, runs: int) -> None:
    noise = calibration.Noise(calibration.independent, 0.01 if runs > 1 else 0.0, 64)
    share = calibration.difference_coverage(noise, runs, metric, calibration.MENDED, TRIALS)
    assert at_least(share, COVERAGE[0]) and at_most(share, COVERAGE[1])


def test_a_share_of_trials_has_wilsons_interval() -> None:
    assert calibration.wilson(0.05, 4000) == pytest.approx((0.0437, 0.0572), abs=1e-4)
    assert calibration.wilson(0.0, 100)[0] == 0


def test_what_breaks_a_promise_is_seen() -> None:
    """A tenth of false verdicts, or an interval that holds the truth in nine of ten, fails."""
    assert not at_most(0.1, MAX_FALSE) and not at_least(0.9, COVERAGE[0])
