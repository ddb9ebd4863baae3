"""Growth is told while it goes on, and not what goes up and down."""

import itertools
import math

import pytest

from traceml.trace.deep.growth_watch import CALM, GREW, MIN_SEEN, GrowthWatch


def told(values):
    growth = GrowthWatch()
    return [place for place, value in enumerate(values) if growth.has_grown(value)]


def test_an_explosion_is_told_each_time_it_has_grown_tenfold():
    values = [1.0] * MIN_SEEN + [1.2**step for step in range(100)]
    seen = [values[place] for place in told(values)]
    assert len(seen) == 7  # 1.2^100 is 8e7
    pairs = itertools.pairwise(seen)
    assert all(GREW <= later / before < 1.2 * GREW for before, later in pairs)


def test_a_slow_explosion_is_told_too():
    """A moving mean alone would follow it."""
    assert told([1.0] * MIN_SEEN + [1.05**step for step in range(200)])


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.1, 2.0] * 200, id="two losses in turn"),
        pytest.param([1 / (1 + step) for step in range(300)], id="a loss that falls"),
        pytest.param([1e6] + [1.0] * 300, id="a first value like no other"),
        pytest.param([math.nan, math.inf, -1e9, 0.0] * 50, id="no positive numbers"),
    ],
)
def test_what_does_not_grow_is_not_told(values):
    assert told(values) == []


def test_the_same_height_is_told_again_only_after_a_calm():
    spike = [1.0] * 10 + [50.0]
    assert told(spike * 3) == [10]
    assert told(spike + [1.0] * CALM + [50.0]) == [10, 11 + CALM]
