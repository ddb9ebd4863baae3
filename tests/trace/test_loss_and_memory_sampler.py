"""Memory and loss as they are looked at when a backward pass begins."""

import os
import warnings
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import traceml
from traceml.model.record_layout import NOT_MEASURED, StepFlag
from traceml.trace import loss_and_memory_sampler

KEPT_BYTES = 16 << 20


@pytest.fixture
def every_step(monkeypatch):
    """Look at every step, however short it is."""
    monkeypatch.setattr(loss_and_memory_sampler, "EVERY_NS", 0)


@pytest.fixture
def traced_closely(every_step, traced):
    return traced


class Training:
    """A model that the test takes through steps, one by one."""

    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def loss(self):
        return self.model(torch.randn(8, 4)).square().mean()

    def step(self, backward):
        with traceml.trace_step(self.model):
            backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def losses_of(steps):
    """The losses that were seen, `None` where none was."""
    seen = (steps["flags"] & int(StepFlag.LOSS_SEEN)) != 0
    return [loss if there else None for loss, there in zip(steps["loss"], seen, strict=True)]


# Memory


def test_memory_that_a_loop_keeps_is_seen_to_grow(traced_closely):
    training, kept = Training(), []

    def backward():
        # Not torch's allocator: it may give what earlier tests have left.
        kept.append(torch.frombuffer(mmap(-1, KEPT_BYTES), dtype=torch.uint8).fill_(1))
        training.loss().backward()

    for _ in range(12):
        training.step(backward)
    held = traced_closely.complete()["rss_bytes"]
    grown = np.diff(held)[1:]  # the first step imports and prepares
    assert (grown > 0.9 * KEPT_BYTES).sum() >= len(grown) - 1  # the kernel may take pages back once
    assert grown.sum() > 0.9 * KEPT_BYTES * len(grown)


def test_resident_memory_is_what_linux_says():
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("VmRSS")]
    assert loss_and_memory_sampler.resident_bytes() == pytest.approx(
        int(line.split()[1]) * 1024, rel=0.05
    )


def test_memory_is_looked_at_ten_times_a_second_at_most_and_the_loss_always(traced):
    training = Training()
    for _ in range(300):
        training.step(lambda: training.loss().backward())
    steps = traced.complete()
    looks = 1 + steps["wall_ns"].sum() / 1e8
    assert 1 <= (steps["rss_bytes"] != NOT_MEASURED).sum() <= looks
    assert None not in losses_of(steps)


def test_memory_is_seen_without_a_backward_pass_too(traced_closely):
    training = Training()
    for _ in range(4):
        training.step(training.loss)
    assert (traced_closely.complete()["rss_bytes"][1:] > 0).all()


def test_where_linux_does_not_tell_memory_is_not_measured(traced_closely, monkeypatch):
    monkeypatch.setattr(loss_and_memory_sampler, "_STATM", os.devnull + "/none")
    training = Training()
    training.step(lambda: training.loss().backward())
    assert (traced_closely.complete()["rss_bytes"] == NOT_MEASURED).all()


# The loss


def test_the_loss_is_the_one_that_gradients_are_asked_for(traced_closely):
    training, expected = Training(), []

    def backward():
        loss = training.loss()
        expected.append(loss.item())
        loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            training.step(backward)
    assert losses_of(traced_closely.complete()) == expected


def test_a_loss_that_is_no_number_is_seen(traced_closely):
    training = Training()
    training.step(lambda: (training.loss() * float("nan")).backward())
    training.step(lambda: (training.loss() + float("inf")).backward())
    first, second = losses_of(traced_closely.complete())
    assert np.isnan(first)
    assert np.isnan(second)  # by now the weights are


def test_of_several_backward_passes_the_first_one_counts(traced_closely):
    training, expected = Training(), []

    def backward():
        for _ in range(3):
            loss = training.loss()
            expected.append(loss.item())
            loss.backward()

    training.step(backward)
    assert losses_of(traced_closely.complete()) == [expected[0]]


def test_of_several_backward_passes_one_that_is_not_finite_counts(traced):
    training = Training()
    weights = [1.0, float("inf"), 1.0]
    training.step(lambda: [(training.loss() * 0 + weight).backward() for weight in weights])
    assert losses_of(traced.complete()) == [float("inf")]


