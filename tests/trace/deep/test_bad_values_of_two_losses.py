"""Two losses in a step: which of them lost the parameters, and when."""

import math

import pytest
import torch
from tests.trace.deep.test_bad_values import BAD_STEP, NanBackward
from torch import nn
from torch.utils.data import DataLoader

from traceml.diagnose.failure_words import bad_value_sentence
from traceml.facts.gradients import gradient_facts
from traceml.trace.deep import gradient_norms

STEPS = BAD_STEP + 6


@pytest.fixture(params=[1.0, 0.0], ids=["norms of every step", "no norms"])
def deep(request, begin_deep, monkeypatch):
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", request.param)
    return begin_deep()


def bad_value(found):
    return gradient_facts([found], {}).bad_value


class Judges(nn.Module):
    """Loses the gradient of real batches, from a step on."""

    def __init__(self, planted):
        super().__init__()
        self.first, self.last, self.planted = nn.Linear(4, 4), nn.Linear(4, 1), planted

    def forward(self, inputs, is_real=False):
        result = self.last(self.first(inputs).tanh())
        return self.planted(result) if is_real else result


def train(judges, is_loader=False, spoil=lambda step, optimizer: None):
    """A GAN: the generator's loss, of the same step, is computed by what judges."""
    makes = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    judge, makers = (torch.optim.SGD(model.parameters(), 0.01) for model in (judges, makes))
    data = torch.randn(2 * STEPS, 4)
    batches = DataLoader(data, batch_size=2) if is_loader else data.split(2)
    for step, real in enumerate(batches, start=1):
        made = makes(torch.randn(2, 4))
        judge.zero_grad()
        (judges(real, is_real=True).mean() - judges(made.detach()).mean()).backward()
        spoil(step, judge)
        judge.step()
        makers.zero_grad()
        judges(made).mean().backward()
        makers.step()


@pytest.mark.parametrize("is_loader", [True, False], ids=["loader", "no loader"])
def test_what_the_first_loss_loses_is_lost_in_that_step_and_told_once(deep, is_loader):
    train(Judges(NanBackward(BAD_STEP)), is_loader)
    found = deep()
    (told,) = found.bad_parameters
    assert told.step == BAD_STEP
    assert {found.kinds[place] for place in told.layers} == {"Linear"} and len(told.layers) == 2
    bad = bad_value(found)
    assert (bad.step, bad.phase) == (BAD_STEP, "backward")
    assert bad.layer.endswith("planted")
    assert "every gradient of it was finite" not in bad_value_sentence(bad)


def test_an_update_between_the_losses_is_not_laid_to_a_gradient_alone(deep):
    """The gradients that are measured at the step's end are those of the second loss."""

    def spoil(step, optimizer):
        if step == BAD_STEP:
            optimizer.param_groups[0]["lr"] = math.inf

    train(Judges(nn.Identity()), spoil=spoil)
    bad = bad_value(deep())
    assert bad.step == BAD_STEP and bad.is_of_parameters
    assert "or to the update" in bad_value_sentence(bad)


def test_losses_that_stay_finite_beside_lost_ones_tell_them_once(deep):
    """Two models that have nothing to do with one another."""
    lost, fine = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (fine, lost)]
    for step in range(1, STEPS + 1):
        for model, optimizer in zip((fine, lost), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).mean().backward()
            optimizer.step()
        if step == BAD_STEP:
            with torch.no_grad():
                lost.weight.fill_(math.nan)
    assert len(deep().bad_parameters) == 1
