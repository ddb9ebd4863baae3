"""Copies to a device, with a tensor that says it is on one: a real one is in tests/gpu."""

import pytest
import torch
from torch import nn

import traceml
from traceml.model.record_layout import NOT_MEASURED
from traceml.trace import current


class OnDevice(torch.Tensor):
    """A tensor that is on a device by its own account."""

    is_cuda = True
    device = torch.device("cuda:0")


class Timeline:
    """A device that times nothing, with the loop's own stream and another one."""

    outstanding = 0

    def __init__(self, is_on_its_stream):
        self.is_on_its_stream = is_on_its_stream

    timed = outstanding = 0

    def mark(self):
        return 0

    mark_boundary = mark

    def nothing(self):
        return None

    step_ends = resolve = look_at_memory = look_at_last_memory = nothing


@pytest.fixture
def watched(traced, monkeypatch):
    """The session anew, with the hooks that a build with CUDA gets."""
    current.end()
    with monkeypatch.context() as build:
        build.setattr(torch.version, "cuda", "12.8")
        traced.start()
    return traced


def copy_in_every_step(steps=3):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        with traceml.trace_step(model):
            on_device = torch.zeros(1).as_subclass(OnDevice)
            assert on_device.copy_(torch.full((1,), float(step))) == step
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()


@pytest.mark.parametrize("is_own", [True, False], ids=["the loop's stream", "another stream"])
def test_a_copy_beside_the_loop_is_no_phase_of_it(watched, is_own):
    watched.session.recorder.gpu = Timeline(lambda: is_own)
    copy_in_every_step()
    copied_ns = watched.complete()["h2d_ns"]
    assert len(copied_ns) == 3
    assert ((copied_ns > 0) if is_own else (copied_ns == NOT_MEASURED)).all()


def test_a_device_that_does_not_tell_its_stream_spoils_no_copy(watched):
    def fail():
        raise RuntimeError("ours")

    watched.session.recorder.gpu = Timeline(fail)
    copy_in_every_step()
    with pytest.raises(AssertionError, match="ours"):
        watched.complete()
