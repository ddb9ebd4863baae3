"""What changed between two JSON documents, tables, confusion matrices or curves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.compare.artifact_details import ValueChange
from traceml.compare.curve_changes import compare_curves, curve_of_json, curve_of_table
from traceml.compare.value_changes import compare_json, compare_tables

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_a_document_is_the_same_as_itself(document):
    found = compare_json(document, document)
    assert (found.changed, found.added, found.removed, found.values) == (0, 0, 0, ())


@given(DOCUMENTS, DOCUMENTS)
def test_swapping_the_sides_mirrors_the_change(a, b):
    there, back = compare_json(a, b), compare_json(b, a)
    assert (there.added, there.removed) == (back.removed, back.added)
    assert (there.changed, there.same) == (back.changed, back.same)


def test_values_are_found_by_their_paths():
    a = {"lr": 0.1, "layers": [1, 2], "old": {}, "on": True}
    b = {"lr": 0.2, "layers": [1, 2, 3], "new": None, "on": 1}
    assert compare_json(a, b).values == (
        ValueChange("lr", "changed", 0.1, 0.2),
        ValueChange("old", "removed", lhs="{}"),
        ValueChange("on", "changed", True, 1),
        ValueChange("layers[2]", "added", rhs=3),
        ValueChange("new", "added"),
    )


def test_values_that_no_strict_json_holds_are_text():
    (value,) = compare_json({"x": math.nan}, {"x": math.inf}).values
    assert (value.lhs, value.rhs) == ("nan", "inf")
    (value,) = compare_json([2**80], ["x" * 1000]).values
    assert value.lhs == "an integer of 81 bits"
    assert len(value.rhs) == 300


def table(text):
    return [line.split(",") for line in text.split()]


def test_rows_are_paired_by_a_column_of_unique_names():
    found = compare_tables(
        table("name,f1,n cat,0.5,10 dog,0.7,10 old,1,1"),
        table("name,n,f1 dog,10.0,0.9 cat,10,0.5 new,1,1"),
    )
    assert (found.paired_by, found.added_rows, found.removed_rows) == ("name", 1, 1)
    assert (found.added_columns, found.removed_columns) == ((), ())
    assert found.changed_cells == 1
    assert found.cells == (ValueChange("name dog, f1", "changed", "0.7", "0.9"),)
    (column,) = found.columns
    assert (column.name, column.changed) == ("f1", 1)
    assert column.lhs_mean == pytest.approx((0.5 + 0.7 + 1) / 3)


def test_rows_without_names_are_paired_by_their_number():
    found = compare_tables(table("x,y 0.1,1 0.2,2"), table("x,z 0.1,1 0.3,2 0.4,3"))
    assert (found.paired_by, found.changed_cells, found.added_rows) == ("row", 1, 1)
    assert (found.added_columns, found.removed_columns) == (("z",), ("y",))


@pytest.mark.parametrize("rows", [[], [[]], [["a"]], [["a", "a"], ["1"]], [["", ""], ["1", "2"]]])
def test_odd_tables_are_the_same_as_themselves(rows):
    assert compare_tables(rows, rows).changed_cells == 0
    compare_tables(rows, [["a", "b"], ["1", "2"], ["3"]])


def numbers(change):
    return {each.name: (each.lhs, each.rhs) for each in change.numbers}


def test_a_confusion_matrix_gives_accuracy_recall_and_precision():
    a = {"labels": ["cat", "dog"], "confusion_matrix": [[8, 2], [5, 5]]}
    b = {"labels": ["cat", "dog"], "confusion_matrix": [[9, 1], [0, 0]]}
    change = compare_curves(curve_of_json(a), curve_of_json(b))
    assert change.shape == "confusion_matrix"
    found = numbers(change)
    assert found["accuracy"] == (0.65, 0.9)
    assert found["recall of cat"] == (0.8, 0.9)
    assert found["precision of cat"] == (pytest.approx(8 / 13), 1.0)
    assert found["recall of dog"] == (0.5, None)


def test_a_table_can_be_a_confusion_matrix():
    found = curve_of_table(table("true,cat,dog cat,8,2 dog,5,5"))
    assert found.shape == "confusion_matrix"
    assert found.numbers["recall of dog"] == 0.5


def test_the_area_under_a_roc_curve_in_either_direction():
    there = {"fpr": [0, 0, 0.5, 0.5, 1], "tpr": [0, 0.5, 0.5, 1, 1]}
    back = {name: values[::-1] for name, values in there.items()}
    assert curve_of_json(there).numbers == curve_of_json(back).numbers == {"area": 0.75}
    rows = [["fpr", "tpr"], *([str(x), str(y)] for x, y in zip(*there.values(), strict=True))]
    assert curve_of_table(rows).numbers == {"area": 0.75}


def test_average_precision_is_that_of_its_steps():
    """Of the labels 0, 0, 1, 1 at the scores 0.1, 0.4, 0.35, 0.8, as scikit-learn has it."""
    curve = {"precision": [0.5, 2 / 3, 0.5, 1, 1], "recall": [1, 1, 0.5, 0.5, 0]}
    found = curve_of_json(curve)
    assert found.shape == "precision_recall"
    assert found.numbers["average precision"] == pytest.approx(0.8333333)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"fpr": [0, 1]},
        {"fpr": [0, 1], "tpr": [0]},
        {"fpr": [0, "x"], "tpr": [0, 1]},
        {"fpr": [0, math.nan], "tpr": [0, 1]},
        {"confusion_matrix": [[1, 2]]},
        {"confusion_matrix": [[1, -2], [3, 4]]},
        {"confusion_matrix": "abc"},
        {"precision": 0.5, "recall": 0.7},
    ],
)
def test_other_documents_are_no_curves(document):
    assert curve_of_json(document) is None
