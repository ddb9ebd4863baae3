"""What layers keep for backward and at most, and what of it cannot be known."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.trace.deep.test_bursts import Checkpointed, Parts, train
from torch import nn

from traceml.trace.deep import memory_steps

MIB = 1 << 20


@pytest.fixture
def held(deep):
    """A session with the deep profile; what each layer held by kind and name, when it is called."""

    def found():
        records = deep()
        return {
            kind: dict(zip(records.names, values.tolist(), strict=True))
            for kind, values in records.held_bytes.items()
        }

    return found


def test_what_checkpointed_layers_keep_is_not_known_and_not_zero(held):
    block = Checkpointed(nn.Linear(4, 4), use_reentrant=False)
    train(Parts(one=nn.Linear(4, 4), block=block, act=nn.ReLU()))
    saved = held()["saved"]
    assert np.isnan(saved["block.inner"])
    assert (saved["one"], saved["act"]) == (2 * 4 * 4, 2 * 4 * 4)


def test_what_is_offloaded_to_the_host_is_not_known_and_not_zero(held):
    model = Parts(one=nn.Linear(4, 4), act=nn.ReLU())
    with torch.autograd.graph.save_on_cpu():
        train(model)
    saved = held()["saved"]
    assert np.isnan(saved["one"]) and np.isnan(saved["act"])


def test_a_torch_that_does_not_show_what_is_saved_says_nothing_of_it(held, monkeypatch):
    monkeypatch.setattr(torch._C._autograd, "SavedTensor", object)  # as before unpack_hook
    train(Parts(one=nn.Linear(4, 4)))
    found = held()
    assert "saved" not in found and found["parameters"]["one"] == (4 * 4 + 4) * 4


def test_a_buffer_that_layers_share_counts_for_the_first(held):
    class Masked(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("mask", mask)

        def forward(self, inputs):
            return self.inner(inputs) * self.mask

    mask = torch.ones(4)
    train(Parts(one=Masked(mask), two=Masked(mask)))
    buffers = held()["buffers"]
    assert (buffers["one"], buffers["two"]) == (4 * 4, 0)


class Allocator:
    """Counts as CUDA's allocator does."""

    def __init__(self):
        self.current = self.peak = 0

    def take(self, size):
        self.current += size
        self.peak = max(self.peak, self.current)

    def statistics(self, device):
        return {"allocated_bytes": {"all": {"current": self.current, "peak": self.peak}}}


class Takes(nn.Module):
    """Takes memory for as long as it is called, and ever more of it."""

    def __init__(self, allocator, size, growth=0):
        super().__init__()
        self.allocator, self.size, self.growth = allocator, size, growth

    def forward(self, inputs):
        self.allocator.take(self.size)
        self.allocator.take(-self.size)
        self.size += self.growth
        return inputs


def test_a_peak_is_told_of_layers_in_which_more_was_allocated_than_ever_before(held, monkeypatch):
    allocator, reader = Allocator(), memory_steps._memory_reader
    on_gpu = SimpleNamespace(recorder=SimpleNamespace(gpu=object()), device="cuda:0")
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", allocator.statistics, raising=False)
    monkeypatch.setattr(memory_steps, "_memory_reader", lambda session: reader(on_gpu))
    allocator.take(5 * MIB)
    model = Parts(
        one=nn.Linear(4, 4), same=Takes(allocator, 2 * MIB), more=Takes(allocator, 3 * MIB, MIB)
    )
    train(model)
    found = held()
    peaks, reached = found["peak"], found["reached"]
    assert peaks["more"] == peaks[""] > 8 * MIB
    assert np.isnan(peaks["same"]) and np.isnan(peaks["one"])
    assert set(reached.values()) == {5 * MIB}  # what is taken and given back lies between two looks


class HoldsMemory(nn.Module):
    """Holds memory of the host while it calls another layer."""

    def __init__(self, size):
        super().__init__()
        self.size, self.inner = size, nn.Identity()

    def forward(self, inputs):
        block = bytearray(self.size)
        block[::4096] = b"1" * len(range(0, self.size, 4096))  # it is resident only when written to
        result = self.inner(inputs)
        del block
        return result


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is told on Linux")
def test_on_the_host_the_most_that_was_seen_inside_a_layer_is_what_the_process_held(held):
    size = 96 * MIB
    train(Parts(one=nn.Linear(4, 4), large=HoldsMemory(size), two=nn.Linear(4, 4)))
    found = held()
    reached = found["reached"]
    assert "peak" not in found
    assert reached["large"] - reached["two"] > size / 2  # it was given back by then
    assert reached["large.inner"] == reached["large"] == reached[""]


def test_what_is_kept_is_told_with_how_much_the_model_was_given(deep):
    train(Parts(one=nn.Linear(4, 4), act=nn.ReLU()))
    assert deep().input_elements == 2 * 4