def test_a_loss_is_known_before_a_grad_scaler_scaled_it(traced):
    training, expected = Training(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward():
        loss = training.loss()
        expected.append(loss.item())
        scaler.scale(loss).backward()

    for _ in range(3):
        training.step(backward)
    assert losses_of(traced.complete()) == expected


def test_a_scaled_loss_that_was_never_used_is_not_taken_for_the_next(traced):
    training = Training()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(training.loss())
    training.step(lambda: (training.loss() * 0 + 3).backward())
    assert losses_of(traced.complete()) == [3.0]


def test_steps_that_are_found_without_being_told_have_their_own_losses(traced):
    """Where a step ends is learnt in the second step: its loss must not become the first one's."""
    training, expected = Training(), []
    for _ in range(4):
        loss = training.loss()
        expected.append(loss.item())
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    assert losses_of(traced.complete()) == expected


def test_the_losses_of_a_gan_are_those_of_its_first_network(traced):
    """Two optimizers step in turn: what is recorded is always the loss of the same one."""
    first, second = Training(), Training()
    for _ in range(6):
        for training, value in ((first, 2.0), (second, 30.0)):
            (training.loss() * 0 + value).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert set(losses_of(traced.complete())) == {2.0}


def test_the_first_loss_and_the_first_that_is_lost_are_written_down_once(traced):
    training = Training()
    for value in (4.0, 3.0, float("nan"), 2.0, float("inf")):
        training.step(lambda value=value: (training.loss() * 0 + value).backward())
    traced.finish()
    first, lost = [each for each in traced.messages() if each["kind"] == "loss"]
    assert (first["step"], first["value"]) == (1, 4.0)
    assert (lost["step"], lost["value"]) == (3, "nan")
    assert (lost["finite_step"], lost["finite_value"]) == (2, 3.0)


def _vector(training):
    training.loss().expand(3).backward(torch.ones(3))


def _gradient(training):
    torch.autograd.grad(training.loss(), training.model.weight)


def _several(training):
    torch.autograd.backward([training.loss(), training.loss()])


@pytest.mark.parametrize("ask", [_vector, _gradient, _several])
def test_what_is_no_loss_is_not_taken_for_one(traced_closely, ask):
    training = Training()
    training.step(lambda: ask(training))
    assert losses_of(traced_closely.complete()) == [None]


def test_a_list_of_one_loss_is_that_loss(traced_closely):
    training = Training()
    training.step(lambda: torch.autograd.backward(tensors=[training.loss() * 0 + 2]))
    assert losses_of(traced_closely.complete()) == [2.0]


def test_a_backward_pass_inside_another_is_not_asked(traced_closely):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            return inputs.clone()

        @staticmethod
        def backward(context, gradient):
            with torch.enable_grad():
                torch.full((), 7.0, requires_grad=True).backward()
            return gradient

    training = Training()
    training.step(lambda: Inner.apply(training.loss() * 0 + 2).backward())
    assert losses_of(traced_closely.complete()) == [2.0]


def test_whoever_watches_every_operation_sees_none_of_ours(traced_closely):
    class Operations(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names = (*self.names, str(function))
            return function(*args, **(kwargs or {}))

    training = Training()
    loss = training.loss()
    with Operations() as seen:
        training.step(lambda: loss.backward())
    assert seen.names
    assert not any("item" in name or "local_scalar" in name for name in seen.names)
    assert losses_of(traced_closely.complete()) == [None]


def test_whoever_watches_every_function_sees_none_of_ours(traced):
    """A default device is such a watcher too, so the loss is read nevertheless."""

    class Functions(TorchFunctionMode):
        names = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.names = (*self.names, getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    training = Training()
    loss = training.loss() * 0 + 5
    with Functions() as seen:
        training.step(lambda: loss.backward())
    assert "backward" in seen.names
    assert not {"item", "numel", "detach", "is_floating_point"} & set(seen.names)
    assert losses_of(traced.complete()) == [5.0]


def test_a_loss_that_cannot_be_read_costs_its_value_alone(traced):
    """A sparse matrix of one element has no value that torch would give."""
    training = Training()

    def backward():
        one = training.loss().reshape(1, 1).to_sparse_csr()
        one.backward(torch.ones(1, 1).to_sparse_csr())

    for _ in range(3):
        training.step(backward)
    steps = traced.complete()
    assert (steps["backward_ns"] > 0).all()
    assert losses_of(steps) == [None] * 3
