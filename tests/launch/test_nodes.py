"""Jobs on several machines, which are network namespaces here: one job is one run.

Each fixture trains once, over gloo, with something that goes wrong on the way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from node_namespaces import Machines, why_not_possible
from processes import PYTHON, TRACEML, wait_until
from traceml.store import folder as folders
from traceml.store.folder_versions import scan_runs
from traceml.store.node_folders import NODES, read_node, read_refused

WHY_NOT = why_not_possible()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"no machines to train on: {WHY_NOT}"),
]
SCRIPT = str(Path(__file__).parents[1] / "distributed_training.py")
TIMEOUT_S = 300
ENOUGH = "enough"
AGENT = "from traceml.cli import main"
"""Is in the command line of agents alone."""
OF_A_BUSY_MACHINE = ("CPU_STARVED",)
"""What may rightly come first where the tests have neighbours."""


@dataclass
class Job:
    """A job that is over: what each machine has, and what it printed."""

    machines: Machines
    statuses: list[int]

    def logs(self, number: int) -> Path:
        """The only run folder of a machine."""
        logs = self.machines.folder(number) / "logs"
        (folder,) = {each.resolve() for each in logs.iterdir()}  # by all its names
        return folder

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.logs(0) / folders.SUMMARY).read_text())
        return found

    @property
    def steps(self) -> int:
        """The steps of the training, by what each of its ranks printed."""
        outputs = self.machines.folder(0).parent.glob("*/out.txt")
        said = "".join(path.read_text() for path in outputs)
        (taken,) = set(re.findall(r"took (\d+) steps", said))
        return int(taken)


def trained(place: Path, late_rank: int) -> list[str]:
    """The arguments of a training one of whose ranks is late, of so many steps as are needed for
    what happens to it: until `let_it_end`."""
    until = ["--until", str(place / ENOUGH)]
    return ["--steps", "120", "--late-rank", str(late_rank), "--delay-ms", "40", *until]


def let_it_end(place: Path) -> None:
    """End the training of `trained`, as soon as it has taken its steps."""
    (place / ENOUGH).touch()


def wait_for_steps(folder: Path) -> None:
    wait_until(lambda: list(folder.glob("rank-*.steps")), f"{folder} has steps")


def below(process: subprocess.Popen[bytes], word: str) -> list[psutil.Process]:
    """The processes of a machine whose command line holds a word."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [each] if any(word in part for part in each.cmdline()) else []
    return found


# A link that is cut


@pytest.fixture(scope="module")
def cut_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """`traceml run --nnodes 2`, on machines that share no folder; the link between them is cut for
    some seconds while they train."""
    place = tmp_path_factory.mktemp("cut")
    with Machines(2, place) as machines:
        started = []
        for number in range(2):
            run = [TRACEML, "run", SCRIPT, "--nnodes=2", f"--node-rank={number}"]
            run += [f"--master-addr={machines.address(0)}", "--run-name=job"]
            started.append(machines.start(number, [*run, "--args", *trained(place, late_rank=1)]))
        copy = machines.folder(0) / "logs" / "job" / NODES / "node-b"
        wait_for_steps(copy)
        machines.cut(1)
        size = _size(copy)
        wait_until(
            lambda: _size(machines.folder(1) / "logs" / "job.node-b") > size, "the node records on"
        )
        machines.mend(1)
        wait_until(lambda: _size(copy) > size, "the node sends again")
        let_it_end(place)
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def _size(folder: Path) -> int:
    file = folder / "samples.jsonl"
    return file.stat().st_size if file.exists() else 0


def test_two_machines_are_one_run(cut_job: Job):
    assert cut_job.statuses == [0, 0], cut_job.machines.said(1)
    summary = cut_job.summary
    assert [(node["name"], node["way"], node["ranks"]) for node in summary["nodes"]] == [
        ("node-a", "head", [0]),
        ("node-b", "http", [1]),
    ]
    assert summary["meta"]["nodes_observed"] == summary["meta"]["world_size"] == 2
    assert summary["step_time"]["metadata"]["training_total_steps"] == cut_job.steps
    assert list(summary["process"]["groups"]["rows"]) == ["0", "1"]
    assert summary["primary_diagnosis"]["kind"] in ("COMPUTE_STRAGGLER", *OF_A_BUSY_MACHINE)
    assert straggler(summary)["ranks"] == [1]


