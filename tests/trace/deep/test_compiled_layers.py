"""The deep profile beside torch.compile: compiled code is measured as a whole, and not noticed."""

import time
import warnings

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.modules import module as module_hooks

from traceml.facts.layers import layer_profile
from traceml.trace.deep import bursts
from traceml.trace.deep.bursts import FIRST_BURST, RECOMPILED
from traceml.trace.deep.operation_steps import COMPILED
from traceml.trace.deep.timed_steps import HIDDEN

STEPS = FIRST_BURST + 14
"""Until bursts have looked at every kind of step, with no limit to their share of the time."""
WAIT_S = 0.01
BACKEND = "aot_eager"
"""It compiles quickly; what it makes runs as a function of autograd's own, as inductor's does."""


@torch.compiler.disable
def wait(inputs):
    time.sleep(WAIT_S)
    return inputs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs):
        return inputs + self.norm(self.inner(inputs)).relu()


class Model(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.last = nn.Linear(4, 4)

    def forward(self, inputs):
        inputs = self.first(inputs)
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return self.last(inputs)


def whole(model, compile_):
    return compile_(model)


def in_place(model, compile_):
    model.compile(backend=BACKEND)
    return model


def each_block(model, compile_):
    for block in model.blocks:
        block.compile(backend=BACKEND)
    return model


def one_block(model, compile_):
    model.blocks[1] = compile_(model.blocks[1])
    return model


def nested(model, compile_):
    each_block(model, compile_)
    return compile_(model)


def function_in_a_layer(model, compile_):
    block = model.blocks[0]
    forward = compile_(lambda inputs: block.norm(block.inner(inputs)).relu())
    block.forward = lambda inputs: inputs + forward(inputs)
    return model


def around(model, compile_):
    return compile_(lambda inputs: model(inputs))


WAYS = [whole, in_place, each_block, one_block, nested, function_in_a_layer, around]


def forget_compiled():
    torch._dynamo.reset()
    counters.clear()


def trained(way, steps=STEPS, sizes=(3,), dynamic=None):
    """Train; the losses, what Dynamo did, and what torch warned of."""
    forget_compiled()
    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    called = way(model, lambda each: torch.compile(each, backend=BACKEND, dynamic=dynamic))
    optimizer = torch.optim.SGD(parameters, 0.1)
    losses = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(steps):
            loss = called(torch.randn(sizes[step % len(sizes)], 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    made = {key: dict(counters[key]) for key in ("stats", "frames", "graph_break")}
    forget_compiled()
    return losses, made, [str(each.message) for each in seen]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(3,), (3, 3, 3, 3, 3, 3, 5, 7)], ids=["fixed", "changing"])
def test_training_and_compiling_are_the_same_with_and_without(deep, way, sizes):
    seen = trained(way, sizes=sizes)
    deep()
    plain = trained(way, sizes=sizes)  # the session is over
    assert seen == plain
    assert not module_hooks._global_forward_hooks and not module_hooks._global_forward_pre_hooks


@pytest.fixture(scope="module", autouse=True)
def torch_is_warm():
    """What torch makes at the first call of compiled code would be counted for the first test."""
    trained(whole, steps=3, sizes=(3, 5))


def calls_of(found):
    return {name: found.calls[:, place].max() for place, name in enumerate(found.names)}


NAMES = [
    *("", "first", "blocks"),
    *(f"blocks.{n}{part}" for n in (0, 1) for part in ("", ".inner", ".norm")),
    "last",
]


def test_a_compiled_model_is_measured_as_a_whole(deep):
    trained(whole)
    found = deep()
    assert list(found.names) == NAMES and len(found.steps) >= 4
    assert {name for name, calls in calls_of(found).items() if calls} == {""}
    assert found.compiled == {0} and not found.calls_compiled
    for phase in ("host_forward", "host_backward"):
        times = found.times_ns[phase]
        assert (times[:, 0] > 0).all() and not times[:, 1:].any()
    # The inputs of both compiled passes, in the one function that autograd sees.
    assert found.held_bytes["saved"][0] > 3 * 4 * 4 and not found.held_bytes["saved"][1:].any()


@pytest.mark.parametrize(
    ("way", "compiled"), [(each_block, {"blocks.0", "blocks.1"}), (one_block, {"blocks.1"})]
)
def test_layers_around_compiled_blocks_are_seen_one_by_one(deep, way, compiled):
    trained(way)
    found = deep()
    assert list(found.names) == NAMES
    assert {found.names[place] for place in found.compiled} == compiled
    inside = {f"{name}.{part}" for name in compiled for part in ("inner", "norm")}
    called = {name for name, calls in calls_of(found).items() if calls}
    assert called == set(NAMES) - inside - {"blocks"}
    assert set(calls_of(found).values()) == {0, 1}
    places = [found.names.index(name) for name in called - {""}]
    for phase in ("host_forward", "host_backward"):
        assert (found.times_ns[phase][:, places] > 0).all(), phase


def test_time_of_a_compiled_block_is_its_own(deep):
    def slow_block(model, compile_):
        block = model.blocks[1]
        forward = block.forward
        block.forward = lambda inputs: forward(wait(inputs))
        block.compile(backend=BACKEND)
        return model

    trained(slow_block)
    found = deep()
    forward = dict(zip(found.names, found.times_ns["host_forward"].mean(axis=0), strict=True))
    assert forward.pop("blocks.1") >= WAIT_S * 1e9 > max(forward.values())


def test_a_layer_that_calls_a_compiled_function_is_told(deep):
    trained(function_in_a_layer)
    found = deep()
    assert {found.names[place] for place in found.calls_compiled} == {"blocks.0"}
    assert not found.compiled
    assert calls_of(found)["blocks.0"] == 1 and calls_of(found)["blocks.0.inner"] == 0


@pytest.mark.parametrize("way", [whole, one_block])
def test_operations_of_compiled_code_are_said_not_to_be_counted(deep, monkeypatch, way):
    monkeypatch.setattr(bursts, "COUNTED_BURST", 0)
    trained(way)
    found = deep()
    assert found.why_uncounted == COMPILED and not found.counted
    (note,) = [each for each in layer_profile([found], {}).notes if "not counted" in each]
    assert "TORCH_COMPILE_DISABLE=1" in note


def test_a_compiled_function_around_the_model_is_said_to_hide_it(deep):
    trained(around)
    found = deep()
    assert not found.steps and found.notes == (HIDDEN,)


def test_a_model_that_is_compiled_later_is_measured_as_a_whole_from_then_on(deep):
    torch.manual_seed(0)
    model = Model()
    called = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3 * STEPS):
        if step == STEPS:
            called = torch.compile(model, backend=BACKEND)
        called(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    found = deep()
    before, after = (found.calls[[s <= STEPS for s in found.steps]], found.calls[-2:])
    assert before[0].all() or before[0].tolist().count(0) == 1  # the list of blocks is not called
    assert after.tolist() == [[1] + [0] * (len(NAMES) - 1)] * 2
    assert found.compiled == {0}


def test_what_is_compiled_while_operations_are_counted_is_not_compiled_with_the_counting(deep):
    """That step has begun by then, and our mode is in torch."""
    model = Model()
    first = nn.Linear(4, 4)
    optimizer = torch.optim.SGD([*first.parameters(), *model.parameters()], 0.1)
    called = model
    breaks = counters["graph_break"]
    before = dict(breaks)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3 * STEPS):
            hidden = first(torch.randn(3, 4))
            if called is model and torch._C._len_torch_dispatch_stack():
                called = torch.compile(model, backend=BACKEND)
            called(hidden).square().mean().backward()
            optimizer.step()
    assert called is not model and dict(breaks) == before


