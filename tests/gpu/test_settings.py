"""On a GPU, what a run trains with is recorded as the script set it."""

import pytest

from gpu_programs import TRACEML_RUN, run_all, summary_of

pytestmark = pytest.mark.gpu

FP16 = """
import torch
from torch import nn
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(4, 3, 8, 8, device="cuda")).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

GRAPHS = """
import torch
from torch import nn
model = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda(),
                      mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(8, 64, device="cuda")
for _ in range(30):
    optimizer.zero_grad()
    torch.compiler.cudagraph_mark_step_begin()
    model(inputs).mean().backward()
    optimizer.step()
"""


SCRIPTS = {"fp16": FP16, "graphs": GRAPHS}


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory):
    """The settings of each script's run."""
    folder = tmp_path_factory.mktemp("settings")
    for name, script in SCRIPTS.items():
        (folder / f"{name}.py").write_text(script)
    ran = run_all([[*TRACEML_RUN, "--run-name", name, f"{name}.py"] for name in SCRIPTS], folder)
    assert [done.returncode for done in ran] == [0, 0], [done.stderr for done in ran]
    summaries = {name: summary_of(folder, name) for name in SCRIPTS}
    for summary in summaries.values():
        assert summary["tracer"]["failures"] == 0, summary["tracer"]["last_failure"]
    return {name: summary["settings"] for name, summary in summaries.items()}


def test_half_precision_with_everything_on(settings_of):
    settings = settings_of["fp16"]
    expected = {
        "parameter_dtype": "float32",
        "autocast_dtype": "float16",
        "has_grad_scaler": True,
        "matmul_precision": "high",
        "cudnn_tf32": True,
        "cudnn_benchmark": True,
        "channels_last": True,
        "optimizer_can_fuse": True,
        "optimizer_is_fused": True,
        "optimizer_is_foreach": False,
        "compile_mode": "",
        "uses_cuda_graphs": False,
    }
    assert {name: settings[name] for name in expected} == expected


def test_graphs_of_the_compiler_are_seen(settings_of):
    settings = settings_of["graphs"]
    assert settings["compile_mode"] == "reduce-overhead"
    assert settings["uses_cuda_graphs"] is True
    assert settings["optimizer_is_foreach"] is True
    assert settings["checkpoints_activations"] is None