def straggler(summary: dict[str, Any]) -> dict[str, Any]:
    """The first straggler that a summary names."""
    issues = summary["step_time"]["issues"]
    found: dict[str, Any] = next(i for i in issues if i["kind"] == "COMPUTE_STRAGGLER")
    return found


def test_the_late_machine_is_named_and_each_has_its_own_numbers(cut_job: Job):
    summary = cut_job.summary
    first = straggler(summary)
    assert first["nodes"] == ["node-b"]
    assert first["summary"].startswith("Rank 1 of node-b takes")
    assert "All late ranks are on node-b" in first["action"]
    ahead, late = (node["metrics"] for node in summary["nodes"])
    assert late["own_time_ms"] > ahead["own_time_ms"] + 30
    assert late["arrival_late_ms"] > late["arrival_uncertainty_ms"]
    assert ahead["round_trip_ms"] is None
    assert late["round_trip_ms"] > 0
    rows = summary["system"]["groups"]["rows"]
    assert [rows[number]["identity"]["hostname"] for number in "01"] == ["node-a", "node-b"]
    assert "  Nodes (in ms)" in summary["text"]


def test_a_cut_link_loses_nothing_and_is_no_attack(cut_job: Job):
    assert all(node["is_complete"] for node in cut_job.summary["nodes"])
    assert cut_job.summary["tracer"]["notes"] == []
    assert cut_job.summary["tracer"]["steps_recorded"] == 2 * cut_job.steps
    assert read_refused(cut_job.logs(0)) == {}


def test_the_clock_of_the_other_machine_was_measured(cut_job: Job):
    node = cut_job.summary["nodes"][1]
    assert 0 < node["clock_uncertainty_s"] < 0.1
    assert abs(node["clock_offset_s"]) <= node["clock_uncertainty_s"]  # it is the same clock


def test_only_the_head_has_a_summary_and_the_other_says_where(cut_job: Job):
    assert not (cut_job.logs(1) / folders.SUMMARY).exists()
    place = f"node-a:{cut_job.logs(0) / folders.SUMMARY}"
    assert f"the summary of all machines is {place}" in cut_job.machines.said(1)
    assert "Verdict" in cut_job.machines.said(0)
    assert "Verdict" not in cut_job.machines.said(1)


def test_folders_that_are_put_together_later_make_the_same_summary(cut_job: Job, tmp_path: Path):
    head, node = tmp_path / "job", tmp_path / "node"
    shutil.copytree(cut_job.logs(0), head, ignore=shutil.ignore_patterns(NODES, "final_summary.*"))
    shutil.copytree(cut_job.logs(1), node)
    command = [TRACEML, "recover", str(node), str(head)]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    assert json.loads((head / folders.SUMMARY).read_text()) == cut_job.summary


def test_the_port_was_open_on_the_address_of_the_job_alone(cut_job: Job):
    head = json.loads((cut_job.logs(0) / "marks" / "head.json").read_text())
    assert head["host"] == cut_job.machines.address(0)


# A shared folder, and a head whose agent is killed


@pytest.fixture(scope="module")
def shared_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """`traceml run -- torchrun --rdzv…` on machines that share a logs folder, rank 0's the second
    to start; the agent of the head is killed while they train."""
    place = tmp_path_factory.mktemp("shared")
    with Machines(2, place, is_shared=True) as machines:
        machines.folder(0).mkdir()
        taken = machines.folder(0) / "logs" / "job" / folders.MANIFEST
        started: list[Any] = [None, None]
        for number in (1, 0):
            torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-id=7"]
            torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines.address(0)}:29533"]
            torchrun += [f"--local-addr={machines.address(number)}", SCRIPT, *trained(place, 1)]
            logs = ["--run-name=job", f"--logs-dir={machines.folder(0) / 'logs'}"]
            started[number] = machines.start(number, [TRACEML, "run", *logs, "--", *torchrun])
            wait_until(taken.is_file, "the first machine has the name")
        (head,) = wait_until(
            lambda: list((machines.folder(0) / "logs").glob(f"*/{NODES}/*/rank-*.steps")),
            "the other machine's steps are there",
        )[:1]
        run = head.parents[2]
        heads = started[int(read_node(run).name == "node-b")]
        agent = below(heads, AGENT)[0]
        agent.kill()
        wait_until(
            lambda: [each for each in below(heads, AGENT) if each.pid != agent.pid],
            "the head has another agent",
        )
        let_it_end(place)
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_machines_that_share_a_folder_write_into_it(shared_job: Job):
    assert shared_job.statuses == [0, 0], shared_job.machines.said(1)
    summary = shared_job.summary
    assert {node["way"] for node in summary["nodes"]} == {"head", "shared"}
    assert sorted(rank for node in summary["nodes"] for rank in node["ranks"]) == [0, 1]
    assert all(node["is_complete"] for node in summary["nodes"])
    assert summary["nodes"][1]["clock_uncertainty_s"] < 0.1


