"""What a GPU's counters say of four loops, and what follows from it, through `traceml run`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from gpu_programs import TRACEML_RUN, gpu_turn, run_all, summary_of, with_turns
from processes import wait_until
from traceml.agent.gpus import GpuSampler
from traceml.trace.session import _describe

pytestmark = pytest.mark.gpu

SECONDS = 4
"""Of training, in each loop; starting Python and torch takes about as long again."""

SCRIPT = """\
import sys
import time

import torch
from gpu_turn import wait_for_turn
from torch import nn

kind = sys.argv[1]
wait_for_turn()


class Elementwise(nn.Module):
    # 1 GiB of numbers, read and written again and again
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1 << 28, device="cuda"))

    def forward(self, x):
        h = self.weight
        for _ in range(4):
            h = h * 1.0001 + x
        return h.mean()


def transformer(width):
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)


if kind == "elementwise":
    model, x = Elementwise(), torch.zeros(1, device="cuda")
elif kind == "launches":
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(24)))
    x = torch.randn(8, 32, device="cuda")
elif kind == "float32":
    model, x = transformer(1024), torch.randn(16, 256, 1024, device="cuda")
else:
    model, x = transformer(512), torch.randn(64, 512, 512, device="cuda")
model = model.cuda()
if kind == "elementwise":
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=kind != "launches")
autocast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind == "bfloat16")

end = None
while end is None or time.monotonic() < end:
    optimizer.zero_grad()
    with autocast:
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    if end is None:  # the first step loads kernels
        torch.cuda.synchronize()
        end = time.monotonic() + float(sys.argv[2])
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def has_gpm() -> bool:
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (pynvml.NVMLError, AttributeError):
        return False
    finally:
        pynvml.nvmlShutdown()


@pytest.fixture(scope="module")
def summaries(has_gpm: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The loops' summaries: they start beside each other, and train one after the other."""
    if not has_gpm:
        pytest.skip("this GPU has no GPM counters: Hopper and newer do")
    folder = tmp_path_factory.mktemp("loops")
    (folder / "train.py").write_text(SCRIPT)
    kinds = [str(loop.values[0]) for loop in LOOPS]
    commands = [
        [*TRACEML_RUN, "--run-name", kind, "train.py", "--args", kind, str(SECONDS)]
        for kind in kinds
    ]
    for done in run_all(commands, folder, with_turns(folder)):
        assert done.returncode == 0, done.stderr
    return {kind: summary_of(folder, kind) for kind in kinds}


@pytest.fixture(scope="module")
def uuid() -> str:
    """The GPU's name, by torch's word: asked in a turn, because that starts CUDA."""
    with gpu_turn.turn():
        return _describe(f"cuda:{torch.cuda.current_device()}")[2]


LOOPS = [
    pytest.param(
        "bfloat16",
        ["COMPUTE_BOUND", "BANDWIDTH_BOUND"],
        {"gpu_busy_share": (0.9, 1), "tensor_share": (0.1, 0.6), "fp32_share": (0, 0.2)},
        id="a transformer under bfloat16 autocast",
    ),
    pytest.param(
        "float32",
        ["COMPUTE_BOUND", "TENSOR_CORES_IDLE"],
        {"gpu_busy_share": (0.9, 1), "tensor_share": (0, 0.1), "fp32_share": (0.35, 1)},
        id="a transformer in float32",
    ),
    pytest.param(
        "launches",
        ["HOST_BOUND"],
        {"gpu_busy_share": (0, 0.6), "sm_share": (0, 0.2), "dram_share": (0, 0.1)},
        id="tiny layers",
    ),
    pytest.param(
        "elementwise",
        ["COMPUTE_BOUND", "BANDWIDTH_BOUND", "NEAR_GPU_LIMIT"],
        {"gpu_busy_share": (0.85, 1), "tensor_share": (0, 0.02), "dram_share": (0.7, 1)},
        id="elementwise over 1 GiB",
    ),
]


@pytest.mark.parametrize(("kind", "findings", "shares"), LOOPS)
def test_a_loop_is_told_with_its_reason(
    kind: str,
    findings: list[str],
    shares: dict[str, tuple[float, float]],
    summaries: dict[str, dict[str, Any]],
    uuid: str,
) -> None:
    summary = summaries[kind]
    system = summary["system"]
    counted = system["global"]["average"]
    said = [issue["kind"] for issue in summary["step_time"]["issues"]]
    seen = f"{said} {counted} {summary['text']}"
    assert counted["gpu_counter_samples"] >= 2 * SECONDS, seen
    for name, (low, high) in shares.items():
        assert counted[name] is not None, seen
        assert low <= counted[name] <= high, f"{name}: {seen}"
    assert summary["primary_diagnosis"]["kind"] == findings[0], seen
    assert set(findings) <= set(said), seen
    reasons = {"TENSOR_CORES_IDLE", "BANDWIDTH_BOUND", "SMALL_KERNELS", "NEAR_GPU_LIMIT"}
    assert reasons & set(said) == reasons & set(findings), seen
    (used,) = [gpu for gpu in system["gpus"] if gpu["metrics"]["gpu_counter_samples"]]
    assert used["uuid"] == uuid


def test_torch_and_nvml_call_a_gpu_by_the_same_name(uuid: str) -> None:
    sampler = GpuSampler()
    uuids = [gpu.uuid for gpu in sampler.sample()]
    sampler.close()
    assert uuid in uuids


def test_counters_of_a_busy_gpu(has_gpm: bool, uuid: str) -> None:
    """GPM, or what the driver keeps of the utilisation: both see a GPU that multiplies."""
    sampler = GpuSampler()
    sampler.counted = frozenset({uuid})
    with gpu_turn.turn():
        matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        (matrix @ matrix).sum().item()
        sampler.sample()
        intervals, took_s = [], []
        end_s = time.monotonic() + 3.0
        while time.monotonic() < end_s:
            read_s = time.monotonic() + 0.25
            while time.monotonic() < read_s:
                for _ in range(20):
                    product = matrix @ matrix
                torch.cuda.synchronize()
            began_s = time.perf_counter()
            sampler.read_counters()
            took_s.append(time.perf_counter() - began_s)
            intervals.extend(gpu for each in sampler.sample() for gpu in each.intervals)
        sampler.close()
        del product
    assert len(intervals) >= 6
    middle = sorted(each.busy_share for each in intervals)[len(intervals) // 2]
    assert middle > 0.8, intervals
    assert all(0.05 <= each.length_s <= 1.0 for each in intervals), intervals
    assert sorted(took_s)[len(took_s) // 2] < 0.01, took_s
    if has_gpm:
        assert all(each.tensor_share > 0.3 for each in intervals), intervals
        assert all(0 <= share <= 1 for each in intervals for share in each[2:]), intervals


COMPUTING = """
import torch
matrix = torch.randn(4096, 4096, device="cuda")
while True:
    matrix @ matrix
    torch.cuda.synchronize()
"""


def test_another_process_that_computes_is_seen(turn_at_gpu: None) -> None:
    """Beside one that has the GPU open: this one."""
    kept = torch.ones(1, device="cuda")
    sampler = GpuSampler()
    shares: list[float | None] = []

    def others_compute() -> bool:
        (sample, *_) = sampler.sample({os.getpid()})
        shares.append(sample.other_busy_share)
        return (sample.other_busy_share or 0.0) > 0.5

    with subprocess.Popen([sys.executable, "-c", COMPUTING]) as other:
        try:
            wait_until(others_compute, "another process is seen to compute")
        finally:
            other.kill()
            sampler.close()
    assert None not in shares and kept.is_cuda
