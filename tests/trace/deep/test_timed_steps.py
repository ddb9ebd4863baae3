"""Layers that are timed on a GPU, with CUDA's devices, streams and events replaced at the edge."""

import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from traceml.store.layer_records import read_layers
from traceml.trace.deep import gradient_norms, timed_steps
from traceml.trace.deep.bursts import FIRST_BURST

STEPS = FIRST_BURST + 6


class Device:
    """Two GPUs; the model is on the second one, and the script leaves the first one current."""

    current = 0
    streams = (7, 11)
    """The current stream of each."""
    captured = frozenset()
    behind = frozenset()
    """The streams whose work is not done."""
    has_failed = False


class Event:
    """A CUDA event, which can be asked for its time once its stream has come to it."""

    recorded_on = ()
    asked = 0

    def __init__(self, enable_timing=False):
        self.at, self.stream = 0.0, None

    def record(self, stream=None):
        self.stream = Device.streams[Device.current] if stream is None else stream
        self.at = time.perf_counter()
        Event.recorded_on += (self.stream,)

    def query(self):
        Event.asked += 1
        if Device.has_failed:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.stream not in Device.behind

    def elapsed_time(self, later):
        assert self.query() and later.query(), "CUDA raises where an event is not reached"
        return (later.at - self.at) * 1e3


@contextmanager
def made_current(device):
    before, Device.current = Device.current, device
    yield
    Device.current = before


@pytest.fixture
def two_gpus(monkeypatch):
    for owner, name, value in (
        (torch.cuda, "device", made_current),
        (torch._C, "_cuda_getCurrentRawStream", lambda device: Device.streams[device]),
        (torch.cuda, "current_stream", lambda device=None: Device.streams[device]),
        (
            torch.cuda,
            "is_current_stream_capturing",
            lambda: Device.streams[Device.current] in Device.captured,
        ),
        (
            torch.cuda,
            "get_device_properties",
            lambda device: SimpleNamespace(name="GPU", total_memory=1, uuid="1"),
        ),
        (torch.cuda, "Event", Event),
        (timed_steps, "is_on_one_gpu", lambda session, layers: True),
        (gradient_norms, "NORMS_SHARE", 100.0),
        (Event, "recorded_on", ()),
        (Event, "asked", 0),
        (Device, "streams", Device.streams),
        (Device, "captured", frozenset()),
        (Device, "behind", frozenset()),
        (Device, "has_failed", False),
    ):
        monkeypatch.setattr(owner, name, value, raising=False)


@pytest.fixture
def deep(two_gpus, traced, begin_deep):
    """A session whose model is on the second GPU; what it wrote, when it is called."""
    traced.session.device = "cuda:1"
    return begin_deep()


class UsesASecondStream(nn.Module):
    """Does its work on a stream of its own, as copies and communication do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        before, Device.streams = Device.streams, (7, 13)
        try:
            return self.inner(inputs)
        finally:
            Device.streams = before


class WaitsForRanks(nn.Module):
    """Sums up what it was given over all ranks, in the middle of its work."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        hidden = self.inner(inputs)
        dist.all_reduce(hidden.detach())
        return hidden


def train(model, each_step=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, STEPS + 1):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        each_step(step)


def test_layers_are_marked_on_the_stream_of_their_device_which_need_not_be_the_current_one(deep):
    train(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    found = deep()
    assert (found.times_ns["gpu_forward"] > 0).all()
    assert set(Event.recorded_on) == {11} and Device.current == 0


@pytest.mark.parametrize(("captured", "is_marked"), [(7, True), (11, False)])
def test_whether_a_graph_is_captured_is_asked_of_that_device(deep, captured, is_marked):
    Device.captured = {captured}
    train(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert bool(Event.recorded_on) is is_marked
    deep()


def test_waiting_for_ranks_is_beside_the_layer_s_time_on_both_clocks(deep):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train(nn.Sequential(WaitsForRanks(), nn.Linear(4, 4)))
    finally:
        dist.destroy_process_group()
    found = deep()
    waiting = found.names.index("0")
    for clock in ("gpu", "host"):
        waits_ns = found.times_ns[f"{clock}_communication"]
        assert (waits_ns[:, waiting] > 0).all()
        assert not np.delete(waits_ns, waiting, axis=1).any()
        assert not found.outside_ns[f"{clock}_communication"].any()
    for phase in ("forward", "backward"):
        assert (found.times_ns[f"gpu_{phase}"][:, waiting] >= 0).all()


def test_a_step_is_written_once_each_of_its_streams_has_passed_its_marks(deep, traced):
    """The last mark of all is on one of them, and says nothing about the other."""
    Device.behind, written = {13}, []

    def each_step(step):
        if step == FIRST_BURST + 4:
            written.append(read_layers(traced.folder))
            Device.behind = frozenset()

    train(nn.Sequential(nn.Linear(4, 4), UsesASecondStream()), each_step)
    assert set(Event.recorded_on) == {11, 13}
    assert all("gpu_forward" not in layers.times_ns for layers in written[0])
    assert (deep().times_ns["gpu_forward"] > 0).all()


@pytest.fixture
def failed_device(deep, traced, monkeypatch):
    """Trains until a step is timed that the device never comes to the end of; our failures."""
    failures = []
    monkeypatch.setattr(traced.session, "failed", failures.append)
    Device.behind = {11}
    train(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    Device.has_failed, Event.asked = True, 0
    return failures


def test_norms_on_the_host_are_written_where_another_part_fails_as_the_process_ends(
    failed_device, deep
):
    found = deep()
    assert list(map(str, failed_device)) == ["CUDA error: device-side assert triggered"]
    assert not found.steps and found.norms.steps[-1] == STEPS


class AcceleratorError(RuntimeError):
    """As torch names an error of the device."""


def test_a_device_whose_error_ends_the_process_is_asked_for_nothing(
    failed_device, deep, monkeypatch
):
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, AcceleratorError("device-side assert"), raising=False)
    found = deep()
    assert not failed_device and not Event.asked
    assert not found.steps and found.norms.steps[-1] == STEPS
