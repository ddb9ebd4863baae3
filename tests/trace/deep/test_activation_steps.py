"""The largest number that each layer returns, also where a function transform calls layers."""

import numpy as np
import torch
from torch import nn

from traceml.trace.deep.bursts import FIRST_BURST


class PerSample(nn.Module):
    """Calls a layer for each sample by `vmap`, whose tensors only seem to be plain ones."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        return torch.func.vmap(lambda sample: self.inner(sample))(inputs)


def test_a_layer_that_a_function_transform_calls_is_passed_over(deep):
    model = nn.Sequential(PerSample(), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(FIRST_BURST + 40):
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = deep()  # which wants no failure of ours
    assert not found.notes and len(found.largest.steps) > 0
    largest = dict(zip(found.names, found.largest.values[-1], strict=True))
    assert np.isnan(largest.pop("0.inner"))
    assert np.isfinite([*largest.values()]).all()
