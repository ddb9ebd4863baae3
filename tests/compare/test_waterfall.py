"""The parts of a change are told once each."""

from __future__ import annotations

import pytest

from traceml.compare.record import Delta
from traceml.compare.waterfall import grouped_ms, moved, waterfall_ms


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


@pytest.mark.parametrize(
    ("parts", "is_move"),
    [
        pytest.param({"input": -529.3, "backward": 7.9, "residual": 0.6}, False, id="removed"),
        pytest.param({"input": -20.0, "forward": 18.0, "residual": 0.0}, True, id="moved"),
        pytest.param({"forward": 9.0, "backward": -9.0, "residual": 0.0}, False,
                     id="within compute"),
        pytest.param({"input": -0.5, "forward": 0.5, "residual": 0.0}, False,
                     id="too little to matter"),
        pytest.param({"input": 0.0, "residual": 0.0}, False, id="nothing moved"),
    ],
)  # fmt: skip
def test_work_that_went_elsewhere_is_told_from_work_that_went(
    parts: dict[str, float], is_move: bool
) -> None:
    total = sum(parts.values())
    found = moved(parts, Delta.between(100.0, 100.0 + total))
    assert found is not None and found.moved is is_move
    assert found.added_ms + found.removed_ms == pytest.approx(total)
