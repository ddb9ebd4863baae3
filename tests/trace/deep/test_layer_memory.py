"""What layers keep for backward and at most, and what of it cannot be known."""

import sys
import warnings
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


ROWS, WIDTH = 1000, 4


class LooksUp(nn.Module):
    """Looks up some rows of a table, whose gradient has these rows alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)

    def forward(self, inputs):
        return inputs + self.table(torch.tensor([3, 5]))


class Mixes(nn.Module):
    """Mixes the rows of a batch by a sparse matrix, as networks on graphs do."""

    def __init__(self, layout):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that its sparse matrices are new
            self.register_buffer("rows", torch.eye(ROWS)[:2].to_sparse(layout=layout))

    def forward(self, inputs):
        return torch.sparse.mm(self.rows, inputs.repeat(ROWS // 2, 1))


def test_what_is_sparse_takes_the_memory_of_what_it_holds(held):
    model = Parts(
        one=nn.Linear(WIDTH, WIDTH),
        look=LooksUp(),
        coo=Mixes(torch.sparse_coo),
        csr=Mixes(torch.sparse_csr),
    )
    train(model)
    found = held()
    assert found["parameters"]["look.table"] == ROWS * WIDTH * 4
    assert found["gradients"]["look.table"] == 2 * (8 + WIDTH * 4)  # indices, and rows of values
    assert found["buffers"]["coo"] == 2 * (2 * 8 + 4)
    assert found["buffers"]["csr"] == 3 * 8 + 2 * (8 + 4)
    assert found["saved"]["coo"] == found["saved"]["csr"] == 0  # the layers hold it themselves


def test_an_expanded_buffer_takes_the_memory_of_what_it_repeats(held):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("numbers", torch.arange(8.0).expand(100, 8))

        def forward(self, inputs):
            return self.inner(inputs)

    train(Parts(one=Positions()))
    assert held()["buffers"]["one"] == 8 * 4


class Attends(nn.Module):
    """Makes queries, keys and values by one projection, of which each is a view."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, inputs):
        queries, keys, values = self.project(inputs[None, None]).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(queries, keys, values)[0, 0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH)

    def forward(self, inputs):
        return self.inner(inputs[:, None].repeat(1, 3, 1))[0][:, 0]


class Gated(nn.Module):
    """Takes both halves of what a layer made, and all of it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, inputs):
        whole = self.inner(inputs).tanh()
        one, other = whole.chunk(2, -1)
        return one * other


@pytest.mark.parametrize("planted", [Attends, Recurrent, Gated, LooksUp])
def test_what_is_kept_for_backward_is_all_memory_that_autograd_keeps(held, planted):
    model = Parts(one=nn.Linear(WIDTH, WIDTH), planted=planted())
    train(model)
    found = held()["saved"]
    kept = {}

    def pack(tensor):
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(torch.randn(2, WIDTH))
    assert result.requires_grad
    assert sum(found.values()) == sum(storage.nbytes() for storage in kept.values())


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
