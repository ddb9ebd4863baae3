"""A logged file that differs is shown in the way that suits its kind."""

from __future__ import annotations

import numpy as np

from traceml.compare.array_changes import compare_arrays
from traceml.compare.artifact_changes import ArtifactChange, ArtifactSide
from traceml.compare.artifact_details import (
    CheckpointChange,
    Details,
    ImageChange,
    TensorChange,
    TensorState,
)
from traceml.compare.curve_changes import compare_curves, curve_of_json
from traceml.compare.text_changes import compare_texts
from traceml.compare.value_changes import compare_json
from traceml.figures.artifact_changes import artifacts_parts
from traceml.figures.page import Lines, Part, Points

SIDES = ArtifactSide(10, "0" * 64, 1), ArtifactSide(12, "1" * 64, 1)


def drawn(name: str, kind: str, details: Details | None, why: str | None = None) -> Part:
    overview, *details_parts = artifacts_parts([ArtifactChange(name, kind, *SIDES, details, why)])
    (only,) = details_parts or [overview]
    return only


def test_a_checkpoint_is_a_table_of_tensors() -> None:
    state = TensorState("float32", (2, 3), 1.5)
    tensors = (
        TensorChange("a.weight", state, state, 0.25),
        TensorChange("new", None, state),
        TensorChange("b", state, TensorState("float16", (2,), 1.0, 3)),
    )
    details = CheckpointChange(2, 3, 6, 8, 0, 1, 0, 1, 0, 1, 0.25, tensors)
    (table,) = drawn("model.pt", "checkpoint", details).tables
    assert [row.cells for row in table.rows] == [
        ("a.weight", "float32 [2, 3]", "25%", "1.5", "1.5"),
        ("new", "float32 [2, 3]", "only in B", "n/a", "1.5"),
        ("b", "float32 [2, 3] → float16 [2]", "another form", "1.5", "1, 3 not finite"),
    ]


def test_texts_are_a_difference_of_words_and_never_markup() -> None:
    details = compare_texts("a <script> cat\nsame\n", "a <script> dog\nsame\n")
    (diff,) = drawn("out.txt", "text", details).diffs
    (head, words) = diff.lines
    assert head.text == "line 1"
    assert [(part.op, part.text) for part in words.parts] == [
        ("same", "a <script> "),
        ("removed", "cat"),
        ("added", "dog"),
    ]


def test_a_document_is_a_table_of_values() -> None:
    details = compare_json({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}, "d": None})
    (table,) = drawn("r.json", "json", details).tables
    assert [row.cells for row in table.rows] == [("b.c", "2", "3"), ("d", "", "null")]


def test_a_roc_curve_is_drawn_and_its_area_told() -> None:
    a, b = (curve_of_json({"fpr": [0.0, 0.5, 1.0], "tpr": [0.0, top, 1.0]}) for top in (0.5, 0.9))
    assert a is not None and b is not None
    details = compare_curves(a, b)
    found = drawn("roc.json", "json", details)
    (lines,) = found.figures
    assert isinstance(lines, Lines)
    assert [(one.name, one.values) for one in lines.series] == [
        ("A", (0.0, 0.5, 1.0)),
        ("B", (0.0, 0.9, 1.0)),
    ]
    assert found.tables[0].rows[0].cells == ("area", "0.5", "0.7", "+0.2")


def test_confusion_matrices_are_one_grid() -> None:
    a, b = (
        curve_of_json({"confusion_matrix": [[right, 1], [2, 5]], "labels": ["cat", "dog"]})
        for right in (3, 4)
    )
    assert a is not None and b is not None
    (grid,) = drawn("cm.json", "json", compare_curves(a, b)).grids
    assert [column.label for column in grid.columns] == ["cat", "dog"]
    assert [[cell.text for cell in row.cells] for row in grid.rows] == [["3 → 4", "1"], ["2", "5"]]


def test_embeddings_are_projected_together() -> None:
    chance = np.random.default_rng(0)
    a = chance.normal(size=(900, 4))
    (points,) = drawn("e.npy", "array", compare_arrays(a, a + 0.1)).figures
    assert isinstance(points, Points)
    assert len(points.points) == 2 * 300  # of each side, evenly chosen
    assert {point.colour for point in points.points} == {"a", "b"}


def test_a_file_that_was_not_compared_says_why() -> None:
    (table,) = drawn("x.pt", "checkpoint", None, "its pickle is refused").tables
    assert table.rows[0].cells == (
        "x.pt (checkpoint)",
        "10 B -> 12 B; not compared: its pickle is refused",
    )


def test_an_image_without_its_picture_still_has_its_numbers() -> None:
    found = drawn("i.png", "image", ImageChange((4, 4), (4, 4), 0.5, 0.1, 0.2))
    assert "50% of the pixels differ" in found.tables[0].rows[0].cells[1]
