"""Floating-point operations are those of a count by hand, by layer and in all."""

import functools
import re

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry, register_flop_formula

from traceml.facts.layers import layer_profile
from traceml.trace.deep.flop_formulas import flops_of, formula_of
from traceml.trace.deep.operation_steps import OTHERS_BEFORE
from traceml.trace.deep.operations import TRACED
from traceml.trace.deep.operations_without_flops import has_no_flops

STEPS = 24
BATCH = 3


@pytest.fixture
def profiled(deep):
    """Trains a model, with the same inputs or those of each step; its profile and its records."""

    def count(model, inputs, loss_of=torch.square, steps=STEPS, called=None):
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(steps):
            given = inputs(step) if callable(inputs) else inputs
            loss = loss_of((called or model)(given)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        records = deep()
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


def test_of_a_layer_that_is_spread_over_ranks_this_rank_s_part_is_counted(
    profiled, one_of_several_ranks
):
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    profile, records = profiled(
        parallelize_module(model, one_of_several_ranks, plan), torch.randn(BATCH, 8)
    )
    inner = 16 // one_of_several_ranks.size()
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
    _, records = profiled(
        parallelize_module(model, one_of_several_ranks, plan),
        lambda step: torch.randn(BATCH + step, 8),
    )
    batch = BATCH + records.counted_step - 1
    forward = linear(batch, 8, 16 // one_of_several_ranks.size())
    flops = sum(int(records.counted[f"{phase}_flops"].sum()) for phase in ("forward", "backward"))
    assert flops == trained(forward, needs_input_gradient=False)


@pytest.mark.parametrize(
    ("other", "is_before", "is_told"),
    [
        pytest.param(nn.Sequential(nn.Linear(5, 5)), True, True, id="a teacher"),
        pytest.param(nn.Sequential(nn.Linear(5, 5)), False, False, id="a teacher after the model"),
        pytest.param(nn.Sequential(nn.Flatten()), True, False, id="what transforms data"),
    ],
)
def test_other_modules_that_run_before_the_model_are_said_not_to_be_counted(
    profiled, other, is_before, is_told
):
    model, other = nn.Sequential(nn.Linear(5, 5)), other.eval().requires_grad_(False)

    def called(given):
        if not is_before:
            found = model(given)
        with torch.no_grad():
            wanted = other(given)
        return (model(given) if is_before else found) - wanted

    profile, _ = profiled(model, torch.randn(BATCH, 5), called=called)
    by_model, by_other = trained(linear(BATCH, 5, 5), False), linear(BATCH, 5, 5)
    assert profile.flops == by_model + by_other * (not is_before)
    assert (OTHERS_BEFORE in profile.notes) == is_told


def test_batches_of_other_sizes_than_the_counted_one_leave_the_step_without_a_number(profiled):
    profile, records = profiled(
        nn.Linear(5, 2), lambda step: torch.randn(BATCH if step < 16 else 100 + 50 * (step % 2), 5)
    )
    assert records.counted_elements == BATCH * 5
    assert records.given_elements.max() == 150 * 5
    assert (profile.flops, profile.layers[0].flops) == (None, None)
    (note,) = [each for each in profile.notes if "of layers are not shown" in each]
    assert f"step {records.counted_step}, where the model was given 15 numbers" in note


def test_what_a_model_is_given_by_keyword_and_in_several_calls_is_its_size(profiled):
    class TwoCalls(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(5, 2)

        def forward(self, *, inputs, scale):
            return scale * self.inner(inputs)

    model = TwoCalls()
    profile, records = profiled(
        model,
        torch.randn(BATCH, 5),
        lambda outputs: outputs + model(inputs=torch.ones(BATCH, 5), scale=2),
        called=lambda given: model(inputs=given, scale=1),
    )
    assert records.counted_elements == 2 * BATCH * 5 and set(records.given_elements) == {30}
    assert profile.flops is not None


def test_operations_are_counted_again_where_batches_change_for_good(profiled):
    profile, records = profiled(
        nn.Linear(5, 2), lambda step: torch.randn(BATCH if step < 16 else 10 * BATCH, 5), steps=200
    )
    assert records.counted_elements == 10 * BATCH * 5
    forward = linear(10 * BATCH, 5, 2)
    assert profile.flops == trained(forward, needs_input_gradient=False)


def test_batches_of_a_few_sizes_in_turn_are_counted_once(traced, profiled):
    profiled(nn.Linear(5, 2), lambda step: torch.randn((1 + step % 2) * BATCH, 5), steps=80)
    (file,) = traced.folder.glob("layers-*")
    assert file.read_text().count('"forward_flops') == 1


LENGTH, WIDTH, HIDDEN = 6, 5, 7


def recurrent(gates, inputs, hidden, projected=0):
    """A layer in one direction: gates from the input and the state, and its projection."""
    state = projected or hidden
    steps = BATCH * LENGTH
    return linear(steps, inputs, gates * hidden) + steps * 2 * hidden * (
        gates * state + (projected or 0)
    )


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH, bias=False)
        self.rnn = kind(WIDTH, HIDDEN, batch_first=True, **options)

    def forward(self, inputs):
        return self.rnn(self.inside(inputs))[0]


@pytest.mark.parametrize(
    ("kind", "gates", "options", "is_fused"),
    [
        pytest.param(nn.LSTM, 4, {}, True, id="LSTM"),
        pytest.param(nn.LSTM, 4, {"num_layers": 2}, True, id="LSTM of two layers"),
        pytest.param(nn.LSTM, 4, {"bidirectional": True}, True, id="LSTM in both directions"),
        pytest.param(
            nn.LSTM,
            4,
            {"num_layers": 2, "bidirectional": True},
            True,
            id="LSTM of two layers in both directions",
        ),
        pytest.param(nn.LSTM, 4, {"bias": False}, True, id="LSTM without biases"),
        pytest.param(nn.LSTM, 4, {"proj_size": 3}, False, id="LSTM with projections"),
        pytest.param(nn.GRU, 3, {"num_layers": 2, "bidirectional": True}, False, id="GRU"),
        pytest.param(nn.RNN, 1, {"num_layers": 2}, False, id="RNN"),
    ],
)
def test_recurrent_networks(counted, kind, gates, options, is_fused):
    by_layer, whole = counted(Recurrent(kind, **options), torch.randn(BATCH, LENGTH, WIDTH))
    directions = 2 if options.get("bidirectional") else 1
    layers = options.get("num_layers", 1)
    projected = options.get("proj_size", 0)
    state = projected or HIDDEN
    once = directions * sum(
        recurrent(gates, WIDTH if layer == 0 else directions * state, HIDDEN, projected)
        for layer in range(layers)
    )
    # Nobody asks for the gradient of the first state: a fused kernel computes it nevertheless.
    first_state = 0 if is_fused else directions * layers * linear(BATCH, state, gates * HIDDEN)
    assert by_layer["rnn"] == trained(once) - first_state
    inside = trained(linear(BATCH * LENGTH, WIDTH, WIDTH), needs_input_gradient=False)
    assert whole == by_layer["rnn"] + inside


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_networks_as_a_gpu_runs_them(kind, gates, layers, is_packed):
    """By shapes alone: cuDNN gets all weights of all layers at once."""
    rnn = kind(WIDTH, HIDDEN, layers, device="meta")
    shape = (LENGTH * BATCH, WIDTH) if is_packed else (LENGTH, BATCH, WIDTH)
    given = torch.empty(shape, device="meta"), list(rnn.parameters()), 4, None
    once = recurrent(gates, WIDTH, HIDDEN) + (layers - 1) * recurrent(gates, HIDDEN, HIDDEN)
    assert flops_of(torch.ops.aten._cudnn_rnn.default, given, {}, None) == once
    assert flops_of(torch.ops.aten._cudnn_rnn_backward.default, given, {}, None) == 2 * once


def dispatched(function, *tensors):
    """The floating-point operations of what a function does, forward and backward."""
    leaves = [each.detach().requires_grad_() for each in tensors]
    with OperationsSeen() as seen:
        found = function(*leaves)
        (found.abs() if found.is_complex() else found).sum().backward()
    return seen.flops


class OperationsSeen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        done = flops_of(func, args, kwargs or {}, result)
        assert done is not None, func
        self.flops += done
        return result


@pytest.mark.parametrize(
    ("function", "tensors", "wanted"),
    [
        pytest.param(torch.mv, (torch.randn(3, 4), torch.randn(4)), 2 * 12 * 2, id="mv"),
        pytest.param(torch.dot, (torch.randn(9), torch.randn(9)), 2 * 9, id="dot"),
        pytest.param(
            lambda a, b: torch.zeros(3, 5).addmm_(a, b),
            (torch.randn(3, 4), torch.randn(4, 5)),
            3 * 2 * 3 * 4 * 5,
            id="addmm in place",
        ),
        pytest.param(
            lambda a, b: torch.addbmm(torch.zeros(3, 5), a, b),
            (torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
            3 * 2 * 2 * 3 * 4 * 5,
            id="addbmm",
        ),
        pytest.param(
            lambda a, b: torch.cdist(a, b, p=1.0),
            (torch.randn(2, 3, 4), torch.randn(2, 5, 4)),
            3 * 3 * 2 * 3 * 5 * 4,
            id="distances one by one",
        ),
        pytest.param(torch.fft.fft, (torch.randn(3, 8),), (2.5 + 5) * 3 * 8 * 3, id="fft of reals"),
    ],
)
def test_further_products(function, tensors, wanted):
    assert dispatched(function, *tensors) == wanted


def test_a_bilinear_layer():
    """A product of the first input and the weight, then of that and the second input."""
    rows, first, second, outputs = 3, 5, 6, 4
    weight = torch.randn(outputs, first, second)
    once = 2 * rows * outputs * first * second + 2 * rows * outputs * second
    with OperationsSeen() as seen:
        nn.functional.bilinear(torch.randn(rows, first), torch.randn(rows, second), weight)
    assert seen.flops == once


def test_distances_by_a_product_of_matrices():
    a, b = torch.randn(30, 4), torch.randn(40, 4)
    with OperationsSeen() as seen:
        torch.cdist(a.requires_grad_(), b)
    assert seen.flops == 2 * 30 * 40 * (4 + 2)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        pytest.param((12, 4), (3, 4, 5), 2 * 12 * 4 * 5, id="rows in groups"),
        pytest.param((3, 6, 4), (3, 4, 5), 2 * 3 * 6 * 4 * 5, id="as many of each"),
        pytest.param((6, 12), (12, 5), 2 * 6 * 12 * 5, id="sums in groups"),
        pytest.param((3, 6, 4), (4, 15), 2 * 6 * 4 * 15, id="columns in groups"),
    ],
)
def test_grouped_products(a, b, wanted):
    grouped = getattr(torch.ops.aten, "_grouped_mm", None)
    if grouped is None:
        pytest.skip("this torch has no grouped products")
    given = torch.empty(a, device="meta"), torch.empty(b, device="meta")
    assert flops_of(grouped.default, given, {}, None) == wanted


@torch.library.custom_op("traceml_tests::product", mutates_args=())
def own_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product of matrices in an operation of the script's own."""
    return a @ b


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _product_backward(ctx, gradient):
    a, b = ctx.saved_tensors
    return gradient @ b.t(), a.t() @ gradient


own_product.register_autograd(_product_backward, setup_context=_keep)


class OwnProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, inputs):
        return own_product(inputs, self.weight)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_of_a_table_only_the_rows_that_are_looked_up_are_read(profiled, kind):
    class LooksUp(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = kind(1000, 4, sparse=True)

        def forward(self, inputs):
            return inputs + self.table(torch.tensor([[3], [5]])).reshape(2, 4)

    _, records = profiled(LooksUp(), torch.randn(2, 4))
    moved = records.counted["forward_bytes"][records.names.index("table")]
    assert 2 * 2 * 4 * 4 <= moved < 1000  # two rows read and written, of 16 kB


def test_an_operation_on_tensors_without_numbers_is_none(profiled):
    """Such as those of torch's own meta device, with which shapes are worked out."""

    class AsksForShapes(nn.Linear):
        def forward(self, inputs):
            for context in (torch.enable_grad(), torch.inference_mode()):
                with context:
                    torch.empty(2, 4, device="meta").matmul(torch.empty(4, 4, device="meta"))
            return super().forward(inputs)

    profile, _ = profiled(nn.Sequential(AsksForShapes(4, 4)), torch.randn(BATCH, 4))
    assert profile.flops == trained(linear(BATCH, 4, 4), needs_input_gradient=False)


def test_operations_are_counted_where_the_script_has_replaced_what_traces(profiled, monkeypatch):
    name = "_create_function_from_trace"
    own = functools.partial(getattr(torch._C, name))  # it has no __name__
    monkeypatch.setattr(torch._C, name, own)
    profile, records = profiled(nn.Linear(5, 2), torch.ones(BATCH, 5))
    assert profile.flops == trained(linear(BATCH, 5, 2), needs_input_gradient=False)
    assert records.why_uncounted is None
    assert getattr(torch._C, name) is own


def test_two_traces_in_the_step_are_the_reason_why_nothing_is_counted(profiled, monkeypatch):
    """The second one calls our replacement too, because the script's own call keeps it."""
    name, ones = "_create_function_from_trace", torch.ones(BATCH, 5)
    monkeypatch.setattr(torch._C, name, getattr(torch._C, name))  # as it was, after the test
    model = nn.Linear(5, 2)

    def loss_of(outputs):
        with pytest.MonkeyPatch.context() as script:
            script.setattr(torch._C, name, functools.partial(getattr(torch._C, name)))
            for _ in range(2):
                torch.jit.trace(lambda inputs: inputs * 2, ones)
        return outputs

    profile, records = profiled(model, ones, loss_of)
    assert profile.flops is None and records.why_uncounted == TRACED


def test_what_nobody_can_count_is_not_counted_as_none(profiled):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), OwnProduct())
    profile, records = profiled(model, torch.randn(BATCH, WIDTH))
    by_name = {layer.name: layer for layer in profile.layers}
    assert by_name["0"].flops == trained(linear(BATCH, WIDTH, WIDTH), needs_input_gradient=False)
    assert (by_name["1"].flops, by_name["1"].recompute_flops) == (None, None)
    assert by_name["1"].moved_bytes > 0
    assert (profile.flops, profile.recompute_flops) == (None, None)
    assert records.uncounted == {"traceml_tests::product": (records.names.index("1"),)}
    (note,) = [each for each in profile.notes if "traceml_tests::product (in *)" in each]
    assert "register_flop_formula" in note


