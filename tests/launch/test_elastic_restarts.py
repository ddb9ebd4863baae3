"""A job that torchrun restarts is one run: its attempts, why each ended, and what that cost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, kernel_tells_of_collected_processes, run_traceml
from traceml.facts.gather import gather
from traceml.model.finding import Kind
from traceml.store.load import load_run

TIMEOUT_S = 300

ELASTIC = """\
import os, signal
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
here = os.path.dirname(os.path.abspath(__file__))
# A store of each attempt's own: gloo finds the addresses of a killed attempt in a shared one.
dist.init_process_group(
    "gloo",
    init_method=f"file://{here}/store-{attempt}",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
)
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
if os.path.exists("checkpoint.pt"):
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["done"]
while step < 30:
    if dist.get_rank() == 1 and attempt == 1 and step == 22:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() == 1 and attempt == 0 and step == 13:
        raise ValueError("a bad gradient")  # rank 0 completes this step
    optimizer.step()
    step += 1
    if step % 10 == 0:
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "done": step}, "checkpoint.pt")
        dist.barrier()
dist.barrier()
dist.destroy_process_group()  # else gloo may abort a rank that ends after the other one
"""


TORCHRUN = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "train.py"]


@pytest.fixture(scope="module", params=["traceml run", "traceml.init"])
def elastic(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str, Path]:
    """The summary and the text of a job whose rank 1 raises once and is killed once, and its
    folder; of the only run that there is."""
    folder: Path = tmp_path_factory.mktemp("elastic")
    if request.param == "traceml run":
        done = run_traceml(["run", "--", "torchrun", *TORCHRUN], folder, ELASTIC)
        assert done.status == 0, done.stderr
        assert done.summary["exit_status"] == 0
    else:
        (folder / "train.py").write_text(f"import traceml\ntraceml.init()\n{ELASTIC}")
        command = [PYTHON, "-m", "torch.distributed.run", *TORCHRUN]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)
    (run,) = (path for path in (folder / "logs").iterdir() if path.is_dir())
    summary = json.loads((run / "final_summary.json").read_text())
    return summary, (run / "final_summary.txt").read_text(), run


def test_each_attempt_has_its_steps_its_reason_and_what_was_done_again(elastic):
    summary, *_ = elastic
    attempts = summary["attempts"]
    assert [each["steps"] for each in attempts] == [14, 12, 10]
    assert [each["resumed_step"] for each in attempts] == [0, 10, 20]
    assert [each["redone_steps"] for each in attempts] == [4, 2, 0]
    assert [each["is_restart"] for each in attempts] == [False, True, True]
    assert [each["kind"] for each in attempts] == ["EXCEPTION", "KILLED", None]
    assert [each["rank"] for each in attempts] == [1, 1, None]
    assert "ValueError: a bad gradient at train.py:" in attempts[0]["reason"]
    # Only torchrun is told the signal. The kernel tells the agent too: of a process that nobody has
    # collected yet, and since Linux 6.15 of any that it followed.
    known = ("rank 1: killed by SIGKILL", "rank 1: ended, and nobody saw how")
    assert attempts[1]["reason"] in (known[:1] if kernel_tells_of_collected_processes() else known)


def test_its_ranks_stay_two_and_its_steps_are_counted_on(elastic):
    summary, *_ = elastic
    assert summary["meta"]["world_size"] == 2
    assert summary["step_time"]["metadata"]["training_total_steps"] == 36


def test_a_step_is_compared_with_the_same_step_of_the_other_rank(elastic):
    """Rank 0 completed one step more than rank 1 before it was started again."""
    summary, _, run = elastic
    table = gather(load_run(run)).step_table
    assert table is not None
    assert table.index.tolist() == [*range(13), *range(14, 36)]
    first, second = (steps.columns for steps in table.rank_steps)
    for one, other in ((first, second), (second, first)):  # they meet in each step
        assert (one["start_ns"] <= other["start_ns"] + other["wall_ns"]).all()
    window = summary["step_time"]["global"]["window"]
    assert (window["end_step"], window["attempts"]) == (36, None)
    kinds = {each["kind"] for each in summary["step_time"]["issues"]}
    assert Kind.INCOMPLETE_DATA.value not in kinds


def test_the_wall_time_is_accounted_for_once(elastic):
    summary, *_ = elastic
    goodput = summary["goodput"]
    parts = goodput["parts_s"]
    assert sum(parts.values()) == pytest.approx(summary["duration_s"], abs=1e-3)
    assert goodput["restarts"] == 2
    assert goodput["redone_steps"] == 6
    assert 0 < goodput["share"] < 0.5
    assert parts["redone_steps"] > 0
    lost_s = sum(each["lost_s"] or 0.0 for each in summary["attempts"])
    assert parts["restarts"] == pytest.approx(lost_s, rel=0.2)


def test_a_run_that_ended_well_is_told_to_have_been_restarted(elastic):
    summary, text, _ = elastic
    assert summary["failure"] is None
    assert summary["stability"]["diagnosis"]["kind"] == "RESTARTED"
    assert summary["stability"]["diagnosis"]["severity"] == "warn"
    assert "Goodput" in text
    assert "Attempts 1: 14 steps on 2 ranks; rank 1: ValueError: a bad gradient" in text


EXITS = """\
import os, sys
import traceml
traceml.init(run_name="job")
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
open("launcher", "w").write(str(os.getppid()))
sys.exit(1 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


def test_an_attempt_after_one_that_left_by_sys_exit_trains_and_is_recorded(tmp_path: Path):
    """Its status is not seen before the run is closed."""
    (tmp_path / "train.py").write_text(EXITS)
    words = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "1", "train.py"]
    command = [PYTHON, "-m", "torch.distributed.run", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=TIMEOUT_S)
    runs = {path.parent.name for path in (tmp_path / "logs").glob("*/final_summary.json")}
    assert runs == {"job", "job-restart-1"}
    launcher = (tmp_path / "launcher").read_text()
    assert not list(Path("/dev/shm").glob(f"traceml-init-*-{launcher}-*"))
