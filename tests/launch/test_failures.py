"""A run that fails says which rank, where and why; the script's own end stays what it was."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import TORCH_STEPS, TRACEML, Running, run, run_traceml, started, wait_until

TWO_RANKS = """\
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        Block.calls += 1
        if dist.get_rank() == 1 and Block.calls == 20:
            go_wrong()
        time.sleep(0.1)
        return self.linear(x)

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), Block()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def go_wrong():
    {wrong}

for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
TWO = ["run", "--nproc-per-node", "2", "train.py"]
HANG_TEST = "test_a_rank_that_never_comes_is_named_when_the_job_is_ended"

NETWORK = """\
import sys
import torch
from torch import nn

class Block(nn.Module):
    calls = 0

    def forward(self, x):
        Block.calls += 1
        if Block.calls == 4:
            raise ValueError("a bad block")
        return x

model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Block()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def take_steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

"""


@pytest.fixture(scope="module", autouse=True)
def hanging(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running | None]:
    """A job that hangs, begun before the tests here, for the last one of them if it is selected.

    Nobody calls a pause of less than half a minute a hang: the other tests have the time.
    """
    if not any(item.name == HANG_TEST for item in request.session.items):
        yield None
        return
    script = TWO_RANKS.replace("{wrong}", "time.sleep(600)")
    with started([TRACEML, *TWO], tmp_path_factory.mktemp("hanging"), script) as running:
        yield running


def failure_of(done: Any) -> dict[str, Any]:
    found: dict[str, Any] = done.summary["failure"]
    return found


def test_an_exception_is_said_under_the_users_own_traceback(tmp_path: Path) -> None:
    script = NETWORK + "take_steps(9)\n"
    (tmp_path / "train.py").write_text(script)
    plain = run([sys.executable, "train.py"], tmp_path)
    done = run_traceml(["run", "train.py"], tmp_path)
    assert done.status == plain.status == 1
    before, ours = done.stderr.split("ValueError: a bad block\n", 1)
    assert before.startswith("Traceback (most recent call last):\n")
    for line in plain.stderr.splitlines():
        assert line in done.stderr
    said = "traceml: rank 0 failed at step 4 in forward, module 1.1: ValueError: a bad block"
    assert ours.splitlines()[:2] == [said, "traceml: your line: train.py:11 in forward"]
    failure = failure_of(done)
    assert (failure["kind"], failure["rank"], failure["step"]) == ("EXCEPTION", 0, 4)
    assert (failure["phase"], failure["module"]) == ("forward", "1.1")
    assert (failure["error"], failure["message"]) == ("ValueError", "a bad block")
    assert failure["where"] == "train.py:11 in forward"
    assert done.summary["primary_diagnosis"]["kind"] == "EXCEPTION"
    assert done.summary["stability"]["diagnosis"]["kind"] == "EXCEPTION"
    done.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        pytest.param("import sys; sys.exit(3)", 3, "STABLE", id="sys.exit(3)"),
        pytest.param("raise KeyboardInterrupt", 130, "KILLED", id="KeyboardInterrupt"),
        pytest.param(
            "import ctypes; ctypes.string_at(0)", 139, "KILLED", id="a crash in native code"
        ),
        pytest.param(
            "try:\n    model(torch.ones(2, 5))\nexcept RuntimeError:\n    sys.exit(1)",
            1,
            "EXCEPTION",
            id="caught, then sys.exit(1)",
        ),
        pytest.param(
            "try:\n    model(torch.ones(2, 5))\nexcept RuntimeError:\n    os._exit(4)",
            4,
            "EXCEPTION",
            id="caught, then os._exit",
        ),
        pytest.param(
            "try:\n    model(torch.ones(2, 5))\nexcept RuntimeError:\n    pass\n"
            "take_steps(3)\nsys.exit(5)",
            5,
            "STABLE",
            id="caught, then trained on",
        ),
        pytest.param("optimizer.step(lambda: 1 / 0)", 1, "EXCEPTION", id="in the optimizer"),
    ],
)
def test_the_end_is_told_apart(tmp_path: Path, body: str, status: int, kind: str) -> None:
    script = TORCH_STEPS + f"import os, sys\ntake_steps(5)\n{body}\n"
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == status
    assert done.summary["stability"]["diagnosis"]["kind"] == kind
    leads = kind == "EXCEPTION" or status == 139
    assert (done.summary["failure"] is not None) is leads
    if kind == "EXCEPTION":
        assert failure_of(done)["step"] == 6
    done.assert_nothing_is_left()


