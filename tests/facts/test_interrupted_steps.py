from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layer_runs import layer_records
from traceml.facts.interrupted_steps import without_interrupted
from traceml.facts.layers import layer_profile
from traceml.store.layer_records import LayerRecords

USUAL = 10.0


def run_of(*took: float, hit: float = 100.0, usual: float = USUAL) -> LayerRecords:
    """Steps of a layer `a`, which takes 2 ms, and `hit` in the longest of them; 1 ms lies in no
    layer."""
    record = layer_records(
        steps=len(took),
        forward_ms={"a": 2.0, "b": 3.0},
        took_ns=np.array(took),
        usual_ns=np.full(len(took), usual),
        outside_ns={"host_forward": np.full(len(took), 1e6)},
    )
    record.times_ns["host_forward"][np.argmax(took), 0] = hit * 1e6
    return record


def own_ms(record: LayerRecords) -> dict[str, float]:
    return {
        each.name: each.own_s["forward"] * 1e3 for each in layer_profile([record], {0: 0}).layers
    }


def test_an_interrupted_step_is_in_no_layers_time_and_is_told() -> None:
    record = run_of(11, 10, 62, 11)
    assert own_ms(record) == pytest.approx({"a": 2.0, "b": 3.0})
    given = replace(record, given_elements=np.array([1.0, 2.0, 3.0, 4.0]))
    assert without_interrupted(given).given_elements.tolist() == [1, 2, 4]
    profile = layer_profile([record], {0: 0})
    assert profile.steps == 3
    assert profile.rest_s["forward"] == pytest.approx(1e-3)
    assert any("1 of 4 steps looked at" in note for note in profile.notes), profile.notes
    assert all(each.stderr_s == pytest.approx(0.0, abs=1e-12) for each in profile.layers)


@pytest.mark.parametrize(
    "took",
    [
        pytest.param((11, 10, 29, 11), id="below three times"),
        pytest.param((40, 41, 45, 43), id="looking itself makes all of them long"),
        pytest.param((11, 10, 62, 70), id="more than a quarter of the steps"),
        pytest.param((11, 62), id="one of two"),
        pytest.param((11, np.nan, 62, 11, 10), id="a length is not known"),
    ],
)
def test_every_step_counts_where_none_stands_out(took: tuple[float, ...]) -> None:
    record = run_of(*took)
    assert without_interrupted(record) is record
    assert not any("Left out" in note for note in layer_profile([record], {0: 0}).notes)


def test_rows_of_several_steps_are_kept() -> None:
    """In a long run they are means, in which nothing can be told apart any more."""
    record = layer_records(
        forward_ms={"a": 2.0},
        took_ns=np.array([11.0, 10, 62, 11]),
        usual_ns=np.full(4, USUAL),
        row_steps=np.array([1, 2, 1, 1]),
    )
    assert without_interrupted(record) is record
    record = layer_records(
        forward_ms={"a": 2.0},
        took_ns=np.array([11.0, 10, 62, 11]),
        usual_ns=np.full(4, USUAL),
        row_steps=np.ones(4, int),
    )
    assert list(without_interrupted(record).row_steps) == [1, 1, 1]


def test_records_without_lengths_are_kept() -> None:
    """As versions wrote them that did not note how long a step took."""
    record = layer_records(forward_ms={"a": 2.0})
    assert without_interrupted(record) is record


def test_each_rank_is_judged_by_its_own_steps() -> None:
    quiet = layer_records(
        pid=1, forward_ms={"a": 2.0, "b": 3.0}, took_ns=np.full(4, 11.0), usual_ns=np.full(4, USUAL)
    )
    profile = layer_profile([run_of(11, 10, 62, 11), quiet], {0: 0, 1: 1})
    assert profile.steps == 3
    assert {each.name: each.own_s["forward"] * 1e3 for each in profile.layers} == pytest.approx(
        {"a": 2.0, "b": 3.0}
    )
    assert any("1 of 8 steps looked at" in note for note in profile.notes)
