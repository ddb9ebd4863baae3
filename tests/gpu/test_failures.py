"""Running out of a GPU's memory is attributed to its layer, with what the model held."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """\
import torch
from torch import nn

class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 4096)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 6:
            x = x.repeat(1 << 20, 1)
        return self.linear(x)

samples = torch.utils.data.TensorDataset(torch.ones(512, 4096))
loader = torch.utils.data.DataLoader(samples, batch_size=32)
model = nn.Sequential(nn.Linear(4096, 4096), nn.Sequential(nn.ReLU(), Grows())).cuda()
optimizer = torch.optim.Adam(model.parameters())
for (batch,) in loader:
    optimizer.zero_grad()
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""


def test_the_layer_the_phase_and_the_consumers_are_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "traceml", "run", "--run-name", "full", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    summary = json.loads((tmp_path / "logs/full/final_summary.json").read_bytes())
    failure = summary["failure"]
    assert done.returncode == 1
    assert (
        "traceml: rank 0 failed at step 6 in forward, module 1.1: OutOfMemoryError" in done.stderr
    )
    assert (failure["kind"], failure["step"], failure["phase"]) == ("OUT_OF_MEMORY", 6, "forward")
    assert (failure["module"], failure["where"]) == ("1.1", "train.py:13 in forward")
    evidence = failure["evidence"]
    parameters = 2 * (4096 * 4096 + 4096) * 4
    assert evidence["parameter_bytes"] == parameters
    assert 2 * parameters <= evidence["optimizer_bytes"] <= 2.1 * parameters
    assert evidence["tried_bytes"] == 32 * (1 << 20) * 4096 * 4
    assert evidence["total_bytes"] > evidence["free_bytes"] > 0
    assert evidence["allocated_bytes"] > 3 * parameters
    assert (evidence["samples_per_step"], evidence["suggested_batch"]) == (32, 8)
    assert int(evidence["allocated_before_bytes"].split(", ")[0]) > 3 * parameters
    assert "more than the whole device" in failure["action"]
    assert summary["primary_diagnosis"]["kind"] == "OUT_OF_MEMORY"
