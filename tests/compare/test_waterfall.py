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


STEP = (100.0, 100.0)


@pytest.mark.parametrize(
    ("changes", "is_move"),
    [
        pytest.param({"input_wait_ms": (531.6, 2.3), "compute_ms": (31.0, 38.9)}, False,
                     id="removed"),
        pytest.param({"input_wait_ms": (40, 20), "compute_ms": (20, 38)}, True, id="moved"),
        pytest.param({"input_wait_ms": (60, 20), "compute_ms": (20, 48)}, False,
                     id="a part was moved, most of it is gone"),
        pytest.param({"forward_ms": (10, 19), "backward_ms": (20, 11), "optimizer_ms": (1, 1),
                      "compute_ms": (31, 31)}, False, id="within compute"),
        pytest.param({"input_wait_ms": (1, 0.5), "h2d_ms": (0.5, 1)}, False,
                     id="too little to matter"),
        pytest.param({"input_wait_ms": (4, 4), "compute_ms": (9, 9)}, False, id="nothing moved"),
        pytest.param({"input_wait_ms": (10, 0), "h2d_ms": (0, 10)}, True,
                     id="to a phase that was none"),
    ],
)  # fmt: skip
def test_work_that_went_elsewhere_is_told_from_work_that_went(
    changes: dict[str, tuple[float, float]], is_move: bool
) -> None:
    inside_compute = ("forward_ms", "backward_ms", "optimizer_ms")
    outer = [change for name, change in changes.items() if name not in inside_compute]
    step = 100.0, 100.0 + sum(rhs - lhs for lhs, rhs in outer)
    metrics = deltas(step_time_ms=step, **changes)
    found = moved(waterfall_ms(metrics), metrics, lambda change: bool(change.delta))
    assert found is not None and found.moved is is_move
    assert found.added_ms + found.removed_ms == pytest.approx(step[1] - step[0])


def test_what_may_be_chance_is_not_called_moved() -> None:
    metrics = deltas(step_time_ms=STEP, input_wait_ms=(40, 20), compute_ms=(20, 40))
    found = moved(waterfall_ms(metrics), metrics, lambda change: (change.delta or 0) < 0)
    assert found is not None and not found.moved
