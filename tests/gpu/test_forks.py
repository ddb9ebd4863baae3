"""Forks after steps that were timed on the GPU: children end with us as they do without us."""

import json
import sys

import pytest

from gpu_programs import TRACEML_RUN, run_all, summary_of

pytestmark = pytest.mark.gpu

HEAD = """\
import gc, json, multiprocessing, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import traceml

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        gc.collect(0)
        return torch.full((16,), float(index))

def make():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=1e-5)

def take_steps(model, optimizer, batches):
    losses = []
    for inputs in batches:
        with traceml.trace_time("forward and loss", use_gpu=True):
            loss = model(inputs.cuda(non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        traceml.log_metrics({"loss": loss.detach()})
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
"""

LOADERS = (
    HEAD
    + """
torch.manual_seed(0)
model, optimizer = make()
train = DataLoader(Data(), batch_size=4, num_workers=2, pin_memory=True)
validate = DataLoader(Data(), batch_size=8, num_workers=2)
found = []
for epoch in range(2):
    found += take_steps(model, optimizer, train)
    model.eval()
    with torch.no_grad():
        found += [model(inputs.cuda()).mean().item() for inputs in validate]
    model.train()
print(json.dumps(found))
"""
)

CHILDREN = (
    HEAD
    + """
def train_anew():
    take_steps(*make(), [torch.ones(4, 16)] * 5)

def stay_on_the_host():
    torch.save(torch.ones(4).square(), os.devnull)
    traceml.log_metrics({"value": 1.0})
    gc.collect()

def fork(child):
    pid = os.fork()
    if not pid:
        child()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

def start(method, target):
    process = multiprocessing.get_context(method).Process(target=target)
    process.start()
    process.join()
    return process.exitcode

if __name__ == "__main__":
    model, optimizer = make()
    batches = [torch.ones(4, 16)] * 20
    take_steps(model, optimizer, batches)
    ended = {"exits": fork(lambda: None), "works on the host and exits": fork(stay_on_the_host)}
    take_steps(model, optimizer, batches)
    ended["fork"] = start("fork", stay_on_the_host)
    ended["forkserver"] = start("forkserver", train_anew)
    ended["spawn"] = start("spawn", train_anew)
    torch.multiprocessing.spawn(train_rank, nprocs=1)
    take_steps(model, optimizer, batches)
    print(json.dumps(ended))
"""
).replace("def stay_on_the_host", "def train_rank(rank):\n    train_anew()\n\ndef stay_on_the_host")


SCRIPTS = {"loaders": LOADERS, "children": CHILDREN}


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """Each script as it ran plain and traced, and the folder it ran in."""
    folder = tmp_path_factory.mktemp("forks")
    commands = []
    for name, script in SCRIPTS.items():
        (folder / f"{name}.py").write_text(script)
        commands.append([sys.executable, f"{name}.py"])
        commands.append([*TRACEML_RUN, "--run-name", name, f"{name}.py"])
    ran = run_all(commands, folder)
    pairs = zip(ran[::2], ran[1::2], strict=True)
    return {
        name: (plain, traced, folder) for name, (plain, traced) in zip(SCRIPTS, pairs, strict=True)
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_whatever_forks_ends_as_without_us(forked, name):
    plain, traced, folder = forked[name]
    assert plain.returncode == 0, plain.stderr
    assert traced.returncode == 0, traced.stderr
    assert "CUDA error" not in traced.stderr
    theirs, ours = (json.loads(done.stdout.splitlines()[-1]) for done in (plain, traced))
    assert ours == theirs
    if name == "children":
        assert set(ours.values()) == {0}
    summary = summary_of(folder, name)
    assert summary["tracer"]["failures"] == 0
    assert summary["step_time"]["global"]["average"]["forward_ms"] is not None
