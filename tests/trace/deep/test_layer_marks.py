"""Backward time belongs to the layer that computed what is differentiated, however tensors pass
from one layer to the next."""

from dataclasses import dataclass

import pytest
import torch
from tests.trace.deep.test_bursts import WAIT_S, WaitBackward, seconds, train
from torch import nn


@dataclass
class Passed:
    hidden: torch.Tensor
    note: str = "some"


class Inner(nn.Module):
    """Takes a tensor in one of several ways, and passes it on to another layer by position."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs=None, hidden=None, passed=None):
        given = [inputs, hidden, None if passed is None else passed.hidden]
        return self.linear(next(each for each in given if each is not None))


class Outer(nn.Module):
    """Does slow work between two layers, without a layer for it."""

    def __init__(self, call):
        super().__init__()
        self.first, self.inner, self.call = nn.Linear(4, 4), Inner(), call

    def forward(self, inputs):
        return self.call(self.inner, WaitBackward.apply(self.first(inputs)) * 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda inner, tensor: inner(tensor),
        lambda inner, tensor: inner(hidden=tensor),
        lambda inner, tensor: inner(None, hidden=tensor),
        lambda inner, tensor: inner(passed=Passed(tensor)),
    ],
    ids=["position", "keyword", "both", "dataclass"],
)
def test_what_a_layer_does_before_it_calls_another_is_its_own(deep, call):
    train(Outer(call))
    found = deep()
    backward_s = {name: seconds(found, "host_backward", name) for name in found.names}
    assert backward_s.pop("") >= WAIT_S > max(backward_s.values())


class ReturnsDataclass(nn.Module):
    def forward(self, inputs):
        return Passed(WaitBackward.apply(inputs))


class TakesDataclassApart(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.slow, self.last = nn.Linear(4, 4), ReturnsDataclass(), nn.Linear(4, 4)

    def forward(self, inputs):
        return self.last(self.slow(self.first(inputs)).hidden)


def test_what_a_layer_returns_in_a_dataclass_is_its_own(deep):
    train(TakesDataclassApart())
    found = deep()
    backward_s = {name: seconds(found, "host_backward", name) for name in found.names}
    assert backward_s.pop("slow") >= WAIT_S > max(backward_s.values())
