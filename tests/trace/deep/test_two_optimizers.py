"""Loops that step two optimizers on each batch: the looks at them hold whole steps."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import traceml
from lookahead_loader import LooksAhead
from traceml.trace import autograd_graph
from traceml.trace.deep import bursts

STEPS = 40


def loader(workers=0, per_step=1):
    data = torch.randn(2 * STEPS * per_step, 4)
    return DataLoader(data, batch_size=2, num_workers=workers)


BATCHES = {
    "without a loader": lambda: [torch.randn(2, 4) for _ in range(STEPS)],
    "loader": loader,
    "worker": lambda: loader(workers=1),
    "fetched ahead": lambda: LooksAhead(loader()),
}


class Gan:
    """The generator's output is made before either optimizer steps, and used by both."""

    def __init__(self):
        self.makes = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        self.judges = nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.2), nn.Linear(5, 1))
        self.makers, self.judge = (
            torch.optim.Adam(model.parameters(), 1e-3) for model in (self.makes, self.judges)
        )

    def losses(self, real):
        made = self.makes(torch.randn(2, 4))

        def of_judge():
            self.judge.zero_grad()
            return self.judges(real).mean() - self.judges(made.detach()).mean()

        def of_makers():
            self.makers.zero_grad()
            return self.judges(made).mean()

        return (of_judge, self.judge), (of_makers, self.makers)

    def step(self, real, is_judge_first=True):
        turns = self.losses(real)
        for loss, optimizer in turns if is_judge_first else turns[::-1]:
            loss().backward()
            optimizer.step()


def assert_whole(found, batches=1):
    """Every layer of both models is seen in the forward and the backward pass of every step."""
    assert len(found.steps) >= 4 and not found.notes
    parts = [place for place, kind in enumerate(found.kinds) if kind != "Sequential"]
    assert len(parts) == 6
    assert (found.times_ns["host_backward"][:, parts] > 0).all()
    saved = dict(zip(found.names, found.held_bytes["saved"], strict=True))
    linear = [place for place in parts if found.kinds[place] == "Linear"]
    assert all(size > 0 for name, size in saved.items() if name.endswith("0")), saved
    assert (found.counted["forward_flops"][linear] > 0).all()
    assert (found.counted["backward_flops"][linear] > 0).all()
    assert (found.row_steps == 1).all()
    assert {tuple(sorted(set(row[parts]))) for row in found.calls} == {(batches, 3 * batches)}


@pytest.mark.slow
@pytest.mark.parametrize("is_judge_first", [True, False], ids=["judge first", "makers first"])
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES.keys())
def test_each_look_holds_a_whole_step(deep, batches, is_judge_first):
    gan = Gan()
    for real in batches():
        gan.step(real, is_judge_first)
    assert_whole(deep())


@pytest.mark.slow
@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES.keys())
def test_so_it_does_where_the_script_bounds_its_steps(deep, batches):
    gan = Gan()
    for real in batches():
        with traceml.trace_step(gan.makes):
            gan.step(real)
    assert_whole(deep())


def test_so_it_does_where_gradients_of_several_batches_are_added_up(deep):
    gan = Gan()
    for number, real in enumerate(loader(per_step=2)):
        for loss, _ in gan.losses(real):
            loss().backward()
        if number % 2:
            gan.judge.step()
            gan.makers.step()
    assert_whole(deep(), batches=2)


def test_so_it_does_where_one_of_them_steps_more_seldom(deep):
    """Most batches have one optimizer: a look that begins before the second is begun anew."""
    gan = Gan()
    for number, real in enumerate(loader()):
        (loss, judge), (_, makers) = gan.losses(real)
        loss().backward()
        judge.step()
        if number % 5 == 4:
            gan.makers.zero_grad()
            gan.judges(gan.makes(torch.randn(2, 4))).mean().backward()
            makers.step()
    found = deep()
    assert len(found.steps) >= 4
    is_linear = np.array(found.kinds) == "Linear"
    of_makers = int(np.argmax(is_linear & (found.calls.max(axis=0) == 2)))
    calls, backward_ns = found.calls[:, of_makers], found.times_ns["host_backward"][:, of_makers]
    assert set(calls.tolist()) == {1, 2}
    assert ((backward_ns > 0) == (calls == 2)).all()


