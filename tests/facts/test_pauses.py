"""Pauses are counted, measured, and charged with what they made late."""

from typing import Any

import pytest

from factories import make_run, map_steps, spend
from traceml.facts.gather import gather
from traceml.facts.pauses import Pauses, pauses
from traceml.store.records import RunRecords


def found(run: RunRecords) -> Pauses:
    parts = gather(run).step_table
    assert parts is not None
    seen = pauses(parts, "gc_ns")
    assert seen is not None
    return seen


def test_a_step_that_several_ranks_take_counts_once() -> None:
    seen = found(spend(make_run(ranks=2, noise=0), "gc", 30, every=10))
    assert (seen.steps, seen.steps_seen) == (20, 200)
    assert seen.usual_s == pytest.approx(0.030)
    assert seen.longest_s == pytest.approx(0.030)


@pytest.mark.parametrize(
    ("steps", "places", "every"),
    [
        pytest.param(18, (3, 6, 9, 12, 15), 3.0, id="the one after the last step is in none"),
        pytest.param(100, (9, 19, 29, 39, 49, 59, 69, 79, 89, 99), 10.0, id="ten epochs"),
        pytest.param(100, (1, 2), 50.0, id="in the first steps alone"),
        pytest.param(100, (97, 98), 50.0, id="in the last steps alone"),
        pytest.param(100, (40,), 100.0, id="once"),
    ],
)
def test_the_distance_of_pauses_is_that_between_two(
    steps: int, places: tuple[int, ...], every: float
) -> None:
    def pause(rows: Any, _: int) -> None:
        rows["gc_ns"][list(places)] = 30_000_000

    assert found(map_steps(make_run(steps=steps, noise=0), pause)).every_steps == every


def test_a_pause_now_and_then_makes_its_own_step_late() -> None:
    assert found(spend(make_run(noise=0), "gc", 30, every=10)).late_s == pytest.approx(0.003)


def test_a_pause_that_the_gpu_hides_makes_nothing_late() -> None:
    run = make_run(gpu=True, noise=0)
    assert found(spend(run, "gc", 30, every=10, hidden=True)).late_s == 0.0
    assert found(spend(run, "gc", 30, every=10)).late_s == pytest.approx(0.003)


def test_a_late_step_is_charged_with_no_more_than_its_pause() -> None:
    late = found(spend(make_run(noise=0, first_step_ms=50, steps=9), "gc", 1, every=9)).late_s
    assert late <= 0.001


def test_what_was_never_measured_has_no_pauses() -> None:
    parts = gather(make_run()).step_table
    assert parts is not None
    assert pauses(parts, "logging_ns") is None
