"""The Pareto front of thousands of runs is that of the definition, and of `compare`."""

from __future__ import annotations

import random

import pytest

from traceml.compare.cost_and_quality import front_places


def beaten(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return other != one and other[0] <= one[0] and other[1] <= one[1]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_no_run_of_the_front_is_beaten_and_all_others_are(
    seed: int, higher_is_better: bool
) -> None:
    chance = random.Random(seed)
    costs = [float(chance.randint(0, 9)) for _ in range(40)]
    qualities = [float(chance.randint(0, 9)) for _ in range(40)]
    sign = -1 if higher_is_better else 1
    points = [(cost, sign * quality) for cost, quality in zip(costs, qualities, strict=True)]
    expected = {
        place for place, one in enumerate(points) if not any(beaten(one, other) for other in points)
    }
    found = front_places(costs, qualities, higher_is_better)
    assert set(found) == expected
    assert [costs[place] for place in found] == sorted(costs[place] for place in found)


def test_runs_without_cost_or_quality_are_in_no_front() -> None:
    assert front_places([None, 1.0, 0.5], [9.0, None, 0.1], True) == [2]
    assert front_places([], [], True) == []
