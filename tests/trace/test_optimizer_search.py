"""Optimizers that no hook sees: compiled ones, and those of a script's own kind."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from traceml.model.record_layout import NOT_MEASURED
from traceml.trace import models, optimizer_search
from traceml.trace.models import Models

pytestmark = pytest.mark.usefixtures("nothing_compiled")


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


def test_a_compiled_step_is_seen_after_one_that_failed_uncompiled(traced):
    loop = Loop()

    def fail(*_):
        raise RuntimeError("out of memory, say")

    hook = loop.optimizer.register_step_post_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.step()
    hook.remove()
    loop.update = torch.compile(loop.optimizer.step, backend="eager")
    for _ in range(8):
        loop.step()
    assert len(traced.complete()) >= 7  # the first may be taken for a part of the one that failed


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


def update_by_hand(parameters):
    with torch.no_grad():
        for each in parameters:
            each -= 0.01 * each.grad
            each.grad = None


def test_of_a_model_that_is_updated_by_hand_the_device_is_asked(traced, monkeypatch):
    monkeypatch.setattr(optimizer_search, "_any_optimizer_made", lambda: False)
    asked = []
    monkeypatch.setattr(Models, "use_device", lambda models, parameters: asked.extend(parameters))
    model = nn.Linear(4, 4)
    for _ in range(12):
        model(torch.randn(2, 4)).square().mean().backward()
        update_by_hand(model.parameters())
    assert [id(each) for each in asked] == [id(each) for each in model.parameters()]
    assert len(traced.complete()) == 12


def test_parameters_that_are_elsewhere_do_not_hide_the_gpu(traced, monkeypatch):
    followed = []
    monkeypatch.setattr(traced.session, "follow_cuda", followed.append)
    devices = [torch.device(each) for each in ("cpu", "meta", "cuda:2")]
    Models(traced.session).use_device(SimpleNamespace(device=each) for each in devices)
    assert followed == [2] and traced.session.device == "cpu"


def test_tensors_without_a_module_are_taken_to_be_on_the_gpu_that_is_in_use(traced, monkeypatch):
    followed = []
    monkeypatch.setattr(optimizer_search, "_any_optimizer_made", lambda: False)
    monkeypatch.setattr(models, "_uses_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(traced.session, "follow_cuda", followed.append)
    weight = torch.randn(4, 4, requires_grad=True)
    for _ in range(12):
        (torch.randn(2, 4) @ weight).square().mean().backward()
        update_by_hand([weight])
    assert followed == [3]


def test_gradients_that_are_asked_for_after_training_are_no_steps(traced, monkeypatch):
    monkeypatch.setattr(optimizer_search, "MIN_PATIENCE", 4)
    monkeypatch.setattr(optimizer_search, "MAX_PASSES_WITHOUT_STEP", 16)
    loop = Loop()
    for _ in range(5):
        loop.step()
    for _ in range(60):
        loop.backward()
    assert len(traced.complete()) == 5


class Gan:
    """Two networks that train each other, each with an optimizer of its own."""

    def __init__(self, compiled):
        self.maker, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)
        self.make = torch.optim.SGD(self.maker.parameters(), lr=0.01)
        self.decide = torch.optim.SGD(self.judge.parameters(), lr=0.01)
        self.updates = [self.decide.step, self.make.step]
        if compiled:
            self.updates = [torch.compile(update, backend="eager") for update in self.updates]

    def train_judge(self, inputs):
        self.decide.zero_grad()
        made = self.maker(inputs).detach()
        (self.judge(inputs).mean() - self.judge(made).mean()).backward()
        self.updates[0]()

    def train_maker(self, inputs):
        self.make.zero_grad()
        self.judge(self.maker(inputs)).mean().backward()
        self.updates[1]()


BOTH = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def _batches(fetches):
    inputs = torch.randn(80, 4)
    return torch.utils.data.DataLoader(inputs, batch_size=8) if fetches else inputs.split(8)


def _counts(steps):
    return [tuple(each) for each in steps[["micro_batches", "optimizer_steps"]]]


@BOTH
@pytest.mark.parametrize("fetches", [False, True], ids=["no loader", "loader"])
def test_both_updates_of_a_gan_are_one_step(traced, compiled, fetches):
    gan = Gan(compiled)
    for inputs in _batches(fetches):
        gan.train_judge(inputs)
        gan.train_maker(inputs)
    assert _counts(traced.complete()) == [(2, 2)] * 10


@BOTH
def test_a_gan_whose_first_network_is_trained_more_often_counts_alike(traced, compiled):
    gan = Gan(compiled)
    for index in range(12):
        gan.train_judge(torch.randn(8, 4))
        if index % 3 == 2:
            gan.train_maker(torch.randn(8, 4))
    assert _counts(traced.complete()) == [(1, 1)] * 3 + [(2, 2), (1, 1), (1, 1)] * 3


@BOTH
@pytest.mark.parametrize("fetches", [False, True], ids=["no loader", "loader"])
def test_two_optimizers_that_share_a_model_make_one_step(traced, compiled, fetches):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    matrices = [each for each in model.parameters() if each.dim() == 2]
    others = [each for each in model.parameters() if each.dim() != 2]
    optimizers = [torch.optim.SGD(matrices, lr=0.01), torch.optim.AdamW(others, lr=0.01)]
    updates = [each.step for each in optimizers]
    if compiled:
        updates = [torch.compile(each, backend="eager") for each in updates]
    for inputs in _batches(fetches):
        model(inputs).square().mean().backward()
        for update in updates:
            update()
        model.zero_grad()
    assert _counts(traced.complete()) == [(1, 2)] * 10


def test_a_gan_with_updates_of_its_own_kind_takes_one_step_per_batch(traced):
    gan = Gan(compiled=False)

    def update(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad

    gan.updates = [lambda: update(gan.judge), lambda: update(gan.maker)]
    for _ in range(8):
        gan.train_judge(torch.randn(8, 4))
        gan.train_maker(torch.randn(8, 4))
    assert [micro_batches for micro_batches, _ in _counts(traced.complete())] == [2] * 8


def test_a_module_without_gradients_among_the_callers_variables_holds_nothing_up(traced):
    frozen, empty = nn.Linear(4, 1).requires_grad_(requires_grad=False), nn.Identity()
    weight = nn.Parameter(torch.ones(4))
    (frozen(torch.ones(1, 4)) + empty(weight).sum()).sum().backward()
    assert traced.session._failures == 0


def test_two_compiled_optimizers_of_the_same_parameters_count_once(traced):
    loop = Loop()
    spare = torch.optim.SGD(loop.model.parameters(), lr=0.1)  # as a wrapper around another has
    loop.update = torch.compile(loop.optimizer.step, backend="eager")
    for _ in range(6):
        loop.step()
    assert spare.param_groups
    assert _counts(traced.complete()) == [(1, 1)] * 6