def test_the_run_has_its_name_whichever_machine_was_first_to_take_it(shared_job: Job):
    logs = shared_job.machines.folder(0) / "logs"
    assert shared_job.summary["meta"]["run_name"] == "job"
    assert (logs / "job" / folders.SUMMARY).is_file()
    assert list(scan_runs(logs).versions) == ["job"]


def test_a_restarted_head_has_all_steps(shared_job: Job):
    summary = shared_job.summary
    assert summary["tracer"]["steps_recorded"] == 2 * shared_job.steps
    assert summary["tracer"]["notes"] == []


# Machines that are lost, or never come


@pytest.fixture(scope="module")
def lost_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Three machines: one trains without TraceML, and that of the head is lost on the way."""
    place = tmp_path_factory.mktemp("lost")
    with Machines(3, place) as machines:
        started = []
        for number in range(3):
            torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes=3"]
            torchrun += [f"--node-rank={number}", f"--master-addr={machines.address(0)}"]
            torchrun += [SCRIPT, *trained(place, 1)]
            with_traceml = [] if number == 2 else [TRACEML, "run", "--run-name=job", "--"]
            started.append(machines.start(number, [*with_traceml, *torchrun]))
        head = machines.folder(0) / "logs" / "job"
        wait_for_steps(head)
        wait_for_steps(head / NODES / "node-b")
        (first,) = psutil.Process(started[0].pid).children()
        first.kill()  # and with it everything on that machine
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_a_machine_whose_head_is_lost_keeps_its_records_and_says_how_to_go_on(lost_job: Job):
    said = lost_job.machines.said(1)
    assert "node-a, which collects the run, has not got all records of node-b" in said
    assert f"traceml recover {lost_job.logs(0)}" in said
    assert lost_job.statuses[1] != 0  # torchrun's own: the training failed there


def test_what_is_left_of_a_lost_job_becomes_one_summary(lost_job: Job, tmp_path: Path):
    head, node = tmp_path / "job", tmp_path / "node"
    shutil.copytree(lost_job.logs(0), head)
    shutil.copytree(lost_job.logs(1), node)
    for path in (head, *head.iterdir()):  # a while later: nobody writes there any more
        os.utime(path, (0, path.stat().st_mtime - 2 * folders.FRESH_S))
    command = [TRACEML, "recover", str(head), str(node)]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    summary = json.loads((head / folders.SUMMARY).read_text())
    assert [node["name"] for node in summary["nodes"]] == ["node-a", "node-b"]
    assert [node["ranks"] for node in summary["nodes"]] == [[0], [1]]
    notes = " ".join(summary["tracer"]["notes"])
    assert "1 node of 3 never reached the machine that collects the run" in notes
    assert "cut off" not in notes


# `traceml.init()` under plain torchrun

INIT = f"""\
import runpy, sys, traceml
traceml.init(run_name="job")
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def init_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """torchrun on two machines with two ranks each, every one of which calls `traceml.init()`; the
    second one has a logs folder that nobody can write."""
    place = tmp_path_factory.mktemp("init")
    (place / "train.py").write_text(INIT)
    with Machines(2, place) as machines:
        started = []
        for number in range(2):
            torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
            torchrun += [f"--node-rank={number}", f"--master-addr={machines.address(0)}"]
            started.append(
                machines.start(
                    number,
                    [*torchrun, str(place / "train.py"), "--steps=20"],
                    {"TMPDIR": str(place)},
                    before=f"mkdir {machines.folder(1) / 'logs'} && mount -t tmpfs -o ro tmpfs "
                    f"{machines.folder(1) / 'logs'}"
                    if number
                    else "true",
                )
            )
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_ranks_that_call_init_are_one_run(init_job: Job):
    assert init_job.statuses == [0, 0], init_job.machines.said(0)
    summary = init_job.summary  # of the only run folder of that machine
    assert [node["ranks"] for node in summary["nodes"]] == [[0, 1], [2, 3]]
    assert all(node["is_complete"] for node in summary["nodes"])
    assert summary["tracer"]["steps_recorded"] == 80
    assert "the summary of all machines is node-a:" in init_job.machines.said(1)


