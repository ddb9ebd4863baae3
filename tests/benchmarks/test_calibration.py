"""The calibration can tell a good comparison from a bad one, in a few trials."""

from __future__ import annotations

import pytest

from benchmarks import calibration


def test_equal_runs_rarely_get_a_verdict_and_different_ones_mostly_do() -> None:
    noise = calibration.Noise(calibration.independent, 0.01, 64)
    assert calibration.decided_share(noise, 3, trials=60) <= 0.2
    assert calibration.decided_share(noise, 3, 1.08, trials=60) >= 0.8


def test_one_run_per_side_errs_where_runs_differ_much() -> None:
    assert (
        calibration.decided_share(calibration.Noise(calibration.independent, 0.1, 64), 1, trials=60)
        > 0.5
    )


@pytest.mark.parametrize("name", calibration.STATIONARY)
def test_the_interval_mostly_holds_the_truth(name: str) -> None:
    noise = calibration.Noise(calibration.STATIONARY[name], 0.0, 200)
    assert calibration.coverage(noise, 1, trials=60) >= 0.8


def test_a_share_of_trials_has_wilsons_interval() -> None:
    assert calibration.wilson(0.05, 4000) == pytest.approx((0.0437, 0.0572), abs=1e-4)
    assert calibration.wilson(0.0, 100)[0] == 0
