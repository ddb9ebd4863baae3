"""A few odd steps are told from a loss that every step has."""

import pytest

from factories import make_late, make_run, map_steps, stall
from traceml.facts.few_steps import FewSteps, few_steps
from traceml.facts.gather import gather
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


def found(run: RunRecords, phase: Phase = Phase.RESIDUAL) -> FewSteps | None:
    parts = gather(run).step_table
    assert parts is not None
    return few_steps(parts, parts.phase(phase))


def test_one_stall_is_found_with_what_the_other_steps_take() -> None:
    few = found(stall(make_run(noise=0), "rest", 70, 150))
    assert few is not None
    assert few.numbers == (150,)
    assert few.lost_s == pytest.approx(70.001)
    assert few.step_s == pytest.approx(70.037)
    assert few.other_step_s == pytest.approx(0.037)
    assert few.other_lost_s == pytest.approx(0.001)
    assert few.words == "one step (number 150)"


def test_as_many_as_hold_half_of_it_are_named_in_order() -> None:
    run = stall(stall(make_run(), "input", 2, 181, 61), "input", 1.9, 121)
    few = found(run, Phase.INPUT)
    assert few is not None
    assert few.numbers == (61, 181)  # these two hold more than half of it
    assert few.words == "2 steps (numbers 61 and 181)"


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="every step the same"),
        pytest.param(stall(make_run(), "rest", 2, *range(20, 200, 20)), id="again and again"),
        pytest.param(stall(make_run(steps=19), "rest", 70, 10), id="too few steps to tell"),
        pytest.param(
            stall(make_run(rest_ms=400, noise=0), "rest", 70, 10), id="the others lose more"
        ),
        pytest.param(
            make_late(make_run(), 0, phase="rest", by_ms=50, since=100), id="from then on"
        ),
    ],
)
def test_a_loss_that_many_steps_have_is_not_a_few_steps(run: RunRecords) -> None:
    assert found(run) is None


def test_of_several_ranks_the_slowest_counts() -> None:
    def change(steps, rank):
        if rank == 1:
            for name in ("body_ns", "wall_ns"):
                steps[name][99] += 70 * 10**9

    few = found(map_steps(make_run(4, noise=0), change))
    assert few is not None
    assert (few.numbers, few.lost_s) == ((100,), pytest.approx(70.001))
