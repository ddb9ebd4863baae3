"""The parts of a change are told once each."""

from __future__ import annotations

import pytest

from traceml.compare.record import Delta
from traceml.compare.waterfall import grouped_ms, waterfall_ms


def deltas(**changes: tuple[float, float]) -> dict[str, Delta]:
    return {name: Delta.between(lhs, rhs) for name, (lhs, rhs) in changes.items()}


def test_phases_told_apart_are_told_apart() -> None:
    parts = waterfall_ms(
        deltas(
            step_time_ms=(10, 16),
            input_wait_ms=(1, 2),
            forward_ms=(2, 3),
            backward_ms=(3, 5),
            optimizer_ms=(1, 1),
            compute_ms=(6, 9),
        )
    )
    assert parts == {"input": 1, "forward": 1, "backward": 2, "optimizer": 0, "residual": 2}
    assert grouped_ms(parts) == {"input": 1, "compute": 3, "residual": 2}


def test_compute_stands_for_phases_that_one_side_lacks() -> None:
    parts = waterfall_ms(deltas(step_time_ms=(10, 16), forward_ms=(2, 3), compute_ms=(6, 9)))
    assert parts == {"compute": 3, "residual": 3}


@pytest.mark.parametrize(
    ("residual_ms", "expected"),
    [
        pytest.param((4, 9), {"communication": 3, "residual": 2}, id="fits beside compute"),
        pytest.param((1, 9), None, id="ran during compute"),
    ],
)
def test_communication_is_not_counted_twice(
    residual_ms: tuple[float, float], expected: dict[str, float] | None
) -> None:
    changes = deltas(step_time_ms=(10, 15), communication_ms=(2, 5), residual_ms=residual_ms)
    assert waterfall_ms(changes) == expected


def test_nothing_is_claimed_where_nothing_was_measured() -> None:
    assert waterfall_ms({}) is None
    assert waterfall_ms(deltas(step_time_ms=(1, 2))) is None
