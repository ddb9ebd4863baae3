"""What changed between two checkpoints, on checkpoints whose changes are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.checkpoints import compare_checkpoints


class Held:
    """A checkpoint in memory, read in pieces of three."""

    def __init__(self, **arrays):
        self.arrays = {name: np.array(value, float) for name, value in arrays.items()}
        self.unreadable = set()
        self.values = {}
        self.types = {}

    @property
    def tensors(self):
        return {
            name: Form(self.types.get(name, "float32"), array.shape)
            for name, array in self.arrays.items()
        }

    def pieces(self, name):
        flat = self.arrays[name].reshape(-1)
        if name in self.unreadable:
            return None
        return (flat[start : start + 3] for start in range(0, flat.size, 3))


class Form:
    def __init__(self, dtype, shape):
        self.dtype, self.shape = dtype, shape


def only(found):
    (change,) = found.tensors
    return change


def test_a_checkpoint_is_the_same_as_itself():
    held = Held(a=[[1, 2], [3, math.nan]], b=[math.inf, 0], c=[])
    found = compare_checkpoints(held, held)
    assert (found.same, found.moved, found.tensors) == (3, 0, ())
    assert found.relative_change == 0


def test_norms_and_relative_change_are_numpys():
    generator = np.random.default_rng(0)
    a = generator.normal(size=(7, 5))
    b = a + 0.1 * generator.normal(size=(7, 5))
    change = only(compare_checkpoints(Held(w=a), Held(w=b)))
    assert change.lhs.norm == pytest.approx(np.linalg.norm(a))
    assert change.rhs.norm == pytest.approx(np.linalg.norm(b))
    assert change.relative_change == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))


def test_what_differs_is_counted_and_the_most_changed_comes_first():
    a = Held(gone=[1], other=[1, 2], little=[1, 1], much=[1, 1], same=[5])
    b = Held(new=[1], other=[1, 2, 3], little=[1, 1.1], much=[2, 2], same=[5])
    found = compare_checkpoints(a, b)
    assert [each.name for each in found.tensors] == ["gone", "new", "other", "much", "little"]
    counted = found.added, found.removed, found.reshaped, found.moved, found.same
    assert counted == (1, 1, 1, 2, 1)
    assert (found.lhs_elements, found.rhs_elements) == (8, 9)


def test_swapping_the_sides_mirrors_the_change():
    a, b = Held(w=[3, 4], only=[1]), Held(w=[3, 0], added=[1])
    there, back = compare_checkpoints(a, b), compare_checkpoints(b, a)
    assert (there.added, there.removed) == (back.removed, back.added)
    by_name = {each.name: each for each in back.tensors}
    for change in there.tensors:
        assert (change.lhs, change.rhs) == (by_name[change.name].rhs, by_name[change.name].lhs)


def test_weights_that_became_nan_are_counted_and_listed_before_all_changes():
    a = Held(x=[1, 1, 1, 1], y=[1, 2])
    b = Held(x=[1, math.nan, math.inf, 2], y=[9, 9])
    found = compare_checkpoints(a, b)
    change = found.tensors[0]
    assert (change.name, change.lhs.not_finite, change.rhs.not_finite) == ("x", 0, 2)
    assert change.relative_change == pytest.approx(0.5)  # of the elements that are numbers in both
    assert found.moved == 2


def test_zeros_that_became_numbers_have_no_ratio_and_are_a_change():
    found = compare_checkpoints(Held(w=[0, 0]), Held(w=[3, 4]))
    assert found.moved == 1
    assert only(found).relative_change is None
    assert (only(found).lhs.norm, only(found).rhs.norm) == (0, 5)


def test_another_type_is_a_difference_though_the_numbers_are_the_same():
    a, b = Held(w=[1, 2]), Held(w=[1, 2])
    b.types["w"] = "bfloat16"
    found = compare_checkpoints(a, b)
    assert (found.retyped, found.moved, found.same) == (1, 0, 0)
    assert only(found).relative_change == 0


def test_what_cannot_be_read_is_not_called_the_same():
    a, b = Held(w=[1, 2]), Held(w=[1, 2])
    a.unreadable.add("w")
    found = compare_checkpoints(a, b)
    assert (found.same, found.moved, found.relative_change) == (0, 0, None)
    assert only(found).lhs.norm is None


def test_numbers_too_large_to_be_squared_harm_nothing():
    found = compare_checkpoints(Held(w=[1e308, -1e308]), Held(w=[-1e308, 1e308]))
    assert (found.moved, only(found).relative_change) == (1, None)


def test_what_else_is_saved_is_compared_by_value():
    a, b = Held(w=[1]), Held(w=[1])
    a.values, b.values = {"epoch": 3, "lr": 0.1, "old": None}, {"epoch": 4, "lr": 0.1}
    found = compare_checkpoints(a, b)
    assert [(each.path, each.op, each.lhs, each.rhs) for each in found.values] == [
        ("epoch", "changed", 3, 4),
        ("old", "removed", None, None),
    ]
