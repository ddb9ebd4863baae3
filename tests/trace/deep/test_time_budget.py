from __future__ import annotations

from itertools import accumulate

import pytest

from traceml.trace.deep.time_budget import LAST_COSTS, MAX_OF_USUAL, TimeBudget, UsualCost


def charged(*costs: float) -> list[float]:
    cost = UsualCost()
    return [*accumulate(map(cost.charge, costs))]


def test_usual_costs_are_charged_whole() -> None:
    costs = [10.0, 12.0, 9.0, 11.0] * LAST_COSTS
    assert charged(*costs)[-1] == pytest.approx(sum(costs))


def test_an_interruption_is_charged_as_a_few_usual_costs() -> None:
    usual = [10.0] * (LAST_COSTS + 5)
    assert charged(*usual, 50_000.0)[-1] == sum(usual) + MAX_OF_USUAL * 10
    assert charged(*usual, 50_000.0, 10.0)[-1] == sum(usual) + MAX_OF_USUAL * 10 + 10


@pytest.mark.parametrize("place", range(3), ids=["first", "second", "third"])
def test_an_early_interruption_is_given_back_once_the_usual_is_known(place: int) -> None:
    costs = [10.0] * 6
    costs[place] = 50_000.0
    assert charged(*costs)[-1] == 50 + MAX_OF_USUAL * 10


def test_what_has_become_expensive_is_charged_whole_again() -> None:
    cheap, expensive = [10.0] * 30, [500.0] * 30
    total = charged(*cheap, *expensive)
    assert total[-1] - total[-11] == 10 * 500


def test_a_budget_allows_what_its_share_of_the_time_is() -> None:
    budget = TimeBudget(0.01, began_ns=1_000)
    assert budget.allows(1_000)
    budget.spend(50)
    assert not budget.allows(5_000)
    assert budget.allows(6_000)
    budget.spend(-20)
    assert budget.allows(4_000)


def test_a_head_start_allows_more_in_the_beginning_up_to_the_early_share() -> None:
    budget = TimeBudget(0.01, began_ns=1_000, head_start_ns=10_000, early_share=0.1)
    budget.spend(100)
    assert not budget.allows(1_900)  # 90 of 900
    assert budget.allows(2_000)
    budget.spend(100)
    assert not budget.allows(10_000)  # 190 of 19,000, of which 10,000 are the head start
    assert budget.allows(11_000)
