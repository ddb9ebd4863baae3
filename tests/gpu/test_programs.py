"""Whole programs on a CUDA device, plain and traced."""

import sys

import pytest

from gpu_programs import TRACEML_RUN, run_all, summary_of

pytestmark = pytest.mark.gpu

COMPILED = {
    "a model": (
        "layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()\n"
        "model = torch.compile(layers)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(12):\n"
        "    x = torch.randn(32, 64).to('cuda')\n"
        "    model(x).square().mean().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    ),
    "CUDA graphs that return the loss": (
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 64)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x).square().mean()\n"
        "model = Model().cuda()\n"
        "compiled = torch.compile(model, mode='reduce-overhead')\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(200):\n"
        "    (compiled(torch.ones(32, 64, device='cuda')) / 2).backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
        "from torch._inductor.cudagraph_trees import get_container\n"
        "print(get_container(0).tree_manager.graph_counter)\n"
    ),
    "reading values": (
        "model = nn.Linear(64, 8).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "@torch.compile(backend='eager')\n"
        "def measured(x):\n"
        "    if x.sum() > 0:\n"
        "        x = x * x.max().item()\n"
        "    torch.cuda.synchronize()\n"
        "    return float(x.mean()) + int(x.min()) + len(x.cpu().tolist()) + len(x.to('cpu'))\n"
        "for step in range(6):\n"
        "    x = torch.full((32, 64), 1.0 if step % 2 else -1.0, device='cuda')\n"
        "    model(x).square().mean().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
        "    print(measured(x))\n"
    ),
}
COMPILED_SCRIPT = """\
import torch, torch._dynamo as dynamo
from torch import nn
{body}
print(dict(dynamo.utils.counters['stats']), dict(dynamo.utils.counters['graph_break']))
"""

WHOLE = (
    "import torch, traceml\n"
    "from torch import nn\n"
    "from torch.utils.data import DataLoader, TensorDataset\n"
    "data = TensorDataset(torch.randn(20000, 1024), torch.randn(20000, 1))\n"
    "model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1)).cuda()\n"
    "optimizer = torch.optim.AdamW(model.parameters())\n"
    "for x, y in DataLoader(data, batch_size=200, pin_memory=True):\n"
    "    with traceml.trace_time('augment', use_gpu=True):\n"
    "        x = x.cuda(non_blocking=True) * 2\n"
    "    loss = nn.functional.mse_loss(model(x), y.cuda(non_blocking=True))\n"
    "    loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
    "    traceml.log_metrics({'loss': loss})\n"
)

BEHIND = (
    "import torch, traceml\n"
    "from torch import nn\n"
    "model = nn.Linear(64, 1).cuda()\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
    "for step in range(40):\n"
    "    loss = model(torch.randn(8, 64, device='cuda')).square().mean()\n"
    "    loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
    "    if step == 20:\n"
    "        torch.cuda._sleep(1_000_000_000)\n"  # half a second, which the host does not wait for
    "    traceml.log_metrics({'loss': loss, 'error': {'cat': loss, 'dog': 2 * loss}})\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def ran(folder):
    """All programs by their names: the compiled ones plain and traced, the whole run traced."""
    commands = {}
    for number, (name, body) in enumerate(COMPILED.items()):
        script = folder / f"compiled_{number}.py"
        script.write_text(COMPILED_SCRIPT.format(body=body))
        commands[f"{name}, plain"] = [sys.executable, script]
        commands[f"{name}, traced"] = [*TRACEML_RUN, "--run-name", f"compiled-{number}", script]
    (folder / "train.py").write_text(WHOLE)
    commands["whole"] = [*TRACEML_RUN, "train.py", "--run-name", "whole"]
    (folder / "behind.py").write_text(BEHIND)
    commands["behind"] = [*TRACEML_RUN, "behind.py", "--run-name", "behind"]
    return dict(zip(commands, run_all(list(commands.values()), folder), strict=True))


@pytest.mark.parametrize(("number", "name"), list(enumerate(COMPILED)))
def test_compiled_code_gains_no_graph_and_no_break(ran, folder, number, name):
    plain, traced = ran[f"{name}, plain"], ran[f"{name}, traced"]
    assert plain.returncode == traced.returncode == 0, plain.stderr + traced.stderr
    assert traced.stdout == plain.stdout
    assert summary_of(folder, f"compiled-{number}")["tracer"]["failures"] == 0


def test_a_whole_run_on_the_gpu(ran, folder):
    assert ran["whole"].returncode == 0, ran["whole"].stderr
    summary = summary_of(folder, "whole")
    average = summary["step_time"]["global"]["average"]
    assert summary["step_time"]["metadata"]["training_total_steps"] == 100
    assert summary["step_time"]["global"]["window"]["diagnosis_clock"] == "gpu"
    assert all(average[key] is not None for key in ("h2d_ms", "forward_ms", "step_time_gpu_ms"))
    assert summary["meta"]["gpus_observed"] == 1
    assert summary["step_memory"]["global"]["average"]["peak_allocated_bytes"] > 1e6
    assert summary["metrics"]["loss"]["count"] == 100
    assert summary["regions"][0]["gpu_total_ms"] is not None
    assert summary["tracer"]["failures"] == 0


def test_values_that_the_gpu_has_not_computed_when_the_script_ends_are_kept(ran, folder):
    assert ran["behind"].returncode == 0, ran["behind"].stderr
    summary = summary_of(folder, "behind")
    assert summary["metrics"]["loss"]["count"] == 40
    assert summary["metrics"]["error[cat]"]["count"] == 40
    cat, dog = (summary["metrics"][f"error[{name}]"]["last"] for name in ("cat", "dog"))
    assert dog == pytest.approx(2 * cat)
    assert "log_metrics" not in ran["behind"].stderr
