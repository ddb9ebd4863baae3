"""Changes of the level of a series of runs: found where they are, and not found where none is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from traceml.compare.change_points import LEVEL, MIN_RUNS, find_changes, levels, unit_starts

SERIES = 300


def noise(random: np.random.Generator, kind: str, length: int) -> npt.NDArray[np.float64]:
    if kind == "normal":
        return random.standard_normal(length)
    if kind == "heavy tails":
        return random.standard_t(3, length)
    return random.exponential(1.0, length) * (1 + 9 * (random.random(length) < 0.1))


def series(*stretches: tuple[int, float], noise_share: float, seed: int = 0) -> list[float]:
    """So many runs at each level, with normal noise."""
    random = np.random.default_rng(seed)
    base = np.concatenate([np.full(runs, mean) for runs, mean in stretches])
    return (base * np.exp(noise_share * random.standard_normal(len(base)))).tolist()


def places(values: list[float], codes: list[int] | None = None) -> list[int]:
    return [change.place for change in find_changes(values, codes or list(range(len(values))))]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "outliers on one side"])
def test_equal_series_have_a_change_no_more_often_than_the_level_says(kind: str):
    """With 1 % of false alarms, more than ten of three hundred have a chance of 0.03 %."""
    random = np.random.default_rng(1)
    alarms = 0
    for _ in range(SERIES):
        length = int(random.integers(MIN_RUNS, 40))
        values = np.exp(3 + 0.02 * noise(random, kind, length)).tolist()
        codes = np.sort(random.integers(0, length, length)).tolist()  # some commits have many runs
        alarms += bool(places(values, codes))
    assert alarms <= SERIES * LEVEL + 7


def test_runs_of_a_commit_that_share_the_state_of_the_machine_are_no_change():
    """Three runs per commit; commits differ by chance, and more than their own runs do."""
    random = np.random.default_rng(2)
    alarms = 0
    for _ in range(SERIES):
        commits = int(random.integers(MIN_RUNS, 20))
        codes = np.repeat(np.arange(commits), 3)
        logs = 0.02 * random.standard_normal(commits)[codes]
        values = np.exp(logs + 0.003 * random.standard_normal(len(codes))).tolist()
        alarms += bool(places(values, codes.tolist()))
    assert alarms <= SERIES * LEVEL + 7


@pytest.mark.parametrize("commits", [2, 3, 6, 11])
def test_few_commits_whose_runs_share_the_state_of_the_machine_are_no_change(commits: int):
    """Six runs per commit, one session after the other; between sessions the machine differs."""
    random = np.random.default_rng(4)
    codes = np.repeat(np.arange(commits), 6)
    for _ in range(20):
        logs = 0.02 * random.standard_normal(commits)[codes]
        values = np.exp(logs + 0.005 * random.standard_normal(len(codes))).tolist()
        started = list(map(float, range(len(codes))))
        assert find_changes(values, codes.tolist(), started=started) == []


@pytest.mark.parametrize(
    ("in_time", "units"),
    [("ABBAABBAABBA", 12), ("AAABBB" * 2, 2), ("A" * 6 + "B" * 6, 2), ("ABCABCABCABC", 3)],
    ids=["in turn, as bench does", "three in a row", "a session each", "three versions"],
)
def test_runs_are_units_where_two_versions_alternated_in_time(in_time: str, units: int):
    order = sorted(range(12), key=lambda moment: in_time[moment])
    codes = [ord(in_time[moment]) for moment in order]
    assert len(unit_starts(codes, list(map(float, order)))) == units
    assert len(unit_starts(codes)) == len(set(in_time))


def test_autocorrelated_series_have_a_change_no_more_often_than_the_level_says():
    """AR(1) with 0.3, as of a machine whose state lasts longer than a run; the permutation of the
    runs themselves finds a change in a tenth of these."""
    random = np.random.default_rng(5)
    alarms = 0
    for _ in range(SERIES):
        fresh = random.standard_normal(int(random.integers(MIN_RUNS, 100)))
        logs = fresh.copy()
        for n in range(1, len(logs)):
            logs[n] = 0.3 * logs[n - 1] + fresh[n]
        alarms += bool(places(np.exp(3 + 0.01 * logs).tolist()))
    assert alarms <= SERIES * LEVEL + 7


def test_a_change_between_commits_of_several_runs_is_at_the_first_run_of_one():
    values = series((18, 20.0), (18, 21.0), noise_share=0.005)
    codes = [n // 3 for n in range(36)]
    (change,) = find_changes(values, codes)
    assert change.place == 18 and change.earliest <= 18 <= change.latest
    assert {change.earliest % 3, change.latest % 3} == {0}


def test_levels_are_those_of_the_changes_beside_them():
    """However many runs one of the commits has, as after a benchmark of it."""
    codes = [*([0] * 20), *range(1, 24)]
    values = [20.0 * 1.02] * 20 + series((11, 20.0), (12, 24.0), noise_share=0.005)
    (change,) = find_changes(values, codes)
    before, after = levels(values, [change], codes)
    assert (before.mean, after.mean) == pytest.approx((change.before, change.after))
    assert (before.first, before.end, after.end) == (0, change.place, len(values))


def test_a_change_is_found_where_it_is_with_its_size():
    (change,) = find_changes(series((15, 20.0), (12, 21.0), noise_share=0.005), list(range(27)))
    assert change.place == 15
    assert change.earliest <= 15 <= change.latest
    assert change.ratio_interval is not None
    assert change.ratio_interval[0] < 1.05 < change.ratio_interval[1]
    assert change.p < LEVEL
    low, high = change.difference_interval
    assert low < change.difference < high and low == pytest.approx(1.0, abs=0.2)


def test_a_slowdown_that_was_mended_later_is_two_changes():
    assert places(series((20, 20.0), (8, 22.0), (21, 20.0), noise_share=0.01)) == [20, 28]


def test_steps_up_are_all_found():
    values = series((15, 20.0), (14, 22.0), (16, 25.0), noise_share=0.01)
    assert places(values) == [15, 29]
    codes = list(range(len(values)))
    found = levels(values, find_changes(values, codes), codes)
    assert [(level.first, level.end) for level in found] == [(0, 15), (15, 29), (29, 45)]
    assert [round(level.mean) for level in found] == [20, 22, 25]


@pytest.mark.parametrize(
    "means",
    [
        [100 * 1.05**n for n in range(6)],
        [100 * 1.05**n for n in range(30)],
        [100, 110] * 4,
        [100, 110] * 10,
    ],
    ids=["6 stairs", "30 stairs", "8 in turn", "20 in turn"],
)
def test_all_of_many_changes_are_found(means: list[float]):
    values = series(*((6, mean) for mean in means), noise_share=0.005)
    assert places(values) == list(range(6, len(values), 6))


def test_the_newest_change_is_found_with_three_runs_after_many_others():
    """It is judged by the noise of all runs, not by that of its own piece."""
    better = [(10, 100 * 0.95**n) for n in range(7)]
    found = 0
    for seed in range(10):
        values = series(*better, (3, better[-1][1] * 1.05), noise_share=0.01, seed=seed)
        found += 70 in places(values)
    assert found >= 8


def test_levels_without_noise_are_found():
    """The peak of memory, say: equal to the byte in most runs."""
    assert places([100.0] * 20 + [110.0] * 9 + [105.0] * 11) == [20, 29]


def test_one_slow_run_is_no_change():
    values = series((30, 20.0), noise_share=0.01)
    values[12] = 60.0
    assert places(values) == []


def test_runs_of_the_same_code_are_not_divided():
    """The level changes within the runs of the first version; the code cannot be why."""
    values = series((8, 20.0), (4, 21.0), (12, 30.0), noise_share=0.01)
    assert places(values) == [8, 12]
    codes = [0] * 12 + [1] * 12
    started = [float(2 * (n % 12) + codes[n]) for n in range(24)]
    assert len(unit_starts(codes, started)) == 24
    found = find_changes(values, codes, started=started)
    assert [change.place for change in found] == [12]


def test_a_clear_change_below_the_smallest_that_counts_is_none():
    values = series((20, 20.0), noise_share=0.0005) + series((20, 20.1), noise_share=0.0005, seed=1)
    codes = list(range(40))
    assert find_changes(values, codes) == []
    (change,) = find_changes(values, codes, min_change=0.001)
    assert change.place == 20


def test_scaling_all_values_moves_no_change():
    values = series((15, 20.0), (12, 21.0), noise_share=0.01)
    assert places([1000 * value for value in values]) == places(values) == [15]


def test_values_around_zero_have_a_difference_and_no_ratio():
    random = np.random.default_rng(3)
    values = np.concatenate([random.normal(-1, 0.2, 15), random.normal(1, 0.2, 15)]).tolist()
    (change,) = find_changes(values, list(range(30)))
    assert change.place == 15 and change.ratio is None and change.ratio_interval is None
    assert change.difference_interval[0] < 2.0 < change.difference_interval[1]


def test_an_uncertain_place_has_an_interval_around_it():
    """The noise is as large as the change: the place is known to some runs only."""
    values = series((60, 20.0), (61, 21.0), noise_share=0.05)
    (change,) = find_changes(values, list(range(121)))
    assert change.earliest < change.place or change.place < change.latest
    assert change.earliest <= 60 <= change.latest


@pytest.mark.parametrize(
    "values",
    [[], [20.0], [20.0] * 4 + [30.0] * 5, [20.0] * 50],
    ids=["no run", "one run", "too few runs", "the same value in all"],
)
def test_nothing_is_found_in_what_says_nothing(values: list[float]):
    assert places(values) == []
