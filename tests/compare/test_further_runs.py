"""How many more runs: a range that keeps its promise, and nothing where it cannot be said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.further_runs import (
    MAX_RUNS,
    FurtherRuns,
    Seen,
    chance_of_verdict,
    further_runs,
)
from traceml.compare.statistics import between_groups
from traceml.compare.terms import Terms
from traceml.compare.verdict_words import _range_words

TERMS = Terms()
PILOTS = 150
KEPT = 0.75
"""The upper end promises four of five; so many pilots tell it from three of four."""


def seen(worse_by: float, spread: float, runs: int = 3, paired: bool = False) -> Seen:
    return Seen(worse_by, spread, runs - 1 if paired else 2 * runs - 2, (runs, runs), paired)


def is_verdict(a: list[float], b: list[float]) -> bool:
    change = between_groups(a, b)
    assert change is not None
    return change.excludes_none or change.lies_between(1 / 1.01, 1.01)


def test_with_as_many_runs_as_the_upper_end_says_there_is_a_verdict_in_four_of_five_cases() -> None:
    """Real changes and spreads of many sizes, pilots of 3 + 3 runs that show nothing."""
    random = np.random.default_rng(5)
    asked = reached = 0
    while asked < PILOTS:
        change = random.uniform(-0.15, 0.15)
        spread = math.exp(random.uniform(math.log(0.003), math.log(0.05)))
        a, b = (
            list(np.exp(mean + spread * random.standard_normal(3 + MAX_RUNS)))
            for mean in (0.0, change)
        )
        if is_verdict(a[:3], b[:3]):
            continue
        pilot = between_groups(a[:3], b[:3])
        assert pilot is not None and pilot.log_spread is not None and pilot.freedom is not None
        told = further_runs(
            Seen(math.log(pilot.ratio), pilot.log_spread, pilot.freedom, (3, 3)), TERMS
        )
        if told is None:
            continue
        asked += 1
        reached += is_verdict(a[: 3 + told.high], b[: 3 + told.high])
    assert reached / asked >= KEPT


def test_the_lower_end_is_an_even_chance_and_the_upper_one_of_four_in_five() -> None:
    before = seen(0.02, 0.012)
    told = further_runs(before, TERMS)
    assert told is not None and told.low < told.high
    assert chance_of_verdict(before, TERMS, told.low) >= 0.5
    assert chance_of_verdict(before, TERMS, told.low - 1) < 0.5
    assert chance_of_verdict(before, TERMS, told.high) >= 0.8
    assert chance_of_verdict(before, TERMS, told.high - 1) < 0.8


def test_more_runs_are_needed_for_less_change_more_noise_and_pairs() -> None:
    plain, smaller, noisier = (
        further_runs(each, TERMS) for each in (seen(0.1, 0.05), seen(0.06, 0.05), seen(0.1, 0.08))
    )
    assert plain is not None and smaller is not None and noisier is not None
    assert plain.high < smaller.high and plain.high < noisier.high
    paired = further_runs(seen(0.1, 0.05, paired=True), TERMS)
    assert paired is not None and paired.high > plain.high


def test_runs_that_are_alike_need_as_many_as_show_that() -> None:
    told = further_runs(seen(0.0, 0.004), TERMS)
    assert told is not None and told.high < 30


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(seen(0.01, 0.1), id="ten times as much noise as change"),
        pytest.param(seen(0.0, 0.05), id="no change, and too noisy to show that"),
        pytest.param(seen(0.001, 0.2, runs=99), id="nearly as many as are advised already"),
    ],
)
def test_nothing_is_said_where_a_hundred_runs_are_too_few(before: Seen) -> None:
    assert further_runs(before, TERMS) is None


def test_what_is_allowed_for_the_worse_has_to_be_shown_or_exceeded() -> None:
    """Worse by 2.5 % where 3 % is allowed: half a percent has to be shown, not two and a half."""
    near_the_line = further_runs(seen(0.025, 0.01), Terms(max_regression=0.03))
    far_from_it = further_runs(seen(0.025, 0.01), Terms(max_regression=0.10))
    assert far_from_it is not None
    assert near_the_line is None or near_the_line.high > far_from_it.high


def test_no_spread_at_all_needs_one_more_run() -> None:
    assert further_runs(seen(0.02, 0.0), TERMS) == FurtherRuns(1, 1)


@pytest.mark.parametrize(
    ("further", "words"),
    [
        (FurtherRuns(1, 1), "1 more run per side would be enough in 4 of 5 such cases"),
        (
            FurtherRuns(1, 2),
            "1 to 2 more runs per side, by what these show: with 1, half of such cases or more "
            "have a verdict, with 2, 4 of 5 or more",
        ),
    ],
)
def test_one_more_run_reads_as_well_as_several(further: FurtherRuns, words: str) -> None:
    assert _range_words(further) == words
