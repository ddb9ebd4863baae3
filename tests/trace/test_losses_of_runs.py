"""What is said of the losses of real trainings: accumulating loops, a GAN, a loss that is lost."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traceml.diagnose.engine import diagnose
from traceml.facts.gather import gather
from traceml.facts.loss_values import LossScale
from traceml.model.finding import Kind, Section
from traceml.store.load import load_run
from traceml.trace import current

LEVEL = 6.0


class Training:
    """A model whose loss is whatever the test wants."""

    def __init__(self):
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def backward(self, value):
        (self.model(torch.ones(2, 4)).mean() * 0 + value).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


def facts_of(traced):
    traced.finish()
    return gather(load_run(traced.folder))


def kinds(facts):
    return [finding.kind for finding in diagnose(facts).sections[Section.STABILITY]]


def accumulate(epochs, batches, size, divisor):
    """Windows of so many micro-batches; an epoch's last one is what is left."""
    training = Training()
    loader = DataLoader(TensorDataset(torch.zeros(batches, 1)), batch_size=1)
    for _ in range(epochs):
        taken = iter(loader)
        while window := list(itertools.islice(taken, size)):
            for _ in window:
                training.backward(LEVEL / divisor(len(window)))
            training.update()


def test_a_loss_divided_by_its_window_is_shown_as_the_loss_of_the_step(traced):
    """As Hugging Face's trainer does: the last window of 25 batches has one, and divides by one."""
    accumulate(4, 25, 4, divisor=lambda window: window)
    facts = facts_of(traced)
    loss = facts.stability.loss
    assert loss.scale is LossScale.DIVIDED
    assert (loss.first, loss.last) == (LEVEL, LEVEL)
    assert kinds(facts) == [Kind.STABLE]


def test_a_loss_divided_by_a_fixed_number_is_shown_as_it_was_passed(traced):
    """As Accelerate does: the last window of 25 batches has one, and divides by four."""
    accumulate(4, 25, 4, divisor=lambda window: 4)
    facts = facts_of(traced)
    loss = facts.stability.loss
    assert loss.scale is LossScale.AS_GIVEN
    assert (loss.first, loss.last, loss.backwards) == (LEVEL / 4, LEVEL / 4, 4)
    (finding,) = diagnose(facts).sections[Section.STABILITY]
    assert "as passed to the first of 4 backward calls of a step" in finding.claim


def test_the_two_losses_of_a_gan_are_kept_apart(traced):
    """The generator steps only every fifth time: the critic's loss is what is shown."""
    critic, generator = Training(), Training()
    for step in range(60):
        critic.backward(0.5)
        critic.update()
        if step % 5 == 4:
            generator.backward(40.0)
            generator.update()
    facts = facts_of(traced)
    assert (facts.stability.loss.first, facts.stability.loss.last) == (0.5, 0.5)
    assert kinds(facts) == [Kind.STABLE]


@pytest.mark.parametrize("lost", [float("inf"), float("nan")])
def test_a_loss_that_is_lost_is_known_with_its_step(traced, lost):
    training = Training()
    for step in range(1, 31):
        training.backward(1.257 if step < 3 else lost)
        training.update()
    found = facts_of(traced).stability.loss.not_finite
    assert (found.first_step, found.finite_step, found.count) == (3, 2, 28)
    assert found.last_finite == pytest.approx(1.257)


def test_a_loss_that_is_lost_in_the_last_step_alone_is_seen(traced):
    training = Training()
    for step in range(1, 31):
        training.backward(1.0 if step < 30 else float("nan"))
        training.update()
    facts = facts_of(traced)
    assert facts.stability.loss.not_finite.first_step == 30
    assert diagnose(facts).primary.kind is Kind.NON_FINITE_LOSS


def test_a_loss_that_is_lost_in_a_step_that_is_never_completed_is_seen(traced):
    training = Training()
    for _ in range(10):
        training.backward(1.0)
        training.update()
    training.backward(float("nan"))
    current.end()
    assert facts_of(traced).stability.loss.not_finite.first_step == 11


def test_the_last_loss_is_the_one_that_the_script_ended_with(traced):
    training = Training()
    values = [0.3141 / (1 + step) for step in range(40)]
    for value in values:
        training.backward(value)
        training.update()
    loss = facts_of(traced).stability.loss
    assert loss.first == pytest.approx(values[0])
    assert loss.last == pytest.approx(values[-1])
    assert loss.values == 40
