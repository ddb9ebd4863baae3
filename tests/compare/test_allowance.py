"""What earlier runs of a command teach about its noise."""

from __future__ import annotations

import math
from statistics import stdev

import pytest

from traceml.compare.allowance import learn


def test_the_spread_is_that_of_the_logarithms() -> None:
    times = [100.0, 102.0, 99.0, 101.0]
    found = learn([times])
    assert found is not None and found.freedom == 3
    assert found.log_spread == pytest.approx(stdev(map(math.log, times)))


def test_two_commands_are_pooled_around_their_own_means() -> None:
    found = learn([[100.0, 101.0, 99.0], [500.0, 505.0, 495.0]])
    assert found is not None and found.freedom == 4
    assert found.log_spread == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([], id="no command"),
        pytest.param([[100.0, 101.0, 99.0]], id="three runs"),
        pytest.param([[100.0, 101.0], [5.0, 6.0]], id="two of each"),
        pytest.param([[0.0, 0.0, 0.0, 0.0]], id="runs without a step time"),
    ],
)
def test_too_few_runs_teach_nothing(groups: list[list[float]]) -> None:
    assert learn(groups) is None