def test_a_data_workers_exception_names_the_worker_and_the_datasets_line(tmp_path: Path) -> None:
    script = TORCH_STEPS + (
        "class Samples(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 40\n"
        "    def __getitem__(self, place):\n"
        "        if place == 21:\n"
        "            raise KeyError('sample 21')\n"
        "        return torch.ones(4)\n"
        "for batch in torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    failure = failure_of(done)
    assert (failure["error"], failure["phase"], failure["step"]) == ("KeyError", "input", 11)
    assert failure["where"] == "train.py:16 in __getitem__"
    assert "DataLoader worker 0" in failure["summary"]


def test_a_failure_before_the_first_step_is_attributed_too(tmp_path: Path) -> None:
    done = run_traceml(
        ["run", "train.py"], tmp_path, TORCH_STEPS + "model(torch.ones(2, 5)).sum().backward()\n"
    )
    failure = failure_of(done)
    assert (done.status, failure["step"], failure["phase"]) == (1, 1, "forward")
    assert done.summary["primary_diagnosis"]["kind"] == "EXCEPTION"


def test_a_spawned_ranks_exception_is_its_own(tmp_path: Path) -> None:
    script = (
        "import torch\nimport torch.multiprocessing as mp\n"
        "def train(rank):\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for step in range(5):\n"
        "        model(torch.ones(2, 4 if step < 3 else 5)).sum().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(train, nprocs=1)\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    failure = failure_of(done)
    assert (failure["error"], failure["step"], failure["phase"]) == ("RuntimeError", 4, "forward")
    assert failure["where"] == "train.py:7 in train"


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        pytest.param(
            "raise ValueError('a bad block')",
            "EXCEPTION",
            "Rank 1 failed at step 20 in forward, module 1: ValueError: a bad block.",
            id="an exception",
        ),
        pytest.param(
            "os.kill(os.getpid(), 9)", "KILLED", "Rank 1 was killed by SIGKILL at step 20", id="9"
        ),
    ],
)
def test_of_two_ranks_the_one_that_failed_is_named(
    tmp_path: Path, wrong: str, kind: str, words: str
) -> None:
    done = run_traceml(TWO, tmp_path, TWO_RANKS.replace("{wrong}", wrong))
    assert done.status == 1  # torchrun's
    failure = failure_of(done)
    assert (failure["kind"], failure["rank"]) == (kind, 1)
    assert words in failure["summary"]
    assert done.summary["primary_diagnosis"]["kind"] == kind
    done.assert_nothing_is_left()


def test_a_short_run_whose_loss_is_lost_says_at_which_step(tmp_path: Path) -> None:
    """Nothing is logged, and all of it takes a few milliseconds."""
    script = TORCH_STEPS + (
        "for step in range(1, 31):\n"
        "    optimizer.zero_grad()\n"
        "    (model(torch.ones(2, 4)).sum() * 0 + (1.5 if step < 3 else float('inf'))).backward()\n"
        "    optimizer.step()\n"
        "raise SystemExit(3)\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 3
    primary = done.summary["primary_diagnosis"]
    assert (primary["kind"], primary["severity"]) == ("NON_FINITE_LOSS", "crit")
    assert primary["summary"] == "loss is NaN or infinite from step 3 on (it was 1.5 before)."
    assert "checkpoint" not in primary["action"]


def test_a_loss_that_is_lost_leads(tmp_path: Path) -> None:
    script = TORCH_STEPS + (
        "import traceml\n"
        "for step in range(1, 41):\n"
        "    take_steps(1)\n"
        "    traceml.log_metrics({'loss': 1.0 if step < 30 else float('nan')}, step=step)\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 0
    assert done.summary["failure"] is None
    primary = done.summary["primary_diagnosis"]
    assert (primary["kind"], primary["severity"]) == ("NON_FINITE_LOSS", "crit")
    assert primary["evidence"]["first_step"] == 30


def test_a_rank_that_never_comes_is_named_when_the_job_is_ended(hanging: Running) -> None:
    folder = hanging.cwd
    hanging.wait_for("logs")
    wait_until(lambda: list(folder.glob("logs/*/stacks/rank-1-*.txt")), "the stacks are there")
    wait_until(lambda: "stalls" in _saw(folder) and "since_unix_s" in _saw(folder), "it is told")
    live = wait_until(lambda: _hangs_shown(folder), "the hang is shown live")
    torchrun = hanging.training()
    torchrun.send_signal(signal.SIGTERM)
    done = hanging.finish()
    assert [(change["section"], change["ranks"]) for change in live] == [("stability", [1])]
    failure = failure_of(done)
    assert (failure["kind"], failure["rank"], failure["step"]) == ("HANG", 1, 20)
    assert failure["where"] == "train.py:25 in go_wrong"
    assert failure["evidence"]["waiting_ranks"] == "0"
    assert failure["evidence"]["phase"] == "forward"
    assert done.summary["goodput"]["parts_s"]["hang"] > 20
    stacks = (done.folder / failure["evidence"]["stacks"].split(", ")[1]).read_text()
    assert "in go_wrong" in stacks
    done.assert_nothing_is_left()


def _saw(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("logs/*/agent_saw.json"))


def _hangs_shown(folder: Path) -> list[dict[str, Any]]:
    text = "".join(path.read_text() for path in folder.glob("logs/*/live.jsonl"))
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
    return [change for line in lines if (change := json.loads(line))["kind"] == "HANG"]


OUT_OF_HOST_MEMORY = """\
import resource
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x):
        return self.project(x).square()

model = nn.Sequential(nn.Embedding(4_000_000, 16), nn.ReLU(), Head())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[0].weight.requires_grad_(False)
for step in range(20):
    if step == 12:  # the gradient of the embedding takes 256 MB, and there are 100
        model[0].weight.requires_grad_(True)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, resource.RLIM_INFINITY))
    loss = model(torch.randint(0, 100, (64,))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is Linux's")
def test_memory_that_runs_out_in_backward_names_the_layer(tmp_path: Path) -> None:
    done = run_traceml(["run", "--profile=deep", "train.py"], tmp_path, OUT_OF_HOST_MEMORY)
    assert done.status == 1, done.stderr
    failure = failure_of(done)
    assert (failure["step"], failure["phase"], failure["module"]) == (13, "backward", "0")
    found = done.summary["primary_diagnosis"]
    assert found["kind"] == "OUT_OF_MEMORY"
    assert "By layer: 0 244.1 MiB" in found["summary"], found["summary"]
    assert "of address space that RLIMIT_AS (ulimit -v) allows" in found["summary"]
    assert found["evidence"]["limited_by"] == "RLIMIT_AS"
    done.assert_nothing_is_left()
