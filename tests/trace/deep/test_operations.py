"""Floating-point operations are those of a count by hand, by layer and in all."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from traceml.facts.layers import layer_profile
from traceml.store.layer_records import read_layers
from traceml.trace.deep import bursts

STEPS = 24
BATCH = 3


@pytest.fixture
def profiled(traced, monkeypatch):
    """Trains a model, with the same inputs or those of each step; its profile and its records."""
    monkeypatch.setattr(bursts, "LAYERS_SHARE", 1e9)
    traced.session.begin_deep_profile()

    def count(model, inputs):
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(STEPS):
            given = inputs(step) if callable(inputs) else inputs
            loss = model(given).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        traced.finish()
        (records,) = read_layers(traced.folder)
        return layer_profile([records], {}), records

    return count


@pytest.fixture
def counted(profiled):
    """Trains a model; the operations of a step by layer, and of the whole step."""

    def count(model, inputs):
        profile, _ = profiled(model, inputs)
        return {layer.name: layer.flops for layer in profile.layers}, profile.flops

    return count


def trained(forward, needs_input_gradient=True):
    """A product costs as much again for the weight's gradient, and for the input's."""
    return forward * (3 if needs_input_gradient else 2)


def linear(rows, inputs, outputs):
    return 2 * rows * inputs * outputs


def test_a_multilayer_perceptron(counted):
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 2))
    by_layer, whole = counted(model, torch.randn(BATCH, 5))
    wanted = {
        "0": trained(linear(BATCH, 5, 7), needs_input_gradient=False),
        "2": trained(linear(BATCH, 7, 11)),
        "4": trained(linear(BATCH, 11, 2)),
    }
    assert {name: by_layer[name] for name in wanted} == wanted
    assert whole == sum(wanted.values())


def test_a_convolutional_net(counted):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
    )
    by_layer, whole = counted(model, torch.randn(BATCH, 3, 9, 9))
    wanted = {
        "0": trained(2 * BATCH * 9 * 9 * 4 * 3 * 3 * 3, needs_input_gradient=False),
        "2": trained(2 * BATCH * 4 * 4 * 6 * 4 * 3 * 3),
        "4": trained(linear(BATCH, 6 * 4 * 4, 5)),
    }
    assert {name: by_layer[name] for name in wanted} == wanted
    assert whole == sum(wanted.values())


class Attention(nn.Module):
    def __init__(self, width, heads, is_fused):
        super().__init__()
        self.heads, self.is_fused = heads, is_fused
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, inputs):
        batch, length, width = inputs.shape
        shape = batch, length, 3, self.heads, width // self.heads
        query, key, value = self.mixed(inputs).view(shape).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            found = scaled_dot_product_attention(query, key, value)
        else:
            found = (query @ key.transpose(-2, -1)).softmax(-1) @ value
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, is_fused):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, is_fused)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, inputs):
        inputs = inputs + self.attn(self.norm1(inputs))
        return inputs + self.mlp(self.norm2(inputs))


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_transformer_with_attention(counted, is_fused):
    width, heads, length, blocks = 8, 2, 6, 2
    model = nn.Sequential(*(Block(width, heads, is_fused) for _ in range(blocks)))
    by_layer, whole = counted(model, torch.randn(BATCH, length, width))
    rows = BATCH * length
    # Two products of queries, keys and values in forward, and for each two in backward. A fused
    # kernel keeps no scores: its backward computes them once more.
    product = 2 * BATCH * heads * length * length * (width // heads)
    wanted = {
        "attn": product * (2 + 4 + is_fused),
        "attn.mixed": trained(linear(rows, width, 3 * width)),
        "attn.out": trained(linear(rows, width, width)),
        "mlp.0": trained(linear(rows, width, 4 * width)),
        "mlp.2": trained(linear(rows, 4 * width, width)),
    }
    for block in range(blocks):
        assert {name: by_layer[f"{block}.{name}"] for name in wanted} == wanted
    assert whole == blocks * sum(wanted.values())


class Checkpointed(nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
        self.is_checkpointed = is_checkpointed

    def forward(self, inputs):
        for block in self.blocks:
            inputs = (
                checkpoint(block, inputs, use_reentrant=False)
                if self.is_checkpointed
                else block(inputs)
            )
        return inputs


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_is_computed_again_is_counted_apart(profiled, is_checkpointed):
    profile, records = profiled(Checkpointed(is_checkpointed), torch.randn(BATCH, 4))
    once = linear(BATCH, 4, 4)
    assert profile.flops == once * (2 + 3 + 3)
    assert profile.recompute_flops == 3 * once * is_checkpointed
    by_name = {layer.name: layer for layer in profile.layers}
    assert by_name["blocks.1.0"].flops == trained(once)
    assert by_name["blocks.1.0"].recompute_flops == once * is_checkpointed
    # Its input, weight, bias and output.
    again_bytes = 4 * (2 * BATCH * 4 + 4 * 4 + 4) * is_checkpointed
    place = records.names.index("blocks.1.0")
    assert records.counted["recompute_bytes"][place] == again_bytes


RANKS = 4


@pytest.fixture
def one_of_several_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def test_of_a_layer_that_is_spread_over_ranks_this_rank_s_part_is_counted(
    profiled, one_of_several_ranks
):
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    profile, records = profiled(
        parallelize_module(model, one_of_several_ranks, plan), torch.randn(BATCH, 8)
    )
    inner = 16 // RANKS
    wanted = {
        "": 0,
        "0": trained(linear(BATCH, 8, inner), needs_input_gradient=False),
        "1": trained(linear(BATCH, inner, 8)),
    }
    assert {layer.name: layer.flops for layer in profile.layers} == wanted
    assert profile.flops == sum(wanted.values())
    # The gradient of a weight is read and written, and so are its input and output.
    place = records.names.index("0")
    assert records.counted["forward_bytes"][place] == 4 * (BATCH * 8 + 8 * inner + BATCH * inner)


def test_shapes_that_are_met_for_the_first_time_are_counted_once(profiled, one_of_several_ranks):
    """Torch works out what each operation on spread tensors returns by pretending to do it."""
    model = nn.Sequential(nn.Linear(8, 16, bias=False))
    plan = {"0": ColwiseParallel()}
    profile, _ = profiled(
        parallelize_module(model, one_of_several_ranks, plan),
        lambda step: torch.randn(BATCH + step, 8),
    )
    batches = [linear(BATCH + step, 8, 16 // RANKS) for step in range(STEPS)]
    assert profile.flops in [trained(each, needs_input_gradient=False) for each in batches]
