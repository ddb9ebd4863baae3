"""The norm of a step is that of its whole gradient, however many backward passes make it."""

import time

import numpy as np
import pytest
import torch
from tests.trace.deep.test_bursts import Parts, WaitsBackward, train
from torch import nn

from traceml.trace.deep import bursts
from traceml.trace.deep.gradient_norms import (
    ALARM_STEPS,
    GROWING_STEPS,
    REMEMBERED_STEPS,
    SPARSE,
)
from traceml.trace.deep.late_numbers import LateNumbers
from traceml.trace.deep.time_budget import TimeBudget

PASSES = 8


@pytest.fixture
def affordable(monkeypatch):
    """Chooses which measurements are allowed, by how often was asked before; whether was asked."""
    asked = []

    def choose(is_allowed):
        def allows(budget, now):
            asked.append(now)
            return is_allowed(len(asked))

        monkeypatch.setattr(TimeBudget, "allows", allows)
        return asked

    return choose


def accumulate(passes_of_steps, change_loss=lambda step, number, loss: loss):
    """Trains with the gradients of several passes in each step; the norm of each step's whole
    gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    whole = {}
    for step, passes in enumerate(passes_of_steps, start=1):
        for number in range(1, passes + 1):
            loss = model(torch.randn(4, 4)).square().mean() / passes
            change_loss(step, number, loss).backward()
        gradients = [each.grad.norm() for each in model.parameters()]
        whole[step] = float(torch.stack(gradients).norm())
        optimizer.step()
        optimizer.zero_grad()
    return whole


def assert_whole(norms, whole):
    totals = (norms.values**2).sum(axis=1, where=norms.values == norms.values) ** 0.5
    measured = dict(zip(norms.steps, totals.tolist(), strict=True))
    assert measured == pytest.approx({step: whole[step] for step in measured}, rel=1e-3)


def test_with_accumulation_it_is_measured_after_the_last_pass_only(deep, affordable):
    asked = affordable(lambda times: times % 3 == 0)
    whole = accumulate([PASSES] * 30)
    norms = deep().norms
    assert len(norms.steps) >= 5
    assert_whole(norms, whole)
    assert len(asked) < 3 * 30  # also by bursts; not after every pass


def test_a_tensor_in_a_parameters_place_is_not_asked_for_its_gradient(deep, recwarn):
    """As in meta-learning: torch warns where a non-leaf tensor is."""
    model = Parts(one=nn.Linear(4, 4), last=nn.Linear(4, 4))
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    own = model.one.weight
    for _ in range(20):
        model.one._parameters["weight"] = own * 1.0
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.one._parameters["weight"] = own
    found = deep()
    assert found.norms.steps and "gradients" in found.held_bytes
    assert [str(each.message) for each in recwarn if "leaf" in str(each.message)] == []


def test_layers_with_sparse_gradients_are_said_to_have_no_norm(deep):
    class LooksUp(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(8, 4, sparse=True) for _ in range(3))

        def forward(self, inputs):
            return inputs + sum(table(torch.tensor([3, 5])) for table in self.tables)

    train(Parts(look=LooksUp(), last=nn.Linear(4, 4)), steps=12)
    found = deep()
    norms = dict(zip(found.names, found.norms.values[-1].tolist(), strict=True))
    assert np.isnan(norms["look.tables.0"]) and norms["last"] > 0
    assert [note for note in found.notes if "norm" in note] == [SPARSE.format("look.tables.*")]


@pytest.mark.parametrize(
    "passes", [(1, 3), (3, 1, 1), (2, 5)], ids=["in-turn", "a-longer-one-at-times", "never-one"]
)
def test_steps_of_several_kinds_are_all_measured(deep, affordable, passes):
    affordable(lambda times: times % 5 < 2)
    pattern = passes * (24 // len(passes))
    whole = accumulate(pattern)
    norms = deep().norms
    assert_whole(norms, whole)
    assert {pattern[step - 1] for step in norms.steps} == set(passes)


def test_a_shorter_last_step_of_an_epoch_costs_no_later_step_its_norm(
    deep, affordable, monkeypatch
):
    monkeypatch.setattr(bursts, "COUNTED_BURST", None)  # a step with a mode has no norms
    affordable(lambda times: True)
    pattern = ([PASSES] * REMEMBERED_STEPS + [3]) * 3
    whole = accumulate(pattern)
    norms = deep().norms
    assert_whole(norms, whole)
    long = {step for step, passes in enumerate(pattern, start=1) if passes == PASSES}
    assert long - {1} <= set(norms.steps)


def test_an_alarm_lasts_for_steps_not_for_backward_passes(deep, affordable):
    """Nothing is measured but what an alarm asks for."""
    affordable(lambda times: False)
    at = 6

    def infinite_with_finite_gradients(step, number, loss):
        return loss + float("inf") if (step, number) == (at, 2) else loss

    whole = accumulate([4] * (at + 2 * ALARM_STEPS), infinite_with_finite_gradients)
    norms = deep().norms
    assert norms.steps == tuple(range(at, at + ALARM_STEPS))
    assert_whole(norms, whole)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise MemoryError("planted")


def fail_in_backward(model):
    """An attempt at a step that the script gives up, as after running out of memory."""
    loss = _Fails.apply(model(torch.randn(2, 4))).square().mean()
    with pytest.raises(MemoryError, match="planted"):
        loss.backward()


def test_a_backward_pass_that_fails_and_is_caught_ends_there(deep):
    wait_s = 0.05
    model = Parts(one=nn.Linear(4, 4), slow=WaitsBackward())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(12):
        fail_in_backward(model)
        time.sleep(wait_s)
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = deep()
    assert len(found.steps) >= 2
    # Were the wait counted, it would be in each of them; a busy machine interrupts some.
    assert found.outside_ns["host_backward"].min() < wait_s * 1e9
    backward_s = found.times_ns["host_backward"][:, found.names.index("slow")] / 1e9
    assert 0.01 < backward_s.min() < wait_s


def test_a_gradient_to_which_a_later_pass_was_to_be_added_is_no_step_s(deep, affordable):
    """That pass fails, and the script steps with what is there."""
    affordable(lambda times: True)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(12):
        model(torch.randn(2, 4)).square().mean().backward()
        if step % 2:
            fail_in_backward(model)
        optimizer.step()
        optimizer.zero_grad()
    assert set(deep().norms.steps) == {3, 5, 7, 9, 11}


def test_a_loss_that_grows_has_the_next_steps_measured(deep, affordable):
    """Nothing is measured but what the growth of the loss asks for: tenfold, and tenfold again."""
    affordable(lambda times: False)
    first, again = 20, 40

    def grow(step, number, loss):
        return loss + (1e4 if step >= again else 100 if step >= first else 0)

    whole = accumulate([1] * 60, grow)
    norms = deep().norms
    expected = [range(start, start + GROWING_STEPS) for start in (first, again)]
    assert norms.steps == tuple(step for steps in expected for step in steps)
    assert_whole(norms, whole)


def test_steps_that_cannot_be_measured_while_the_loss_grows_do_not_count(
    deep, affordable, monkeypatch
):
    """As where a GPU has not computed earlier norms yet."""
    affordable(lambda times: False)
    first, full, steps = 20, range(22, 25), []

    def grow(step, number, loss):
        steps.append(step)
        return loss + (100 if step >= first else 0)

    has_room = property(lambda numbers: steps[-1] not in full)
    monkeypatch.setattr(LateNumbers, "has_room", has_room)
    accumulate([1] * 40, grow)
    measured = [step for step in range(first, 40) if step not in full][:GROWING_STEPS]
    assert deep().norms.steps == tuple(measured)


def test_a_bad_value_while_the_loss_grows_is_an_alarm_all_the_same(deep, affordable):
    affordable(lambda times: False)
    first = 20

    def explode(step, number, loss):
        return loss + (float("inf") if step == first + 2 else 100 if step >= first else 0)

    accumulate([1] * 40, explode)
    assert deep().norms.steps == tuple(range(first, first + 2 + ALARM_STEPS))


@pytest.mark.parametrize(("size", "is_finite"), [(1e25, True), (float("inf"), False)])
def test_a_huge_gradient_is_finite_though_its_squares_are_not(deep, affordable, size, is_finite):
    affordable(lambda times: True)
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.ones(1, 4)) * size).sum().backward()
        optimizer.step()
    norms = deep().norms
    assert len(norms.steps) and norms.values[-1, 1] == (
        pytest.approx(2e25) if is_finite else np.inf
    )
