"""Warm-up is told apart from how the run was."""

import numpy as np
import pytest

from traceml.facts.step_table import warmup_steps


def steps(*parts: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(count, seconds) for seconds, count in parts])


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        pytest.param(steps((4.0, 1), (0.02, 199)), 1, id="one very long first step"),
        pytest.param(steps((0.1, 5), (0.02, 195)), 5, id="five slow steps at the beginning"),
        pytest.param(steps((0.02, 200)), 0, id="steady from the first step"),
        pytest.param(steps((0.02, 100), (0.04, 100)), 0, id="a slowdown in the second half"),
        pytest.param(steps((0.04, 100), (0.02, 100)), 20, id="a slow half counts a tenth at most"),
        pytest.param(steps((0.025, 10), (0.02, 190)), 0, id="only a little slower"),
        pytest.param(steps((0.02, 3), (4.0, 1), (0.02, 196)), 0, id="a stall after the beginning"),
        pytest.param(steps((4.0, 1), (0.02, 1)), 0, id="too few steps to say"),
        pytest.param(steps((4.0, 1), (0.02, 4)), 1, id="a short run loses one step"),
    ],
)
def test_warmup_is_a_slow_beginning(series: np.ndarray, expected: int) -> None:
    assert warmup_steps(series) == expected


def test_a_noisy_run_has_no_warmup_by_chance() -> None:
    random = np.random.default_rng(1)
    runs = [warmup_steps(random.lognormal(0, 0.5, 200)) for _ in range(200)]
    assert sum(runs) <= 4


@pytest.mark.parametrize(
    ("series", "earlier", "most", "expected"),
    [
        pytest.param(steps((0.4, 4), (0.02, 12)), 0, 10, 4, id="more than a tenth, where allowed"),
        pytest.param(steps((0.4, 4), (0.02, 3)), 0, 10, 3, id="half of what was seen at most"),
        pytest.param(steps((0.4, 4), (0.02, 96)), 6, 10, 4, id="the rest of a slow beginning"),
        pytest.param(steps((0.4, 4), (0.02, 96)), 8, 10, 2, id="what is left of the beginning"),
        pytest.param(steps((0.4, 4), (0.02, 96)), 500, 10, 0, id="in mid-run it is no warm-up"),
        pytest.param(steps((0.4, 4), (0.02, 96)), 500, None, 0, id="nor by default"),
    ],
)
def test_warmup_is_where_training_begins(
    series: np.ndarray, earlier: int, most: int | None, expected: int
) -> None:
    assert warmup_steps(series, earlier, most) == expected
