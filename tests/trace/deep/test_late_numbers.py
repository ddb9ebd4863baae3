"""Numbers that come from a device some steps later, with CUDA replaced at the edge."""

import sys

import pytest
import torch

from traceml.trace.deep.late_numbers import LateNumbers, _Coming, can_compute


class AcceleratorError(RuntimeError):
    """As torch names an error of the device."""


class NeverAsked:
    """A CUDA event of a device that has failed."""

    def query(self):
        raise AcceleratorError("CUDA error: device-side assert triggered")


def test_after_an_error_of_the_device_what_is_on_the_host_still_comes(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, AcceleratorError("device-side assert"), raising=False)
    numbers = LateNumbers()
    numbers.send_for("before", torch.tensor([1.0]))
    numbers._coming.append(_Coming("on the device", torch.zeros(1), NeverAsked()))
    numbers.send_for("after", torch.tensor([2.0]))
    numbers.wait()
    assert list(numbers.arrived()) == [("before", [1.0]), ("after", [2.0])]
    assert not numbers.is_expecting


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_nothing_is_computed_inside_a_function_transform(transform):
    answers = []

    def inside(values):
        answers.append(can_compute())
        return values.sum()

    transform(inside)(torch.ones(3))
    assert answers == [False] and can_compute()
