"""Which calls are a part of training: neither an evaluation nor that of a frozen part is one."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.deep.bursts import FIRST_BURST

STEPS = FIRST_BURST + 20


class Distilled(nn.Module):
    """A student beside its teacher, in the style of Lightning: the step is no call of the model."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = nn.Linear(4, 4)

    def training_step(self, inputs):
        with torch.no_grad():
            wanted = self.teacher(inputs)
        return (self.student(inputs) - wanted).square().mean()


class NeedsGradients(nn.Module):
    """A frozen part that asks for the gradient of its input, as an energy's is asked for."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(4, 4)

    def forward(self, inputs):
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            return torch.autograd.grad(self.energy(inputs).sum(), inputs)[0]


class CallsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs, depth=2):
        return self(self.inner(inputs), depth - 1) if depth else inputs


class FailsInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(self._fail)

    def _fail(self, *_):
        raise ArithmeticError("mine")

    def forward(self, inputs):
        with contextlib.suppress(ArithmeticError):
            self.inner(inputs)
        return inputs


TEACHERS = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    "with gradients inside": NeedsGradients,
    "calls itself": CallsItself,
    "fails inside": FailsInside,
}


def train(model, each_step=lambda step: None, steps=STEPS):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    call = getattr(model, "training_step", None) or (lambda inputs: model(inputs).square().mean())
    for step in range(1, steps + 1):
        loss = call(torch.randn(2, 4))
        optimizer.zero_grad()
        loss.backward()
        each_step(step)
        optimizer.step()


def calls_by_name(found):
    return {name: set(found.calls[:, place]) for place, name in enumerate(found.names)}


@pytest.mark.parametrize("teacher", TEACHERS.values(), ids=TEACHERS)
def test_a_frozen_part_that_is_evaluated_in_every_step_leaves_the_rest_to_be_seen(deep, teacher):
    train(Distilled(teacher()))
    found = deep()
    assert not found.notes and len(found.steps) >= 6
    calls = calls_by_name(found)
    assert calls.pop("student") == {1}
    assert set().union(*calls.values()) == {0}  # neither the teacher nor anything in it
    assert len(found.largest.steps) > 0 and found.held_bytes and found.counted


def evaluates(model, mode=torch.no_grad):
    def evaluate(step):
        model.eval()
        with mode():
            model(torch.zeros(1, 4))
        model.train()

    return evaluate


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_that_is_evaluated_in_every_step_is_seen_without_its_evaluation(deep, mode):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    train(model, evaluates(model, mode))
    found = deep()
    assert not found.notes and len(found.steps) >= 6
    assert set(found.calls.flatten()) == {1}


def test_what_an_evaluation_returns_is_as_without_the_deep_profile(deep):
    """Torch's transformer layers take a faster way in an evaluation, unless a module has hooks."""
    ways = []
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    fast = torch._transformer_encoder_layer_fwd

    def evaluate(step):
        model.eval()
        with torch.no_grad(), pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                torch,
                "_transformer_encoder_layer_fwd",
                lambda *given: (
                    ways.append(bool(module_hooks._global_forward_hooks)) or fast(*given)
                ),
            )
            model(torch.ones(1, 3, 4))
        model.train()

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(STEPS):
        model(torch.randn(2, 3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        evaluate(step)
    assert deep().steps
    assert len(ways) == STEPS and set(ways) == {False, True}


def test_an_evaluation_that_is_interrupted_costs_its_own_step_at_most(deep):
    model, calls = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 2 * (FIRST_BURST + 1):  # each step calls it twice, evaluating last
            raise KeyboardInterrupt

    model[1].register_forward_pre_hook(interrupt)

    def evaluate(step):
        with contextlib.suppress(KeyboardInterrupt):
            evaluates(model)(step)
        model.train()

    train(model, evaluate)
    found = deep()
    assert not found.notes and len(found.steps) >= 6
    assert FIRST_BURST + 1 not in found.steps and set(found.calls.flatten()) == {1}


@pytest.mark.slow
def test_a_frozen_part_that_is_compiled_is_not_taken_for_code_that_calls_the_model(
    deep, nothing_compiled
):
    teacher = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    train(Distilled(teacher))
    found = deep()
    assert not found.notes and len(found.steps) >= 4
    assert calls_by_name(found)["student"] == {1} and not found.calls_compiled