def test_a_formula_that_the_script_registers_counts(counted):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), OwnProduct())

    @register_flop_formula(torch.ops.traceml_tests.product)
    def product_flops(a_shape, b_shape, *, out_shape=None):
        return linear(a_shape[0], a_shape[1], b_shape[1])

    try:
        by_layer, whole = counted(model, torch.randn(BATCH, WIDTH))
    finally:
        del flop_registry[torch.ops.traceml_tests.product]
    assert by_layer["1"] == trained(linear(BATCH, WIDTH, WIDTH))
    assert whole == by_layer["0"] + by_layer["1"]


def test_what_no_layer_does_and_nobody_can_count_leaves_layers_as_they_are(profiled):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    profile, records = profiled(model, torch.randn(BATCH, WIDTH), torch.linalg.svdvals)
    assert records.uncounted == {"aten::_linalg_svd": (-1,)}
    assert {layer.name: layer.flops for layer in profile.layers}["0"] == trained(
        linear(BATCH, WIDTH, WIDTH), needs_input_gradient=False
    )
    assert profile.flops is None
    assert any("not counted for aten::_linalg_svd." in note for note in profile.notes)


def test_a_product_of_sparse_numbers_is_not_that_of_all_numbers():
    sparse = torch.eye(4).to_sparse()
    given = sparse, torch.randn(4, 5)
    assert flops_of(torch.ops.aten.mm.default, given, {}, None) is None