def test_a_machine_whose_logs_folder_cannot_be_written_is_part_of_the_run(init_job: Job):
    (note,) = init_job.summary["tracer"]["notes"]
    where = init_job.machines.folder(1) / "logs"
    assert note.startswith(f"node node-b: {where} cannot be written here (Read-only file system)")
    assert note.removeprefix("node node-b: ") in init_job.machines.said(1)


# A link that is slow


@pytest.fixture(scope="module")
def delayed_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Three machines; whatever goes to or comes from the last one takes 60 ms longer. Their ranks
    are started by hand, so that no launcher says how many machines there are."""
    with Machines(3, tmp_path_factory.mktemp("delayed")) as machines:
        machines.delay(2, delay_ms=60)
        started = []
        for number in range(3):
            place = {"RANK": str(number), "WORLD_SIZE": "3", "MASTER_PORT": "29544"}
            place["MASTER_ADDR"] = machines.address(0)
            run = [TRACEML, "run", SCRIPT, "--run-name=job", "--args", "--steps=30"]
            started.append(machines.start(number, run, place))
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_the_machine_behind_a_slow_link_is_named(delayed_job: Job):
    assert delayed_job.statuses == [0, 0, 0], delayed_job.machines.said(2)
    found = {issue["kind"]: issue for issue in delayed_job.summary["step_time"]["issues"]}
    link = found["SLOW_LINK"]
    assert (link["nodes"], link["ranks"]) == (["node-c"], [2])
    assert link["evidence"]["round_trip_ms"] >= 120
    assert found["COMM_BOUND"]["nodes"] == ["node-c"]
    primary = delayed_job.summary["primary_diagnosis"]
    assert primary["kind"] in OF_A_BUSY_MACHINE or "Test the link of node-c" in primary["action"]


def test_ranks_that_people_start_by_hand_are_one_run(delayed_job: Job):
    nodes = [(node["name"], node["ranks"]) for node in delayed_job.summary["nodes"]]
    assert sorted(nodes) == [("node-a", [0]), ("node-b", [1]), ("node-c", [2])]
    assert delayed_job.summary["tracer"]["notes"] == []
    assert delayed_job.summary["tracer"]["steps_recorded"] == 90


def test_no_link_is_called_slow_where_none_is(init_job: Job, launched_job: Job, cut_job: Job):
    for job in (init_job, launched_job, cut_job):
        kinds = {issue["kind"] for issue in job.summary["step_time"]["issues"]}
        assert "SLOW_LINK" not in kinds


# One launcher for all machines, as srun and mpirun are


@pytest.fixture(scope="module")
def launched_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """`traceml run` on one machine, whose shared memory cannot be written, and whose command starts
    ranks on two, each with the environment that `traceml run` gave the command."""
    place = tmp_path_factory.mktemp("launched")
    with Machines(2, place) as machines:
        ranks = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        ranks |= {"MASTER_ADDR": machines.address(0), "MASTER_PORT": "29544"}
        variables = machines.folder(0) / "variables"
        train = f"env -0 > {variables}.part && mv {variables}.part {variables} && exec "
        train += f"{PYTHON} {SCRIPT} --steps=20"
        first = machines.start(
            0,
            [TRACEML, "run", "--run-name=job", "--", "sh", "-c", train],
            {**ranks, "RANK": "0"},
            before="mount -o remount,ro /dev/shm",
        )
        wait_until(variables.exists, "the command has begun")
        given = dict(line.split("=", 1) for line in variables.read_text().split("\0") if line)
        second = machines.start(1, [PYTHON, SCRIPT, "--steps=20"], {**given, "RANK": "1"})
        yield Job(machines, [each.wait(TIMEOUT_S) for each in (first, second)])


def test_ranks_that_a_launcher_starts_elsewhere_have_an_agent_there(launched_job: Job):
    assert launched_job.statuses == [0, 0], launched_job.machines.said(1)
    summary = launched_job.summary
    assert [(node["name"], node["ranks"]) for node in summary["nodes"]] == [
        ("node-a", [0]),
        ("node-b", [1]),
    ]
    assert all(node["is_complete"] for node in summary["nodes"])
    assert summary["tracer"]["steps_recorded"] == 40
    assert "the summary of all machines is node-a:" in launched_job.machines.said(1)


# A shared folder that becomes read-only


@pytest.fixture(scope="module")
def readonly_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two machines that share a logs folder, until one of them may only read it."""
    place = tmp_path_factory.mktemp("readonly")
    with Machines(2, place, is_shared=True) as machines:
        logs, started = machines.folder(0) / "logs", []
        for number in range(2):
            run = [TRACEML, "run", SCRIPT, "--nnodes=2", f"--node-rank={number}", "--run-name=job"]
            run += [f"--master-addr={machines.address(0)}", f"--logs-dir={logs}"]
            started.append(
                machines.start(
                    number,
                    [*run, "--args", *trained(place, late_rank=1)],
                    {"TMPDIR": str(place)},
                )
            )
        wait_for_steps(logs / "job" / NODES / "node-b")
        machines.run_inside(started[1], f"mount --bind {logs} {logs}")
        # Refused while a file is open there for writing: the agent opens some for a moment.
        read_only = f"mount -o remount,bind,ro {logs}"
        tries = f"for n in $(seq 100); do {read_only} && exit; sleep 0.1; done; exit 1"
        machines.run_inside(started[1], tries)
        wait_until(
            lambda: list(place.glob("traceml-*/rank-*.steps")), "the node records somewhere else"
        )
        let_it_end(place)
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_a_shared_folder_that_becomes_read_only_costs_nothing(readonly_job: Job):
    assert readonly_job.statuses == [0, 0], readonly_job.machines.said(1)
    summary = json.loads(
        (readonly_job.machines.folder(0) / "logs/job/final_summary.json").read_text()
    )
    assert [(node["way"], node["is_complete"]) for node in summary["nodes"]] == [
        ("head", True),
        ("http", True),
    ]
    assert summary["tracer"]["steps_recorded"] == 2 * readonly_job.steps
    (note,) = summary["tracer"]["notes"]
    assert "the shared folder became read-only" in note
    assert "the summary of all machines is node-a:" in readonly_job.machines.said(1)


