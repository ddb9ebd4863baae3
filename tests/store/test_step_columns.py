"""Records by field are the same records, and take less room."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.model.record_layout import NOT_MEASURED
from traceml.store.records import STEP_DTYPE
from traceml.store.step_columns import columns_of
from traceml.store.step_records import WIDE, joined


@st.composite
def step_records(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Records whose fields are never measured, always the same, or anything."""
    steps = np.zeros(draw(st.integers(0, 12)), STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        kind = draw(st.sampled_from(["missing", "same", "anything"]))
        if kind == "missing" and steps[name].dtype.kind != "u":
            steps[name] = NOT_MEASURED
        elif kind == "same":
            steps[name] = draw(st.integers(0, 1 << 14))
        else:
            steps[name] = draw(
                st.lists(st.integers(0, 1 << 14), min_size=len(steps), max_size=len(steps))
            )
    return steps


@given(steps=step_records())
def test_nothing_is_lost(steps: npt.NDArray[Any]) -> None:
    columns = columns_of(steps)
    assert len(columns) == len(steps)
    for name in STEP_DTYPE.names or ():
        assert columns[name].tolist() == steps[name].tolist()
        assert columns[name].dtype == steps[name].dtype
    assert np.array(columns).tolist() == steps.tolist()
    assert columns_of(columns) is columns


@given(steps=step_records(), data=st.data())
def test_some_of_them_are_chosen_as_from_an_array(steps: npt.NDArray[Any], data: Any) -> None:
    columns = columns_of(steps)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps))), dtype=bool
    )
    for chosen in (mask, np.flatnonzero(mask), slice(1, None), slice(None, None, 2)):
        assert np.array(columns[chosen]).tolist() == steps[chosen].tolist()
    for place in {0, len(steps) - 1} if len(steps) else ():
        assert columns[place] == steps[place]
        assert columns[place - len(steps)] == steps[place]


def test_a_field_that_never_changes_takes_no_room() -> None:
    steps = np.zeros(100, STEP_DTYPE)
    steps["start_ns"] = np.arange(100)
    steps["rss_bytes"] = 1 << 40
    columns = columns_of(steps)
    assert columns.varying == ("start_ns",)
    assert columns.table.shape == (1, 100)
    assert set(columns.constants) == set(WIDE) - {"start_ns"}
    assert set(columns["rss_bytes"].tolist()) == {1 << 40}


def test_what_was_recorded_cannot_be_changed() -> None:
    steps = np.zeros(3, STEP_DTYPE)
    steps["wall_ns"] = [1, 2, 3]
    columns = columns_of(steps)
    for name in ("wall_ns", "samples"):
        with pytest.raises(ValueError, match="read-only"):
            columns[name][0] = 7


def test_a_name_that_no_record_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such_field"):
        columns_of(np.zeros(3, STEP_DTYPE))["no_such_field"]


@given(steps=step_records())
def test_a_field_that_is_the_same_in_all_records_may_be_had_as_one_number(
    steps: npt.NDArray[Any],
) -> None:
    columns = columns_of(steps)
    for name in STEP_DTYPE.names or ():
        found = columns.broadcastable(name)
        assert np.broadcast_to(found, len(steps)).tolist() == steps[name].tolist()
        if name in WIDE and len(set(steps[name].tolist())) == 1:
            assert isinstance(found, int)


@given(steps=step_records(), first=st.integers(0, 12), second=st.integers(0, 12))
def test_parts_of_records_are_joined_in_order(
    steps: npt.NDArray[Any], first: int, second: int
) -> None:
    first, second = sorted((first, second))
    parts = [steps[:first], steps[first:second], steps[second:]]
    assert joined(parts).tobytes() == steps.tobytes()
    assert len(joined([])) == 0
