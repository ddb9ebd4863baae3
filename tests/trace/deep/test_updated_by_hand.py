"""Scripts without an optimizer, which update parameters by hand: each backward pass is a step."""

import numpy as np
import pytest
import torch
from tests.trace.deep.test_bad_values import (
    BAD_STEP,
    NanBackward,
    Overflows,
    bad_value,
    with_planted,
)
from torch import nn
from torch.utils.data import DataLoader

from traceml.trace import optimizer_search
from traceml.trace.deep import gradient_norms

STEPS = 16


@pytest.fixture(params=[True, False], ids=["from a loader", "made in the loop"])
def batches(request):
    made = torch.randn(STEPS, 4, 4)
    return DataLoader(made, batch_size=None) if request.param else list(made)


@pytest.fixture
def deep(begin_deep, monkeypatch):
    """A session with the deep profile that measures the norms of every step."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 1.0)
    monkeypatch.setattr(optimizer_search, "_any_optimizer_made", lambda: False)
    return begin_deep()


def train(model, batches):
    """The norm of each step's whole gradient."""
    norms = []
    for batch in batches:
        model(batch).square().mean().backward()
        with torch.no_grad():
            squares = [each.grad.square().sum() for each in model.parameters()]
            norms.append(float(torch.stack(squares).sum().sqrt()))
            for each in model.parameters():
                each -= 0.01 * each.grad
                each.grad = None
    return norms


def test_norms_are_those_of_the_step_in_which_they_were_measured(deep, batches):
    norms = train(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), batches)
    found = deep().norms
    assert len(found.steps) > STEPS / 2 and found.steps[-1] == STEPS
    seen = np.sqrt(np.nansum(np.square(found.values), axis=1))
    assert seen == pytest.approx([norms[step - 1] for step in found.steps], rel=1e-4)


@pytest.mark.parametrize(
    ("planted", "phase"),
    [(Overflows(BAD_STEP), "forward"), (NanBackward(BAD_STEP), "backward")],
    ids=["forward", "backward"],
)
def test_the_layer_and_the_step_of_the_first_bad_value_are_named(deep, batches, planted, phase):
    planted.calls = 0
    train(with_planted(planted), batches)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, phase, "block.planted")


def test_parameters_that_the_update_loses_are_those_of_its_step(deep, batches):
    model = with_planted(nn.Identity())

    class Loses(list):
        def __iter__(self):
            for number, batch in enumerate(batches, 1):
                if number == BAD_STEP + 1:
                    nn.init.constant_(model.last.weight, float("nan"))
                yield batch

    train(model, Loses())
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "optimizer", "last")
