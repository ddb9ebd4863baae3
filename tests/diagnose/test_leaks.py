"""A real script that keeps what it should let go is caught, and one that lets it go is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from processes import run_traceml

MIB = 1 << 20
TRAINING = """\
import time
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = torch.randn(64, 64)
outputs = []
for step in range(330):
    time.sleep(0.015)  # memory is read ten times a second, and has to be read often enough
    optimizer.zero_grad()
    model(features).mean().backward()
    optimizer.step()
    output = torch.full((1 << 19,), float(step))  # two MiB: much, beside an allocator's jumps
    outputs = [*outputs, output] if KEEPS else [output]
"""


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """What is said of the memory of a script that keeps its outputs, and of one that does not."""

    folders = {keeps: tmp_path_factory.mktemp(f"keeps-{keeps}") for keeps in (True, False)}

    def diagnosis(keeps: bool) -> dict[str, Any]:
        done = run_traceml(["run", "train.py"], folders[keeps], f"KEEPS = {keeps}\n{TRAINING}")
        assert done.status == 0, done.stderr
        return dict(done.summary["step_memory"]["diagnosis"])

    with ThreadPoolExecutor(2) as pool:  # they mostly sleep
        return dict(zip(folders, pool.map(diagnosis, folders), strict=True))


def test_tensors_kept_in_every_step_are_memory_creep(
    diagnoses: dict[bool, dict[str, Any]],
) -> None:
    found = diagnoses[True]
    assert found["kind"] in ("CREEP_EARLY", "CREEP_CONFIRMED"), found
    assert found["evidence"]["place"] == "host"
    assert found["evidence"]["per_1000_steps_bytes"] == pytest.approx(2000 * MIB, rel=0.25)
    assert found["ranks"] == [0]


def test_tensors_let_go_in_every_step_are_not(diagnoses: dict[bool, dict[str, Any]]) -> None:
    assert diagnoses[False]["kind"] == "BALANCED"
