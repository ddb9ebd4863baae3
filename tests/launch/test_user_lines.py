"""In real runs the findings name the user's own functions and lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from processes import run_traceml
from traceml.agent.stack_sampler import find_py_spy

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not find_py_spy(), reason="py-spy looks from outside, on Linux"
)

LOOKED = """\
import glob, time

began_s = time.monotonic()


def is_looked_at():
    # Whether the agent has written down two bursts of looks; nothing is waited for for ever.
    bursts = [open(path, "rb").read() for path in glob.glob("logs/*/stack_samples.jsonl")]
    is_enough = sum(each.count(b"\\n") for each in bursts) >= 2
    return is_enough or time.monotonic() > began_s + 120
"""
"""The module `looked`: a script trains until it was looked at, however busy the machine."""

LOOP = """\
import time
import torch
from torch import nn
from looked import is_looked_at

model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def get_batch():
    end = time.thread_time() + 0.004
    while time.thread_time() < end:  # work in Python
        sum(range(100))
    return torch.randn(8, 16)


def slow_loss(output):
    time.sleep(0.03)
    return output.pow(2).mean()


class Env:
    def step(self):
        time.sleep(0.03)


def main():
    env = Env()
    steps = 0
    while steps < 100 or steps % 20 or not is_looked_at():
        steps += 1
        loss = slow_loss(model(get_batch()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        env.step()


main()
"""

LOADER = """\
import time
import torch
from torch import nn
from looked import is_looked_at
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.ones(16)


model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Items(), batch_size=4)):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    if step >= 60 and step % 20 == 0 and is_looked_at():
        break
"""


def places(summary: dict[str, Any], phase: str) -> dict[str, tuple[str, int, float]]:
    """By function; before Python 3.11 its class is not known."""
    found = summary["user_time"]["phases"][phase]["places"]
    return {
        place["function"].rpartition(".")[2]: (place["file"], place["line"], place["share"])
        for place in found
    }


def finding(summary: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(issue for issue in summary["step_time"]["issues"] if issue["kind"] == kind)


def test_the_rest_of_a_step_is_named_function_by_function(tmp_path: Path) -> None:
    (tmp_path / "looked.py").write_text(LOOKED)
    done = run_traceml(["run", "train.py"], tmp_path, LOOP)
    assert done.status == 0, done.stderr
    seen = places(done.summary, "residual")
    lines = {name: LOOP.splitlines()[line - 1] for name, (_, line, _) in seen.items()}
    assert {file for file, _, _ in seen.values()} <= {"train.py", "looked.py"}
    assert {"get_batch", "slow_loss", "step"} <= seen.keys()
    assert lines["slow_loss"] == lines["step"].removeprefix("    ") == "    time.sleep(0.03)"
    # Thirty of some seventy milliseconds each, more where cores are short.
    assert all(seen[name][2] > 0.15 for name in ("slow_loss", "step"))
    named = finding(done.summary, "WAIT_HEAVY")
    assert any(
        named["evidence"]["code_1"].endswith(f"{name} (train.py:{line})")
        for name, (_, line, _) in seen.items()
    )
    assert named["evidence"]["code_1"] in named["summary"] + named["action"]
    assert named["evidence"]["code_looks_by"] == "py-spy"


def test_input_made_in_the_training_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "looked.py").write_text(LOOKED)
    done = run_traceml(["run", "train.py"], tmp_path, LOADER)
    assert done.status == 0, done.stderr
    line = LOADER.splitlines().index("        time.sleep(0.004)") + 1
    assert places(done.summary, "input")["__getitem__"][:2] == ("train.py", line)
    assert f"__getitem__ (train.py:{line})" in finding(done.summary, "INPUT_BOUND")["summary"]
