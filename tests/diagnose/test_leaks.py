"""A real script that keeps what it should let go is caught, and one that lets it go is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from processes import run_traceml

MIB = 1 << 20
TRAINING = """\
import time
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = torch.randn(1000, 256)
outputs = []
step, ends = 0, time.monotonic() + 4  # memory is read ten times a second
while step < 300 or time.monotonic() < ends:
    step += 1
    optimizer.zero_grad()
    model(features).mean().backward()
    optimizer.step()
    output = torch.full((1 << 17,), float(step))  # half a MiB
    outputs = [*outputs, output] if KEEPS else [output]
"""


def memory_of(tmp_path: Path, keeps: bool) -> dict[str, Any]:
    """The memory section of a run's summary."""
    done = run_traceml(["run", "train.py"], tmp_path, f"KEEPS = {keeps}\n{TRAINING}")
    assert done.status == 0, done.stderr
    return dict(done.summary["step_memory"])


def test_tensors_kept_in_every_step_are_memory_creep(tmp_path: Path) -> None:
    found = memory_of(tmp_path, keeps=True)["diagnosis"]
    assert found["kind"] in ("CREEP_EARLY", "CREEP_CONFIRMED"), found
    assert found["evidence"]["place"] == "host"
    assert found["evidence"]["per_1000_steps_bytes"] == pytest.approx(500 * MIB, rel=0.25)
    assert found["ranks"] == [0]


def test_tensors_let_go_in_every_step_are_not(tmp_path: Path) -> None:
    assert memory_of(tmp_path, keeps=False)["diagnosis"]["kind"] == "BALANCED"
