"""The rows and columns of the list of runs, and groups of them."""

from __future__ import annotations

import math

import pytest

from traceml.compare.run_groups import RunGroup, aggregate
from traceml.figures.run_list_page import (
    ROW_FACTS,
    group_columns,
    group_filter,
    group_rows,
    groupings,
    list_columns,
    list_rows,
)
from traceml.model.run_values import RunValue
from traceml.store.query_language import AllOf, parse_filter


def cells(key: str, *values: RunValue | None) -> list[object]:
    """What a column shows."""
    facts = {fact: [None] * len(values) for fact in ROW_FACTS}
    names = [f"run {place}" for place in range(len(values))]
    return [row.cells[0] for row in list_rows(names, [key], [values], facts)]


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("params.lr", 4e-8, "4e-8"),
        ("params.lr", 0.1 + 0.2, "0.3"),
        ("metrics.loss", 2.123456789012345e-8, "2.123e-8"),
        ("metrics.loss", math.nan, "NaN"),
        ("metrics.loss", math.inf, "infinite"),
        ("metrics.loss", 1e308, "1e308"),
        ("facts.step_time_ms", 43.78, "43.8 ms"),
        ("facts.duration_s", 200.0, "3 min 20 s"),
        ("params.on", True, "true"),
        ("params.text", "a\nb\x1b[31m", "a b"),
        ("params.text", "x" * 500, "x" * 199 + "…"),
    ],
)
def test_a_value_is_written_as_people_read_it(key: str, value: RunValue, shown: str) -> None:
    (found,) = cells(key, value)
    assert str(found).startswith(shown)
    assert str(found).isprintable()


def test_a_moment_stays_a_number_for_the_readers_own_time_zone() -> None:
    assert cells("facts.started", 1.8e9, None, math.nan) == [1.8e9, None, None]


def test_a_row_of_which_nothing_is_known_is_a_row() -> None:
    (row,) = list_rows(["x"], [], [], {fact: [None] for fact in ROW_FACTS})
    assert (row.state, row.severity, row.tags, row.note, row.why) == ("lost", "muted", (), None, "")


def test_columns_that_would_be_called_the_same_have_their_whole_names() -> None:
    keys = ["facts.name", "params.lr", "metrics.lr", "metrics.loss"]
    heads = list_columns(keys, [["a"], [0.1], [0.2], [1, "nan"]])
    assert [head.label for head in heads] == ["Run", "params.lr", "metrics.lr", "loss"]
    assert [head.kind for head in heads] == ["name", "number", "number", "text"]
    assert heads[1].title == "the parameter lr"


def test_a_group_shows_mean_interval_and_best() -> None:
    values = {"params.lr": 0.1}
    group = RunGroup(values, (0, 1, 2), {"metrics.loss": aggregate([1.0, 2.0, 3.0], False)})
    heads = group_columns(["params.lr"], ["metrics.loss"], [group])
    assert [head.label for head in heads] == ["lr", "Runs", "loss, mean ± 95% CI", "Best"]
    assert [head.can_sort for head in heads] == [True, False, True, False]
    (row,) = group_rows([group], ["params.lr"], ["metrics.loss"], ["a", "b", "c"], "lr > 0")
    assert row.cells == ("0.1", "3", "2 ± 2.484", "1")
    assert (row.count, row.names) == (3, ("a", "b", "c"))
    assert row.filter == "(lr > 0) and params.lr = 0.1"


@pytest.mark.parametrize(
    "value", [None, True, 0.1, 3, -4e-8, math.nan, math.inf, 'say "x\\"', "", ("good", 'a"b')]
)
def test_the_filter_of_a_group_can_be_read(value: RunValue | None) -> None:
    found = parse_filter(group_filter({"params.a name": value, "facts.status": "finished"}))
    conditions = len(value) if isinstance(value, tuple) else 1
    assert isinstance(found, AllOf) and len(found.parts) == conditions + 1


def test_ways_to_group_leave_out_what_only_repeats_a_run() -> None:
    found = groupings(["params.lr", "params.seed"], ["facts.status"])
    assert [each.key for each in found] == [
        "all-but:params.seed",
        "params.lr",
        "params.seed",
        "status",
    ]
    assert found[0].label == "All parameters but seed"
