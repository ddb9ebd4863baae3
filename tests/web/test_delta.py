"""What a viewer is sent of a page that changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.figures.page import Axis, Lines, Series
from traceml.web.delta import apply, delta

NUMBERS = st.integers(2, 9) | st.floats(2, 3)
"""None is 0 or 1, which Python takes for truth values."""
PLAIN = st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "ü", "\u2028"])
NAMES = st.sampled_from(["a", "b", "c", "type"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN | st.lists(NUMBERS, max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=30,
)


@st.composite
def changed(draw: st.DrawFn) -> tuple[Any, Any]:
    """A value, and the same with some of it changed, cut, or going on."""
    before = draw(VALUES)
    return before, draw(_changed(before))


def _changed(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, dict):
        same = st.fixed_dictionaries({name: _changed(each) for name, each in value.items()})
        return same | same.map(lambda found: dict(list(found.items())[1:])) | VALUES
    if isinstance(value, list):
        same = st.tuples(*map(_changed, value)).map(list)
        longer = st.builds(lambda head, tail: head + tail, same, st.lists(VALUES, max_size=3))
        return same | longer | same.map(lambda found: found[: len(found) // 2])
    return st.just(value) | VALUES


@given(st.tuples(VALUES, VALUES) | changed())
def test_what_changed_makes_the_later_page_of_the_earlier(pages: tuple[Any, Any]) -> None:
    before, after = pages
    change = json.loads(json.dumps(delta(before, after)))
    assert apply(before, change) == after


@given(VALUES)
def test_nothing_is_sent_where_nothing_changed(value: Any) -> None:
    assert delta(value, json.loads(json.dumps(value))) is None


def lines(steps: int, last: float = 1.0) -> Any:
    values = (*(float(step) for step in range(steps - 1)), last)
    series = tuple(Series(name, "input", values) for name in ("input", "forward"))
    figure = Lines(
        "step_time", "Step time", Axis("step"), Axis("time", "ms"), values, series, stacked=True
    )
    return msgspec.to_builtins(figure)


def test_a_series_that_grew_costs_what_is_new() -> None:
    change = delta(lines(1000), lines(1002))
    sent = msgspec.json.encode(change)
    assert len(sent) < 300
    before, after = (json.loads(msgspec.json.encode(lines(steps))) for steps in (1000, 1002))
    assert apply(before, json.loads(sent)) == after


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"a": 2}, {"a": 3}, {"keys": {"a": {"set": 3}}, "drop": []}),
        ({"a": 2, "b": 3}, {"b": 3}, {"keys": {}, "drop": ["a"]}),
        ((2, 3, 4), (2, 3, 5, 6), {"from": 2, "tail": (5, 6)}),
        ([2, 3, 4], [2], {"from": 1, "tail": []}),
        ([2, 3], [4, 5], {"set": [4, 5]}),
        ([{"a": 2}, {"a": 3}], [{"a": 2}], {"from": 1, "tail": []}),
        (
            [{"a": 2}, {"a": 3}],
            [{"a": 2}, {"a": 4}, {"a": 5}],
            {
                "items": {"1": {"keys": {"a": {"set": 4}}, "drop": []}, "2": {"set": {"a": 5}}},
                "length": 3,
            },
        ),
        ([2] * 40, [3] + [2] * 39, {"items": {"0": {"set": 3}}, "length": 40}),
        (2, [2], {"set": [2]}),
        ({"a": None}, {"a": None}, None),
    ],
    ids=[
        "a field",
        "a field that is gone",
        "an array that goes on",
        "an array cut short",
        "another array",
        "objects cut short",
        "an object among others, and a new one",
        "one number among many",
        "another kind of value",
        "nothing",
    ],
)
def test_each_kind_of_change_has_its_form(before: Any, after: Any, change: Any) -> None:
    assert delta(before, after) == change
