"""The error of one run's mean: steps that hang together are worth fewer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.statistics import between_two_runs
from traceml.compare.students_t import MeanError
from traceml.compare.within_run_error import MAX_BLOCKS, within_run
from traceml.facts.series import describe_series
from traceml.summaries.record import StepSeries


def series(step_ms: np.ndarray) -> StepSeries:
    found = describe_series(step_ms)
    return StepSeries(
        found.count,
        stdev_ms=found.stdev_s,
        effective_count=found.effective_count,
        block_means_ms=found.block_means_s,
    )


def error_of(step_ms: np.ndarray) -> MeanError:
    found = within_run(series(step_ms), float(step_ms.mean()))
    assert found is not None
    return found


def correlated(random: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    found = np.empty(steps)
    last = random.standard_normal() / math.sqrt(1 - correlation**2)
    for place in range(steps):
        last = found[place] = correlation * last + random.standard_normal()
    return 100 + found


def test_independent_blocks_have_the_plain_error_of_a_mean() -> None:
    blocks = [100.0, 103.0, 99.0, 102.0, 98.0, 104.0, 97.0, 101.0]
    found = within_run(StepSeries(8, block_means_ms=tuple(blocks)), 100.5)
    assert found is not None and found.freedom == 7
    plain = np.std(blocks, ddof=1) / math.sqrt(8) / np.mean(blocks)
    assert found.size == pytest.approx(plain)


def test_steps_that_hang_together_are_worth_fewer() -> None:
    random = np.random.default_rng(1)
    loose, tight = correlated(random, 500, 0.0), correlated(random, 500, 0.95)
    plain = [np.std(each, ddof=1) / math.sqrt(500) / each.mean() for each in (loose, tight)]
    assert error_of(loose).size == pytest.approx(plain[0], rel=0.3)
    assert error_of(tight).size > 3 * plain[1]
    assert error_of(tight).freedom < error_of(loose).freedom


def test_a_drift_widens_the_error_rather_than_being_taken_for_precision() -> None:
    random = np.random.default_rng(2)
    level = 100 + random.standard_normal(500)
    assert error_of(level + np.linspace(0, 20, 500)).size > 10 * error_of(level).size


def test_one_long_stall_widens_the_error() -> None:
    random = np.random.default_rng(3)
    level = 100 + random.standard_normal(500)
    stalled = level.copy()
    stalled[250] = 5000.0
    assert error_of(stalled).size > 10 * error_of(level).size


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9, 0.98])
def test_the_interval_holds_the_truth_as_often_as_it_says(correlation: float) -> None:
    """The exact figure is the calibration benchmark's; this one catches a broken interval."""
    random = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        a, b = (correlated(random, 400, correlation) for _ in range(2))
        change = between_two_runs(a.mean(), b.mean(), error_of(a), error_of(b))
        held += change is not None and change.low <= 1 <= change.high
    assert 0.90 <= held / 200 <= 0.995


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(None, id="no series"),
        pytest.param(StepSeries(3, block_means_ms=(1.0, 2.0, 3.0)), id="three blocks"),
        pytest.param(StepSeries(9, stdev_ms=1.0, effective_count=1.5), id="worth a step or two"),
        pytest.param(StepSeries(9, block_means_ms=(0.0,) * 9), id="steps of no length"),
        pytest.param(StepSeries(9, block_means_ms=(-1.0,) * 9), id="negative means"),
    ],
)
def test_what_does_not_show_its_spread_has_no_error(steps: StepSeries | None) -> None:
    assert within_run(steps, 100.0) is None


def test_a_file_with_more_blocks_than_we_write_is_taken_together() -> None:
    found = within_run(StepSeries(9, block_means_ms=tuple([1.0, 2.0] * 5000)), 1.5)
    assert found is not None and found.freedom < MAX_BLOCKS