# An elastic job: machines come and go

ELASTIC = """\
import os, time, traceml
traceml.init(run_name="job")
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step, is_over = 0, torch.zeros(1)
while not is_over.item():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    step += 1
    if step == 10:
        open(f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-of-{dist.get_world_size()}", "w").close()
    time.sleep(0.01)
    is_over = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(is_over)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def elastic_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """`torchrun --nnodes=1:2` whose ranks call `traceml.init()`: a second machine joins, and is
    lost again."""
    place = tmp_path_factory.mktemp("elastic")
    (place / "train.py").write_text(ELASTIC)
    with Machines(2, place) as machines:

        def start(number: int) -> subprocess.Popen[bytes]:
            torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes=1:2", "--rdzv-id=7"]
            torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={machines.address(0)}:29533"]
            torchrun += [f"--local-addr={machines.address(number)}", "--max-restarts=3"]
            torchrun += ["--rdzv-conf=last_call_timeout=1", str(place / "train.py")]
            # With the store of the first round, torch 2.13 lets no further machine join.
            return machines.start(number, torchrun, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})

        def wait_for(name: str) -> None:
            wait_until((machines.folder(0) / name).exists, f"an attempt trains: {name}", TIMEOUT_S)

        stays = start(0)
        wait_for("0-of-1")
        comes = start(1)
        wait_for("0-of-2")
        head = machines.folder(0) / "logs" / "job"
        wait_for_steps(head)
        wait_for_steps(head / NODES / "node-b")
        (first,) = psutil.Process(comes.pid).children()
        first.kill()  # and with it everything on that machine
        wait_for("1-of-1")
        (machines.folder(0) / "stop").touch()
        yield Job(machines, [stays.wait(TIMEOUT_S)])


def test_machines_that_come_and_go_are_attempts_of_one_run(elastic_job: Job):
    assert elastic_job.statuses == [0], elastic_job.machines.said(0)
    summary = elastic_job.summary  # of the only run folder of that machine
    assert [node["name"] for node in summary["nodes"]] == ["node-a", "node-b"]
    attempts = summary["attempts"]
    assert [each["world_size"] for each in attempts] == [1, 2, 1]
    assert [each["kind"] is None for each in attempts] == [True, False, True]
    came, lost, _ = (each["reason"] for each in attempts)
    assert came == "its launcher stopped it, to go on with 2 ranks instead of 1"
    assert lost.endswith("; went on with 1 rank instead of 2")
    assert summary["failure"] is None
    assert summary["stability"]["diagnosis"]["kind"] == "RESTARTED"
    assert summary["goodput"]["restarts"] == 2


def test_steps_of_another_number_of_machines_are_not_compared(elastic_job: Job):
    summary = elastic_job.summary
    steps = [each["steps"] for each in summary["attempts"]]
    assert summary["step_time"]["metadata"]["training_total_steps"] == sum(steps)
    window, rows = (summary["step_time"][name] for name in ("global", "groups"))
    window = window["window"]
    alone = window["attempts"] == [1, 3]
    assert window["attempts"] == ([1, 3] if alone else [2])
    assert len(rows["rows"]) == (1 if alone else 2)
    assert window["steps_left_out"] == (steps[1] if alone else steps[0] + steps[2])
    # The rank that stayed may have completed one step more than that which was lost.
    assert window["steps_analyzed"] + window["warmup_steps"] >= max(steps) - 1
    kinds = {each["kind"] for each in summary["step_time"]["issues"]}
    assert "INCOMPLETE_DATA" not in kinds


# A head that is named


NAMED_HEAD = """
import sys
from pathlib import Path

