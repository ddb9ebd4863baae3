"""`time_inference` on a CUDA device: the result is waited for, and events tell the GPU's time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import traceml

pytestmark = pytest.mark.gpu

CYCLES = 20_000_000
"""About ten milliseconds of a GPU that does nothing else."""


class Sleeping(nn.Module):
    """Keeps the GPU busy, and returns at once on the host."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(CYCLES)
        return x + 1


def test_a_call_takes_as_long_as_its_result() -> None:
    batch = torch.zeros(16, 4, device="cuda")
    found = traceml.time_inference(Sleeping(), batch, warmup=2, calls=10)
    assert found.device.startswith("cuda") and found.batch_size == 16
    assert found.gpu_p50_ms is not None and found.gpu_p50_ms > 2
    # The host returns in microseconds: whoever does not wait would measure those.
    assert found.latency_p50_ms >= 0.9 * found.gpu_p50_ms
    assert found.throughput_per_s is not None
    assert found.throughput_per_s <= 1.3 * 16 * 1000 / found.gpu_p50_ms


def test_a_model_on_the_gpu_with_a_batch_on_the_host_is_waited_for() -> None:
    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4).cuda()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(CYCLES)
            result: torch.Tensor = self.layer(x.cuda())
            return result

    found = traceml.time_inference(Copying(), torch.zeros(8, 4), warmup=1, calls=5)
    assert found.device.startswith("cuda")
    assert found.gpu_p50_ms is not None and found.latency_p50_ms >= 0.9 * found.gpu_p50_ms > 1
