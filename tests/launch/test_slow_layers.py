"""Real ranks with the deep profile: a layer that is slow on one of them, one that becomes slow, and
equal ranks on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import run_traceml

SCRIPT = """
import gc, os, sys
import torch, torch.distributed as dist
from torch import nn
from traceml.trace.deep.time_budget import TimeBudget
TimeBudget.allows = lambda budget, now: True  # as many looks on a busy machine as on a quiet one
torch.set_num_threads(1)
STEPS, PLANTED = int(sys.argv[1]), sys.argv[2] == "planted"
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.linear = number, nn.Linear(128, 128)
    def forward(self, x):
        always = self.number == 2 and rank == 1
        slow = PLANTED and (always or (self.number == 4 and rank == 0 and step >= STEPS // 2))
        with torch.no_grad():
            for _ in range(40 if slow else 4):
                torch.mm(x, self.linear.weight)
        return torch.relu(self.linear(x))

model = nn.parallel.DistributedDataParallel(nn.Sequential(*map(Block, range(6))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(64, 128)
for step in range(STEPS):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
dist.barrier()
# DDP sits in reference cycles; a gloo group that it keeps alive until exit may abort there
del model, optimizer
gc.collect()
dist.destroy_process_group()
"""
BUSY = "while True: pass"


def trained(folder: Path, steps: int, how: str) -> dict[str, Any]:
    command = ["run", "--profile=deep", "--nproc-per-node", "2", "train.py", "--args"]
    done = run_traceml([*command, str(steps), how], folder, SCRIPT)
    assert done.status == 0, done.stderr
    return done.summary


@contextmanager
def busy_machine() -> Iterator[None]:
    """Other programs want the cores, too."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def issues(summary: dict[str, Any]) -> dict[str, Any]:
    return {issue["kind"]: issue for issue in summary["step_time"]["issues"]}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Block 2 is slow on rank 1, and block 4 becomes slow on rank 0 halfway."""
    return trained(tmp_path_factory.mktemp("planted"), 200, "planted")


def test_the_layer_that_is_slow_on_one_rank_is_named(planted: dict[str, Any]) -> None:
    """Its rule is silent where rank 1 waits longer for a starved rank 0 than the layer costs."""
    of_rank_1 = [each for each in planted["layers"]["slow_on_rank"] if each["rank"] == 1]
    assert [(each["layer"], each["kernel"]) for each in of_rank_1] == [("2", None)]
    assert of_rank_1[0]["interval"][0] > 1.25
    found = issues(planted).get("SLOW_LAYER_ON_RANK")
    assert found is None or (found["ranks"], found["evidence"]["layer"]) == ([1], "2")


def test_the_layer_that_becomes_slow_is_named_with_its_step(planted: dict[str, Any]) -> None:
    found = issues(planted)["LAYER_SLOWED_DOWN"]
    assert found["ranks"] == [0] and found["evidence"]["layer"] == "4"
    assert 90 <= found["evidence"]["since_step"] <= 120
    assert "on rank 0; the other rank has not slowed down in it" in found["summary"]


def test_equal_ranks_on_a_busy_machine_have_no_slow_layer(tmp_path: Path) -> None:
    with busy_machine():
        summary = trained(tmp_path, 200, "equal")
    assert summary["layers"]["steps"] >= 30, "enough to find something"
    assert summary["layers"]["slow_on_rank"] == [] and summary["layers"]["slowed_down"] == []
    assert not issues(summary).keys() & {"SLOW_LAYER_ON_RANK", "LAYER_SLOWED_DOWN"}