from traceml.agent.node_duties import NodeDuties
from traceml.model.node import HEAD_MARK
from traceml.store.node_folders import leave_head, parse_head

folder = Path(sys.argv[1])
leave_head(folder, parse_head("node-a:7654", "a-token"))
duties = NodeDuties(folder, print)
duties.look()
print(duties._read_address(HEAD_MARK).place)
duties.close()
"""


def test_a_head_whose_own_hosts_file_calls_it_loopback_is_reached_by_others(tmp_path: Path):
    hosts, folder = tmp_path / "hosts", tmp_path / "run"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node-a\n")  # as Debian's installer writes it
    folder.mkdir()
    with Machines(1, tmp_path / "machines") as machines:
        command = [PYTHON, "-c", NAMED_HEAD, str(folder)]
        machines.start(0, command, before=f"mount --bind {hosts} /etc/hosts").wait(TIMEOUT_S)
        printed = (machines.folder(0) / "out.txt").read_text().strip()
        assert printed == f"{machines.address(0)}:7654", machines.said(0)


# Containers


@pytest.fixture(scope="module")
def one_name_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Ranks that people start by hand in containers that have one hostname, on one machine."""
    place = tmp_path_factory.mktemp("containers")
    with Machines(3, place) as machines:
        started = []
        for number in range(3):
            told = {"RANK": str(number), "WORLD_SIZE": "3"}
            told |= {"MASTER_ADDR": machines.address(0), "MASTER_PORT": "29533"}
            run = [TRACEML, "run", SCRIPT, "--run-name=job", "--args", "--steps", "40"]
            started.append(machines.start(number, run, told, before="hostname one"))
        yield Job(machines, [each.wait(TIMEOUT_S) for each in started])


def test_containers_of_one_name_on_one_machine_are_one_run(one_name_job: Job):
    assert one_name_job.statuses == [0, 0, 0], one_name_job.machines.said(0)
    nodes = {node["name"]: node["ranks"] for node in one_name_job.summary["nodes"]}
    assert sorted(nodes) == ["one", "one-2", "one-3"]
    assert nodes["one"] == [0] and sorted(nodes["one-2"] + nodes["one-3"]) == [1, 2]
