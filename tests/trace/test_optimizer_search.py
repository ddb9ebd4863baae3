"""Optimizers that no hook sees: compiled ones, and those of a script's own kind."""

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from traceml.model.layout import NOT_MEASURED
from traceml.trace import optimizer_search


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Neither before a test nor after: other tests look at what torch has compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Loop:
    def __init__(self, kind=torch.optim.SGD, **options):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01, **options)
        self.inputs = torch.randn(8, 4)
        self.update = self.optimizer.step

    def backward(self):
        self.model(self.inputs).square().mean().backward()

    def step(self):
        self.backward()
        self.update()
        self.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("backend", "kind", "options"),
    [
        ("eager", torch.optim.SGD, {}),
        ("aot_eager", torch.optim.AdamW, {"foreach": True}),
        ("aot_eager", torch.optim.Adam, {"capturable": True, "foreach": False}),
    ],
)
def test_a_compiled_step_is_seen_from_the_first_on(traced, backend, kind, options):
    loop = Loop(kind, **options)
    loop.update = torch.compile(loop.optimizer.step, backend=backend)
    for _ in range(12):
        loop.step()
    steps = traced.complete()
    assert len(steps) == 12
    assert (steps["micro_batches"] == 1).all()
    assert (steps["optimizer_steps"] == 1).all()
    assert (steps["backward_ns"] > 0).all()
    assert (steps["optimizer_ns"] == NOT_MEASURED).all()


def test_a_compiled_train_step_is_seen(traced):
    loop = Loop()

    @torch.compile(backend="eager")
    def train(inputs):
        loop.model(inputs).square().mean().backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=8):
        train(inputs)
    steps = traced.complete()
    assert len(steps) == 8
    assert (steps["samples"] == 8).all()
    assert (steps["backward_ns"] > 0).all()


def test_micro_batches_of_a_compiled_step_count_once(traced):
    loop = Loop()
    update = torch.compile(loop.optimizer.step, backend="eager")
    for index in range(24):
        loop.backward()
        if index % 4 == 3:
            update()
            loop.optimizer.zero_grad()
    steps = traced.complete()
    assert len(steps) == 6
    assert (steps["micro_batches"] == 4).all()


def test_a_step_that_a_scaler_skips_is_none(traced):
    loop = Loop()
    update = torch.compile(loop.optimizer.step, backend="eager")
    for index in range(10):
        loop.backward()
        if index % 2:  # the other time the gradients overflowed
            update()
        loop.optimizer.zero_grad()
    assert len(traced.complete()) == 5


def test_an_optimizer_that_is_compiled_later_is_seen_again(traced):
    loop = Loop()
    for _ in range(5):
        loop.step()
    loop.update = torch.compile(loop.optimizer.step, backend="eager")
    for _ in range(20):
        loop.step()
    steps = traced.complete()
    assert len(steps) == 24  # compiling is what makes us look: the first goes by unseen
    assert (steps["micro_batches"][6:] == 1).all()


def test_an_optimizer_of_the_scripts_own_kind_is_seen_by_what_it_changes(traced):
    loop = Loop()  # torch's own is made, and never steps

    def update():
        with torch.no_grad():
            for parameter in loop.model.parameters():
                parameter -= 0.01 * parameter.grad

    loop.update = update
    for _ in range(12):
        loop.step()
    assert len(traced.complete()) == 12


def test_gradients_that_are_asked_for_after_training_are_no_steps(traced, monkeypatch):
    monkeypatch.setattr(optimizer_search, "MIN_PATIENCE", 4)
    monkeypatch.setattr(optimizer_search, "MAX_PASSES_WITHOUT_STEP", 16)
    loop = Loop()
    for _ in range(5):
        loop.step()
    for _ in range(60):
        loop.backward()
    assert len(traced.complete()) == 5
