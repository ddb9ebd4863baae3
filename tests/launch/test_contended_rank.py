"""Two equal ranks, one of which shares its core with somebody else: no straggler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import TRACEML, started
from traceml.diagnose.finding_order import STRAGGLERS

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(
    len(CORES) < 2 or not Path("/proc/self/schedstat").exists(),
    reason="needs two cores, and a system that says who waits for one",
)

SCRIPT = """\
import gc, glob, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.sched_setaffinity(0, {int(sys.argv[1 + int(os.environ["RANK"])])})
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 1))
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
if os.environ["RANK"] == "0":
    open("ready", "w").close()


def samples():
    return sum(open(path, "rb").read().count(b"\\n") for path in glob.glob("logs/*/samples.jsonl"))


enough = samples() + 6  # one a second, where the agent gets its turn
end = time.monotonic() + 120
goes_on = torch.ones(1)
while goes_on:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(96, 256)).pow(2).mean().backward()
        optimizer.step()
    goes_on.fill_(samples() < enough and time.monotonic() < end)
    dist.broadcast(goes_on, 0)
dist.barrier()
del model, optimizer
gc.collect()
dist.destroy_process_group()
"""

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextmanager
def neighbour() -> Iterator[None]:
    """Somebody who keeps the second core busy."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(CORES[1])])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_rank_whose_core_is_taken_is_starved_and_no_straggler(tmp_path: Path) -> None:
    cores = [str(core) for core in CORES[:2]]
    command = [TRACEML, "run", "--nproc-per-node", "2", "train.py", "--args", *cores]
    with started(command, tmp_path, SCRIPT) as running:
        running.wait_for("ready")
        with neighbour():
            done = running.finish()
    assert done.status == 0, done.stderr
    found = {issue["kind"]: issue for issue in done.summary["step_time"]["issues"]}
    assert not found.keys() & {kind.value for kind in STRAGGLERS}, done.stderr
    assert 1 in found["CPU_STARVED"]["ranks"]
    assert "CPU core" in found["CPU_STARVED"]["summary"]