def test_a_loop_that_ends_fetching_is_looked_at_all_the_same(deep):
    gan = Gan()
    for batches in (list(loader())[:1], loader(), [torch.randn(2, 4)] * STEPS):
        for real in batches:
            gan.step(real)
    found = deep()
    assert found.steps[-1] > STEPS + 20
    assert (found.row_steps == 1).all()


def test_of_a_backward_pass_through_what_was_computed_before_the_look_nothing_is_claimed(deep):
    """The next batch is fetched between the two optimizers: no fetch, and nothing else, says where
    the loop's own step begins."""
    gan, batches = Gan(), iter(loader())
    real = next(batches)
    for _ in range(STEPS - 1):
        (loss, judge), (other, makers) = gan.losses(real)
        loss().backward()
        judge.step()
        real = next(batches)
        other().backward()
        makers.step()
    found = deep()
    assert found.notes == (bursts.REACHES_BACK,)
    linear = [place for place, kind in enumerate(found.kinds) if kind == "Linear"]
    backward_ns = found.times_ns.get("host_backward", np.full((1, len(found.names)), np.nan))
    assert not (backward_ns[:, linear] == 0).any()
    assert "saved" not in found.held_bytes
    assert not found.counted


def test_a_view_of_a_weight_that_is_kept_from_step_to_step_is_no_part_of_an_earlier_step(deep):
    """It needs no forward pass of its own: nothing is lost."""
    layer = nn.Linear(4, 4)
    turned = layer.weight.t()
    model = nn.Sequential(layer, nn.Tanh())
    optimizer = torch.optim.SGD([layer.bias], 1e-3)
    for _ in range(STEPS):
        (model(torch.randn(2, 4)) @ turned).square().mean().backward()
        optimizer.step()
    found = deep()
    assert not found.notes and (found.times_ns["host_backward"][:, 1] > 0).all()


def test_a_loop_with_one_optimizer_may_fetch_in_the_middle_of_its_step(deep):
    model, batches = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), iter(loader())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    real = next(batches)
    for _ in range(STEPS - 1):
        loss = model(real).mean()
        real = next(batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = deep()
    assert not found.notes and (found.times_ns["host_backward"][:, 1:] > 0).all()


def test_a_penalty_on_gradients_is_no_part_of_an_earlier_step(deep):
    gan = Gan()
    for real in loader():
        (loss, judge), (other, makers) = gan.losses(real)
        given = real.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(gan.judges(given).sum(), given, create_graph=True)
        (loss() + gradient.square().mean()).backward()
        judge.step()
        other().backward()
        makers.step()
    found = deep()
    assert not found.notes and found.counted


def gradient_by_a_thread_from(number, outputs, inputs):
    """The gradient as the device's own thread computes it on a GPU, whose operations have numbers
    of their own: here from this number on."""
    found = []

    def compute():
        counted = torch.ones((), requires_grad=True)
        while autograd_graph.next_operation() < number:
            counted.abs()
        found.extend(torch.autograd.grad(outputs, inputs, create_graph=True))

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return found[0]


def test_a_penalty_that_another_thread_numbers_like_an_earlier_step_is_none(deep):
    gan, step_began = Gan(), autograd_graph.next_operation()
    for real in loader():
        before, step_began = step_began, autograd_graph.next_operation()
        (loss, judge), (other, makers) = gan.losses(real)
        given = real.clone().requires_grad_()
        gradient = gradient_by_a_thread_from(before, gan.judges(given).sum(), given)
        (loss() + gradient.square().mean()).backward()
        judge.step()
        other().backward()
        makers.step()
    found = deep()
    assert not found.notes and found.counted