def test_a_step_in_which_torch_compiles_is_not_taken_for_a_usual_one(deep):
    """With another size from the first step that is looked at on."""
    compiled_in = []

    def way(model, compile_):
        return torch.compile(model, backend=backend, dynamic=False)

    def backend(graph, inputs):
        compiled_in.append(len(module_hooks._global_forward_pre_hooks))
        return graph.forward

    trained(way, sizes=(3,) * FIRST_BURST + (5, 5, 5, 5))
    found = deep()
    assert compiled_in == [0, 0]
    assert FIRST_BURST + 1 not in found.steps and FIRST_BURST + 2 in found.steps


def test_compiling_in_every_step_is_given_up_and_said(deep):
    def way(model, compile_):
        def called(inputs):
            torch._dynamo.reset()
            return compiled(inputs)

        compiled = compile_(model)
        return called

    trained(way, steps=FIRST_BURST + 12)
    assert deep().notes == (RECOMPILED,)


def test_code_that_is_first_compiled_in_a_burst_is_compiled_without_our_hooks(deep, monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(len(module_hooks._global_forward_pre_hooks))
        return graph.forward

    for look in (FIRST_BURST, FIRST_BURST + 3):  # a step that is timed, one that is counted
        forget_compiled()
        helper = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        compiled = torch.compile(lambda inputs, helper=helper: helper(inputs), backend=backend)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            model(torch.randn(3, 4)).square().mean().backward()
            if step >= look:
                compiled(torch.ones(2, 4))
            optimizer.step()
        assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    assert graphs == [0, 0]
    assert deep().steps


def test_an_exception_in_compiled_code_goes_its_way(deep):
    model = Model()
    calls = []

    @torch.compiler.disable
    def fail_once(inputs):
        calls.append(1)
        if len(calls) == FIRST_BURST + 1:
            raise ArithmeticError("mine")
        return inputs

    forward = model.blocks[0].forward
    model.blocks[0].forward = lambda inputs: fail_once(forward(inputs))
    model.blocks[0].compile(backend=BACKEND)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    caught = 0
    for _ in range(STEPS):
        try:
            model(torch.randn(3, 4)).square().mean().backward()
        except ArithmeticError:
            caught += 1
        optimizer.step()
        optimizer.zero_grad()
    assert caught == 1
    assert len(deep().steps) >= 4


def test_a_backward_pass_that_is_compiled_has_none_of_our_hooks(deep):
    """With compiled autograd, which compiles the hooks in the graph too."""

    def trained_by_compiled_autograd():
        forget_compiled()
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend=BACKEND)):
                loss.backward()
            optimizer.step()
        return loss.item(), {key: dict(found) for key, found in counters.items()}

    seen = trained_by_compiled_autograd()
    found = deep()
    assert "host_forward" in found.times_ns and "host_backward" not in found.times_ns
    assert seen == trained_by_compiled_autograd()
