"""Numbers that come from a device some steps later, with CUDA replaced at the edge."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from traceml.trace.deep.late_numbers import LateNumbers, _Coming, can_compute, on_stream


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


def test_the_device_of_a_stream_is_the_current_one_before_and_after_the_stream_is(monkeypatch):
    """Torch leaves a stream of another device by a call that takes memory on the current one."""
    entered = []

    @contextmanager
    def noted(what):
        entered.append(what)
        yield
        entered.append(what)

    monkeypatch.setattr(torch.cuda, "device", noted)
    monkeypatch.setattr(torch.cuda, "stream", noted)
    stream = SimpleNamespace(device="cuda:1")
    with on_stream(stream):
        assert entered == ["cuda:1", stream]
    assert entered == ["cuda:1", stream, stream, "cuda:1"]
    with on_stream(None):
        assert len(entered) == 4


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_nothing_is_computed_inside_a_function_transform(transform):
    answers = []

    def inside(values):
        answers.append(can_compute())
        return values.sum()

    transform(inside)(torch.ones(3))
    assert answers == [False] and can_compute()