class Distilled(nn.Module):
    """A teacher in a mode in which torch takes no operation apart."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.LSTM(WIDTH, HIDDEN, batch_first=True)
        self.conv = nn.Conv1d(WIDTH, HIDDEN, 1)
        self.student = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, inputs):
        with torch.inference_mode():
            found = self.teacher(inputs)[0]
            mixed = torch.einsum("blw,bvw->blv", found, found).softmax(-1) @ found
            mixed = mixed + self.conv(inputs.transpose(1, 2)).transpose(1, 2)
        return self.student(mixed.clone())


def test_inference_mode(counted):
    by_layer, whole = counted(Distilled(), torch.randn(BATCH, LENGTH, WIDTH))
    assert by_layer["teacher"] == recurrent(4, WIDTH, HIDDEN)
    assert by_layer["conv"] == linear(BATCH * LENGTH, WIDTH, HIDDEN)
    assert by_layer[""] == 2 * 2 * BATCH * LENGTH * LENGTH * HIDDEN
    student = linear(BATCH * LENGTH, HIDDEN, HIDDEN)
    assert by_layer["student"] == trained(student, needs_input_gradient=False)
    assert whole == sum(by_layer.values())


def test_nested_tensors(counted):
    """They do each operation by others on what they hold."""

    def nested(step):
        parts = [torch.randn(length, WIDTH) for length in (2, 4)]
        return torch.nested.nested_tensor(parts, layout=torch.jagged)

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, HIDDEN)

        def forward(self, inputs):
            return self.inner(inputs).values()

    by_layer, whole = counted(Nested(), nested)
    assert by_layer["inner"] == whole
    assert whole == trained(linear(2 + 4, WIDTH, HIDDEN), needs_input_gradient=False)


PRODUCTS = re.compile(
    "mm|mv|matmul|conv|linear|rnn|lstm|gru|atten|linalg|cholesky|solve|svd|qr|_fft|rnn|encoder"
    "|euclid|dist_|lu_|sparse_mat|compute_linear"
)
NO_PRODUCTS = re.compile(
    "upsample_.*linear|convert_|_cell|gamma|flatten|reorder|check_errors|mm_search|lu_unpack|dummy|cumm|sqrt"
    "|linalg_(vector_norm|cross|_powsum)|4bit_weight|[crg]?elu|glu|silu|_fftfreq|hamming|erfinv"
)


def test_every_operation_of_this_torch_is_either_counted_or_known_to_need_no_count():
    """What is not known makes a step unmeasured: only products, in a form that has no formula."""
    unknown, taken_for_none = set(), set()
    for name in torch._C._dispatch_get_all_op_names():
        operation = _operation(name)
        if operation is None or torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        ):
            continue  # it is dispatched as others
        has_none = has_no_flops(operation)
        if formula_of(operation) is None and not has_none:
            unknown.add(name)
        if has_none and PRODUCTS.search(name) and not NO_PRODUCTS.search(name):
            taken_for_none.add(name)
    assert not taken_for_none
    assert not {each for each in unknown if not PRODUCTS.search(each)}


def _operation(name):
    full, _, form = name.partition(".")
    library, _, base = full.partition("::")
    if library != "aten" or base.startswith(("_test", "_foobar")):
        return None
    return getattr(getattr(torch.ops.aten, base, None), form or "default", None)
