"""A loop on a GPU that makes its batches by hand: the function that does so is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_programs import TRACEML_RUN, run_all, summary_of, with_turns
from traceml.agent.stack_sampler import find_py_spy

pytestmark = pytest.mark.gpu

SCRIPT = """\
import time
import torch
from gpu_turn import wait_for_turn
from torch import nn

wait_for_turn()
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def get_batch():
    end = time.perf_counter() + 0.010
    while time.perf_counter() < end:
        sum(range(100))
    return torch.randn(64, 256).cuda()


end = time.monotonic() + 4
while time.monotonic() < end:
    loss = model(get_batch()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_batches_made_by_hand_are_named(tmp_path: Path) -> None:
    if not find_py_spy():
        pytest.skip("py-spy is not installed")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*TRACEML_RUN, "--run-name", "batches", "train.py"]
    (done,) = run_all([command], tmp_path, with_turns(tmp_path))
    assert done.returncode == 0, done.stderr
    summary = summary_of(tmp_path, "batches")
    seen = summary["user_time"]
    assert seen["looks"] >= 30
    first = seen["phases"]["residual"]["places"][0]
    assert (first["function"], first["file"]) == ("get_batch", "train.py")
    assert first["share"] > 0.8
    said = " ".join(issue["summary"] for issue in summary["step_time"]["issues"])
    assert "get_batch (train.py:" in said


BACKWARD = """\
import time
import torch
from gpu_turn import wait_for_turn
from torch import nn

wait_for_turn()


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        end = time.perf_counter() + 0.010
        while time.perf_counter() < end:
            sum(range(100))
        return gradient * 2


model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
end = time.monotonic() + 5
while time.monotonic() < end:
    optimizer.zero_grad()
    Slow.apply(model(torch.randn(64, 256, device="cuda"))).mean().backward()
    optimizer.step()
"""


def test_python_in_the_thread_of_autograd_is_with_the_other_threads(tmp_path: Path) -> None:
    """The training thread waits in its one call of backward meanwhile."""
    if not find_py_spy():
        pytest.skip("py-spy is not installed")
    (tmp_path / "train.py").write_text(BACKWARD)
    command = [*TRACEML_RUN, "--profile=deep", "--run-name", "backward", "train.py"]
    (done,) = run_all([command], tmp_path, with_turns(tmp_path))
    assert done.returncode == 0, done.stderr
    found = summary_of(tmp_path, "backward")["host_time"]
    assert found["phases"]["backward"]["share"] > 0.5
    named = {place["function"].rpartition(".")[2] for place in found["phases"]["threads"]["places"]}
    assert "backward" in named
