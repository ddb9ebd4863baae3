"""CUDA graphs, through the real hooks: a stand-in for torch's class records and replays on the CPU.

The stand-in has the methods that torch's class has; what is captured runs on tensors all the same.
"""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traceml.model.record_layout import NOT_MEASURED
from traceml.trace import current, graphs, hooks, models, optimizer_search


class Graph:
    """Keeps a function where torch's keeps kernels."""

    def __init__(self):
        self.work = None
        self.is_capturing = False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        self.is_capturing = True

    def capture_end(self):
        self.is_capturing = False

    def replay(self):
        if self.work is not None:
            self.work()

    def capture(self, function, replayed=None):
        self.capture_begin()
        try:
            function()
        finally:
            self.capture_end()
        self.work = replayed
        return self


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """In place before tracing begins."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)


class Loop:
    """A model that trains on one static batch, as captured loops do."""

    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(8, 4)

    def forward_and_backward(self):
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()

    def step(self):
        self.forward_and_backward()
        self.optimizer.step()


def test_every_replay_of_a_captured_step_is_a_step(traced):
    loop = Loop()
    for _ in range(3):
        loop.step()
    graph = Graph().capture(loop.step)
    for _ in range(30):
        graph.replay()
    steps = traced.complete()
    assert len(steps) == 33
    replayed = steps[3:]
    assert (replayed["graph_ns"] >= 0).all()
    for name in ("forward_ns", "backward_ns", "optimizer_ns"):
        assert (replayed[name] == NOT_MEASURED).all()
    assert (replayed["optimizer_steps"] == 1).all()
    assert (steps["graph_ns"][:3] == NOT_MEASURED).all()
    assert steps["compile_ns"][3] > 0  # capturing is no phase of any step


def test_a_step_captured_without_a_warm_up_is_seen_from_the_first_replay(traced):
    loop = Loop()
    graph = Graph().capture(loop.step)
    for _ in range(5):
        graph.replay()
    steps = traced.complete()
    assert len(steps) == 5
    assert (steps["graph_ns"] >= 0).all()


def test_a_captured_step_of_a_loader_counts_its_samples(traced):
    loop = Loop()
    graph = Graph().capture(loop.step)
    for (inputs,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
        loop.inputs.copy_(inputs)
        graph.replay()
    steps = traced.complete()
    assert len(steps) == 8
    assert (steps["samples"] == 8).all()


def test_a_graph_of_forward_and_backward_belongs_to_the_eager_optimizers_step(traced):
    loop = Loop()
    loop.step()
    graph = Graph().capture(loop.forward_and_backward)
    for _ in range(10):
        graph.replay()
        loop.optimizer.step()
    steps = traced.complete()[1:]
    assert len(steps) == 10
    assert (steps["graph_ns"] >= 0).all()
    assert (steps["optimizer_ns"] > 0).all()
    assert (steps["backward_ns"] == NOT_MEASURED).all()


@pytest.mark.parametrize("warm_up", [0, 3])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_graph_of_backward_and_a_compiled_optimizer_make_a_step(
    traced, nothing_compiled, warm_up, micro_batches
):
    loop = Loop()
    update = torch.compile(loop.optimizer.step, backend="eager")
    for _ in range(warm_up):
        loop.forward_and_backward()
        update()
    graph = Graph().capture(loop.forward_and_backward)
    for _ in range(10):
        for _ in range(micro_batches):
            graph.replay()
        update()
    steps = traced.complete()[warm_up:]
    assert len(steps) == 10
    assert (steps["graph_ns"] >= 0).all()
    assert (steps["micro_batches"] == micro_batches).all()
    assert (steps["optimizer_steps"] == 1).all()


def test_a_graph_that_holds_a_compiled_optimizer_is_a_step(traced, nothing_compiled):
    """No hook sees it while it is captured, but what it changes does show."""
    loop = Loop()
    update = torch.compile(loop.optimizer.step, backend="eager")

    def step():
        loop.forward_and_backward()
        update()

    for _ in range(3):
        step()
    graph = Graph().capture(step)
    for _ in range(10):
        graph.replay()
    steps = traced.complete()
    assert len(steps) == 13
    assert (steps["graph_ns"][3:] >= 0).all()
    assert (steps["optimizer_steps"] == 1).all()


def test_graphed_callables_make_no_steps_of_their_own(traced):
    """As `make_graphed_callables` does: a graph for forward and one for backward, in autograd."""
    loop = Loop()
    loop.step()
    weight, inputs = loop.model.weight, loop.inputs
    forward = Graph().capture(lambda: loop.model(inputs))

    def backward_of_model():
        torch.autograd.grad(loop.model(inputs).sum(), loop.model.parameters())

    backward = Graph().capture(backward_of_model)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(context, weight):
            forward.replay()
            return inputs @ weight.t()

        @staticmethod
        def backward(context, gradient):
            backward.replay()
            return gradient.t() @ inputs

    for _ in range(6):
        loop.optimizer.zero_grad()
        Graphed.apply(weight).square().mean().backward()
        loop.optimizer.step()
    steps = traced.complete()[1:]
    assert len(steps) == 6
    assert (steps["graph_ns"] == NOT_MEASURED).all()
    assert (steps["backward_ns"] > 0).all()
    assert (steps["micro_batches"] == 1).all()


def test_graphs_of_anything_else_are_nothing_to_us(traced):
    """As inductor's are: compiled code calls no hook while it is captured."""
    loop = Loop()
    graph = Graph().capture(lambda: loop.inputs.square())
    for _ in range(6):
        graph.replay()
        loop.step()
        graph.replay()
    steps = traced.complete()
    assert len(steps) == 6
    assert (steps["graph_ns"] == NOT_MEASURED).all()


def test_a_graph_that_updates_parameters_by_hand_is_a_step(traced, monkeypatch):
    monkeypatch.setattr(optimizer_search, "_any_optimizer_made", lambda: False)
    model = nn.Linear(4, 1)
    inputs = torch.randn(8, 4)

    def step():
        model(inputs).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    graph = Graph().capture(step)
    for _ in range(8):
        graph.replay()
    assert len(traced.complete()) == 8


def test_a_capture_that_fails_changes_nothing_and_is_traced_on_after(traced):
    loop = Loop()
    loop.step()

    def fail():
        loop.forward_and_backward()
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        Graph().capture(fail)
    assert traced.session.tracing
    for _ in range(4):
        loop.step()
    assert len(traced.complete()) == 5


def test_another_graph_in_a_dead_ones_place_is_not_taken_for_it(traced):
    watched = models.Models(traced.session)
    known = models.KnownOptimizers(watched)
    search = optimizer_search.OptimizerSearch(traced.session, watched, known)
    watching = graphs.Graphs(traced.session, search)
    watching._begin(first := Graph())
    watching.hold_backward()
    watching._end(first)
    entry = watching._known[id(first)]
    assert entry[0]() is first
    del first
    assert entry[0]() is None  # it is not kept alive, and known to be dead
    watching._begin(second := Graph())
    assert set(watching._known) == {id(second)}
    watching._end(second)


def test_the_class_is_left_as_it_was(tmp_path):
    before = dict(vars(Graph))
    hooks.install(current.start(tmp_path, None, None))
    assert vars(Graph)["replay"] is not before["replay"]
    current.end()
    assert {name: vars(Graph)[name] for name in before} == before
