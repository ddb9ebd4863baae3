"""Tasks of one machine that share a run, each with a `traceml run` of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from processes import PYTHON, STEPS, TRACEML
from traceml.launch import tasks_on_machine
from traceml.launch.tasks_on_machine import TaskRun, TasksOnMachine

RUN = TaskRun(Path("/logs/run"), "/dev/shm/traceml-1-00000000")
OTHER_TASK = """\
import sys
from pathlib import Path
from traceml.launch.tasks_on_machine import TasksOnMachine
tasks = TasksOnMachine(Path(sys.argv[1]))
print(tasks.find_run(), flush=True)
sys.stdin.read()
"""


def start_other(path: Path) -> subprocess.Popen[str]:
    """Another task, which stays until its input ends: locks tell processes apart."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [PYTHON, "-c", OTHER_TASK, str(path)], stdin=pipe, stdout=pipe, text=True
    )


@pytest.mark.slow
def test_the_others_find_the_run_and_the_first_waits_for_them(tmp_path: Path):
    path = tmp_path / "tasks"
    first = TasksOnMachine(path)
    assert first.find_run() is None
    first.tell(RUN)
    with start_other(path) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline().strip() == str(RUN)
        paused: list[float] = []

        def pause(seconds: float) -> None:
            paused.append(seconds)
            if len(paused) == 3:
                other.kill()  # also a task that is killed has left
                other.wait()

        first.wait_for_others(0, pause)
    assert len(paused) >= 3
    assert not path.exists()


@pytest.mark.slow
def test_a_failed_task_does_not_hold_up_its_batch_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks_on_machine, "OTHERS_AFTER_FAILURE_S", 0.0)
    first = TasksOnMachine(tmp_path / "tasks")
    assert first.find_run() is None
    first.tell(RUN)
    with start_other(tmp_path / "tasks") as other:
        assert other.stdout is not None
        other.stdout.readline()
        first.wait_for_others(1, time.sleep)
        assert other.poll() is None
        other.kill()


@pytest.mark.slow
def test_where_the_first_task_dies_another_one_makes_the_run(tmp_path: Path):
    path = tmp_path / "tasks"
    with start_other(path) as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == "None"  # it has to make it, and dies instead
        first.kill()
    second = TasksOnMachine(path)
    assert second.find_run() is None


def test_a_first_task_without_a_run_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = TasksOnMachine(tmp_path / "tasks"), TasksOnMachine(tmp_path / "tasks")
    assert first.find_run() is None
    first.tell(None)
    monkeypatch.setattr(second, "_lock", lambda byte, kind: byte != 0)  # in another process
    with pytest.raises(TimeoutError, match="made no run"):
        second.find_run()
    second.tell(RUN)  # it is not the one to say so
    assert (tmp_path / "tasks").read_text() == "{}\n"


MPI = "OMPI_COMM_WORLD_{}"
MEET = """
import os, pathlib, time
pathlib.Path("here-" + os.environ["OMPI_COMM_WORLD_RANK"]).touch()
while len(list(pathlib.Path().glob("here-*"))) < 2:
    time.sleep(0.01)
"""
"""As the tasks of a job do before they train: none ends before all have begun."""


def start_task(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    """One of two tasks, in the environment that `mpirun -n 2 traceml run train.py` makes."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "SIZE": 2, "LOCAL_SIZE": 2, "NODE_RANK": rank}
    names = {MPI.format(name): str(value) for name, value in place.items()}
    environment = {**os.environ, **names, "PMIX_NAMESPACE": f"test-{folder}"}
    command = [TRACEML, "run", "--run-name=job", "train.py"]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_two_tasks_of_mpi_are_one_run(tmp_path: Path):
    (tmp_path / "train.py").write_text(STEPS + MEET + "take_steps(5)\nraise SystemExit(0)\n")
    started = [start_task(tmp_path, rank) for rank in range(2)]
    said = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    (run,) = (tmp_path / "logs").iterdir()
    summary = json.loads((run / "final_summary.json").read_text())
    assert list(summary["step_time"]["groups"]["rows"]) == ["0", "1"]
    assert summary["meta"]["world_size"] == 2
    assert summary["meta"]["nodes_observed"] == 1
    assert sum("TraceML · job" in each for each in said) == 1


@pytest.mark.slow
def test_a_task_that_comes_when_the_run_of_another_is_over_trains_all_the_same(tmp_path: Path):
    (tmp_path / "train.py").write_text(STEPS + "take_steps(5)")
    for rank in range(2):
        process = start_task(tmp_path, rank)
        said = process.communicate(timeout=120)[1].decode()
        assert process.returncode == 0, said
    assert len(list((tmp_path / "logs").iterdir())) == 2
