"""Faults planted in layers on a GPU: slow, heavy, leaking, and real out-of-memory errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks lie beside the package

from benchmarks.layer_faults.catalog import LAYER_FAULTS  # noqa: E402
from benchmarks.layer_faults.judge import judge  # noqa: E402

pytestmark = pytest.mark.usefixtures("turn_at_gpu")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "layer_faults" / "train.py"
BY_NAME = {each.name: each for each in LAYER_FAULTS}


def traced_run(folder, words, *options):
    """Trains under the deep profile; the summary."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    command = [sys.executable, "-m", "traceml", "run", "--profile=deep", "--mode=summary"]
    command += [*options, "--logs-dir", str(folder), "--run-name", "run", str(SCRIPT), "--args"]
    done = subprocess.run(
        [*command, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    path = folder / "run" / "final_summary.json"
    assert path.exists(), done.stderr[-2000:]
    return json.loads(path.read_bytes())


@pytest.mark.parametrize(
    "name",
    [
        "slow forward in nested",
        "slow backward in nested",
        "heavy activations in nested",
        "leak: a layer keeps its outputs",
        "leak: the script keeps a layer's outputs",
        "out of memory in forward in nested",
        "out of memory in backward in resnet",
        "out of memory in validation",
    ],
)
def test_the_planted_layer_is_named(tmp_path, name):
    fault = BY_NAME[name]
    summary = traced_run(tmp_path, [*fault.words(), "--device", "cuda"])
    verdict = judge(fault.truth, summary)
    assert verdict.is_right, verdict


FULL_IN_OPTIMIZER = """\
import torch
from torch import nn
from collections import OrderedDict

torch.cuda.init()
model = nn.Sequential(OrderedDict(
    stem=nn.Linear(64, 4096), huge=nn.Linear(4096, 262144, bias=False), head=nn.Linear(262144, 1)
)).cuda()  # 4 GiB in one layer
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((10 << 30) / total)  # parameters, gradients, and 2 GiB
for step in range(3):
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TOO_LARGE_A_BATCH = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

width = 1024
model = nn.Sequential(*[Block(width) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((4 << 30) / total)
data = torch.utils.data.TensorDataset(torch.randn(64 * 1024, width))
kept = []
for step, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4096)):
    if step > 8:
        kept.append(torch.empty(1 << 29, dtype=torch.uint8, device="cuda"))  # 512 MiB a step
    loss = model(batch.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script_run(folder, text, *options):
    script = folder / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "traceml", "run", "--profile=deep", "--mode=summary"]
    command += [*options, "--logs-dir", str(folder), "--run-name", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    path = folder / "run" / "final_summary.json"
    assert done.returncode == 1 and path.exists(), done.stderr[-2000:]
    return json.loads(path.read_bytes())


def test_memory_that_runs_out_for_optimizer_state_names_the_layer_in_the_first_step(tmp_path):
    failure = script_run(tmp_path, FULL_IN_OPTIMIZER)["failure"]
    assert (failure["kind"], failure["phase"]) == ("OUT_OF_MEMORY", "optimizer")
    assert (failure["step"], failure["module"]) == (1, "huge")


def test_the_advice_on_a_batch_and_on_checkpointing_is_by_what_was_measured(tmp_path):
    summary = script_run(tmp_path, TOO_LARGE_A_BATCH, "--oom-snapshot")
    failure = summary["failure"]
    evidence = failure["evidence"]
    assert failure["kind"] == "OUT_OF_MEMORY" and evidence["device"] == "gpu"
    # Each block keeps its input, what ReLU returns and one more of these for the second product.
    per_sample = 4 * 1024 * (1 + 4)
    assert evidence["saved_bytes"] == pytest.approx(6 * 4096 * per_sample, rel=0.25)
    assert evidence["samples_per_step"] == 4096 and 1 <= evidence["suggested_batch"] < 4096
    assert evidence["checkpoint_block"] == "*"
    assert evidence["checkpoint_saves_bytes"] == pytest.approx(
        evidence["saved_bytes"] * 5 / 6, rel=0.1
    )
    assert "Activation checkpointing of * (×6) saves up to" in failure["action"]
    assert list((tmp_path / "run").glob("memory-snapshot-*.pickle"))
