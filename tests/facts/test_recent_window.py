"""The last steps: those that show how the run is now, and since when a phase takes its time."""

from __future__ import annotations

import pytest

from factories import make_run
from replay import with_part
from traceml.facts.facts import StepWindow
from traceml.facts.recent_window import gather_recent, since_step
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


def now(run: RunRecords) -> StepWindow:
    return gather_recent(run).now.window


def since(run: RunRecords, phase: Phase | None, *ranks: int) -> int:
    parts = gather_recent(run).whole.step_table
    assert parts is not None
    return since_step(parts, phase, ranks)


def test_a_steady_run_is_now_as_it_was_all_the_time() -> None:
    recent = gather_recent(make_run(steps=100))
    assert recent.now is recent.whole


@pytest.mark.parametrize(
    ("input_ms", "part", "first"),
    [
        pytest.param(1.0, slice(70, None), 71, id="slower since step 71"),
        pytest.param(1.0, slice(0, 60), 61, id="faster since step 61"),
        pytest.param(1.0, slice(95, None), 1, id="too few slow steps to judge"),
    ],
)
def test_only_the_steps_since_the_pace_changed_show_how_it_is_now(
    input_ms: float, part: slice, first: int
) -> None:
    window = now(with_part(make_run(steps=100, input_ms=input_ms), "input", 40.0, part))
    assert window.first_step == first
    assert window.last_step == 100


def test_a_stall_that_happened_once_is_left_out() -> None:
    recent = gather_recent(with_part(make_run(steps=100), "input", 900.0, slice(50, 51)))
    assert recent.whole.window.steps_analyzed == 100
    assert recent.now.window.steps_analyzed == 99
    assert recent.now.mean.input_s == pytest.approx(0.001, rel=0.1)


def test_a_stall_that_happened_twice_counts() -> None:
    recent = gather_recent(with_part(make_run(steps=100), "input", 900.0, slice(20, 80, 40)))
    assert recent.now.mean.input_s == pytest.approx(0.019, rel=0.1)


def test_a_slow_beginning_is_neither_a_change_nor_now() -> None:
    recent = gather_recent(with_part(make_run(steps=16), "input", 900.0, slice(0, 5)))
    assert recent.whole.window.warmup_steps == 5
    assert recent.now.window.first_step == 6


@pytest.mark.parametrize(
    ("run", "phase", "ranks", "expected"),
    [
        pytest.param(
            with_part(make_run(steps=100), "input", 9.0, slice(40, None)),
            Phase.INPUT,
            (),
            41,
            id="where the phase grew",
        ),
        pytest.param(
            with_part(make_run(steps=100, h2d_ms=0.0), "h2d", 9.0, slice(40, None)),
            Phase.H2D,
            (),
            41,
            id="where the phase came from nothing",
        ),
        pytest.param(
            with_part(make_run(ranks=8, steps=100), "forward", 13.0, slice(40, None), ranks=[5]),
            Phase.FORWARD,
            (5,),
            41,
            id="where it grew on the rank that is named",
        ),
        pytest.param(
            with_part(make_run(steps=100), "input", 300.0, slice(30, None, 10)),
            Phase.INPUT,
            (),
            31,
            id="the first of many stalls",
        ),
        pytest.param(make_run(steps=100), Phase.FORWARD, (), 1, id="always there"),
        pytest.param(make_run(steps=100), Phase.H2D, (), 1, id="never measured"),
        pytest.param(
            make_run(steps=100, slowdown_at=60), None, (), 61, id="where all of the step grew"
        ),
    ],
)
def test_since_when_a_phase_takes_its_time(
    run: RunRecords, phase: Phase | None, ranks: tuple[int, ...], expected: int
) -> None:
    assert since(run, phase, *ranks) == expected
