"""Columns of runs as charts draw them: numbers, dates, categories, and what has no place."""

from __future__ import annotations

import math

import msgspec
import pytest

from listed_runs import list_run, metric
from traceml.api.query_runs import RunQuery, RunSearch
from traceml.figures.explored_columns import MAX_CATEGORIES, explored_column, label_of


def test_numbers_stay_numbers_and_what_is_missing_is_said() -> None:
    column = explored_column("params.lr", [0.1, None, 1, math.nan, math.inf, 1e308])
    assert column.kind == "number"
    assert column.values == (0.1, None, 1.0, None, None, None)
    assert column.left_out == "1 without a value, 3 with NaN or an infinite value, of 6 runs"


def test_texts_that_are_numbers_are_numbers() -> None:
    column = explored_column("params.lr", ["1e-3", 0.5])
    assert (column.kind, column.values) == ("number", (0.001, 0.5))


def test_few_words_among_numbers_make_categories() -> None:
    column = explored_column("params.k", [4, "auto", 16, "auto", None])
    assert column.kind == "category"
    assert [each.label for each in column.categories] == ["4", "16", "auto"]
    assert column.values == (0.0, 2.0, 1.0, 2.0, None)


def test_a_word_among_many_numbers_is_left_out_and_said() -> None:
    column = explored_column("params.k", [*range(20), "auto"])
    assert column.kind == "number"
    assert column.values[-1] is None
    assert column.left_out == "1 with words among the numbers, of 21 runs"


def test_true_is_not_one() -> None:
    column = explored_column("params.flag", [True, False, 1])
    assert [each.condition for each in column.categories] == [
        "params.flag = false",
        "params.flag = true",
        "params.flag = 1",
    ]
    assert column.values == (1.0, 0.0, 2.0)


def test_rare_values_share_a_place() -> None:
    values = [f"run-{number}" for number in range(100)]
    column = explored_column("params.name", [*values, "run-7"])
    assert len(column.categories) == MAX_CATEGORIES
    assert column.categories[-1].label == "61 other values"
    assert set(column.values) == set(map(float, range(MAX_CATEGORIES)))


@pytest.mark.parametrize(
    ("key", "values", "unit", "shown"),
    [
        ("facts.peak_memory_bytes", [2 << 30, 1 << 30], "GiB", (2.0, 1.0)),
        ("facts.duration_s", [7200.0, 14400.0], "h", (2.0, 4.0)),
        ("facts.step_time_ms", [20.5], "ms", (20.5,)),
        ("facts.bytes_per_s", [7200.0], "", (7200.0,)),
        ("params.window_s", [7200.0], "", (7200.0,)),
    ],
)
def test_a_fact_is_shown_in_the_unit_that_its_name_ends_with(
    key: str, values: list[float], unit: str, shown: tuple[float, ...]
) -> None:
    column = explored_column(key, values)
    assert (column.unit, column.values) == (unit, shown)


def test_a_start_is_a_moment_with_all_its_digits() -> None:
    column = explored_column("facts.started", [1_763_300_123.25, None])
    assert (column.kind, column.values) == ("moment", (1_763_300_123.25, None))


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        ([1e-5, 1e-4, 1e-3, 1e-2], True),
        ([16, 32, 64, 128, 256], False),
        ([0.0, 1e-5, 1e-2], False),
        ([-1.0, 1e4], False),
        ([5.0, 5.0], False),
        ([], False),
    ],
)
def test_values_over_decades_lie_on_a_log_axis(values: list[float], is_log: bool) -> None:
    assert explored_column("params.lr", values).is_log is is_log


def test_names_are_on_one_line_and_short() -> None:
    assert label_of("params.lr") == "lr"
    assert label_of("min.val/loss") == "val/loss (min)"
    long = label_of("metrics." + "x" * 100 + "\n<b>" + "y" * 100)
    assert "\n" not in long and len(long) <= 40


HOSTILE = ['say "hi"', "back\\slash", "<img src=x onerror=hurt()>", "a\nb", "naïve 🚀", "x" * 200]


def test_every_condition_finds_the_runs_of_its_category(tmp_path) -> None:
    """Also with names and values that a filter has to quote."""
    name = 'odd "name"/<b>, or'
    values = [*HOSTILE, True, False, 3, "3.5", "-inf"]
    for number, value in enumerate(values):
        list_run(tmp_path, f"r{number}", {name: value}, {"loss": metric(0.1)})
    search = RunSearch(tmp_path)
    found = search.search(RunQuery())
    key = f"params.{name}"
    column = explored_column(key, found.column(key))
    assert len(column.categories) == len(values)
    for place, category in enumerate(column.categories):
        expected = {n for n, v in zip(found.names, column.values, strict=True) if v == place}
        assert set(search.search(RunQuery(category.condition)).names) == expected, category


def test_the_condition_of_other_values_finds_them(tmp_path) -> None:
    for number in range(45):
        list_run(tmp_path, f"r{number}", {"kind": f"k{number}"})
    list_run(tmp_path, "none", {})
    search = RunSearch(tmp_path)
    found = search.search(RunQuery())
    column = explored_column("params.kind", found.column("params.kind"))
    others = search.search(RunQuery(column.categories[-1].condition))
    last = float(MAX_CATEGORIES - 1)
    expected = {n for n, v in zip(found.names, column.values, strict=True) if v == last}
    assert set(others.names) == expected
    assert len(expected) == 6


def test_ten_thousand_runs_are_sent_in_few_bytes_each() -> None:
    numbers = explored_column("metrics.loss", [math.sqrt(number) for number in range(10_000)])
    words = explored_column("params.kind", [f"kind {number % 9}" for number in range(10_000)])
    assert len(msgspec.json.encode(numbers)) < 11 * 10_000
    assert len(msgspec.json.encode(words)) < 5 * 10_000
