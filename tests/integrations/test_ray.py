"""Ray Train on a real cluster of this machine's, which was started without TraceML."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from node_namespaces import Machines, why_not_possible
from processes import BIN, PYTHON, free_port, skip_without, wait_until
from traceml.integrations import ray_environment
from traceml.model.environment import MARKS, RING_FOLDER, RUN_FOLDER
from traceml.model.node import HEAD_MARK

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = [pytest.mark.slow, skip_without("ray", None if HAS_RAY else "not installed")]
needs_ray_and_machines = [*needs_ray, skip_without("namespaces", why_not_possible())]
TRAIN = Path(__file__).parents[2] / "examples" / "launch" / "ray_train.py"
TIMEOUT_S = 900
STEPS = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which two jobs ran: one below `traceml run`, one with the callback alone."""
    place, port = tmp_path_factory.mktemp("ray"), free_port()
    environment = {**os.environ, "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    options = ["--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=8"]
    options += ["--include-dashboard=false", f"--temp-dir=/tmp/traceml-ray-{os.getpid()}"]
    with (place / "ray.txt").open("wb") as said:
        cluster = subprocess.Popen(
            [str(BIN / "ray"), "start", *options], stdout=said, stderr=said, env=environment
        )

    def is_up() -> bool:
        words = (place / "ray.txt").read_text()
        assert cluster.poll() is None, words
        return "--block" in words

    try:
        wait_until(is_up, "the cluster is up", TIMEOUT_S)
        environment["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        driver = [PYTHON, str(TRAIN), f"--steps={STEPS}"]
        run = [PYTHON, "-m", "traceml", "run", "--run-name=zero-code", "--"]
        started = [
            subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE)
            for command in ([*run, *driver], [*driver, "--callback"])
        ]
        said_by = [process.communicate(timeout=TIMEOUT_S)[1].decode() for process in started]
        assert [process.returncode for process in started] == [0, 0], said_by
        yield place
    finally:
        for process in psutil.Process(cluster.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        cluster.kill()
        cluster.wait()


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("name", ["zero-code", "ray-train"])
class TestWorkersOfRay:
    pytestmark = needs_ray

    def test_both_workers_are_ranks_of_one_run(self, trained: Path, name: str):
        summary = read_summary(trained, name)
        assert list(summary["step_time"]["groups"]["rows"]) == ["0", "1"]
        assert summary["meta"]["world_size"] == 2
        assert summary["meta"]["nodes_observed"] == 1
        assert summary["tracer"]["steps_recorded"] == 2 * STEPS
        assert summary["tracer"]["notes"] == []

    def test_there_is_no_other_run(self, trained: Path, name: str):
        assert {path.name for path in (trained / "logs").iterdir()} == {"zero-code", "ray-train"}


# Two machines, which share no folder

CLUSTER = """\
env -u RAY_ADDRESS ray start --head --include-dashboard=false --port=6388 --num-cpus=1 \
  --node-ip-address=10.77.0.1 --temp-dir="$RAY_FOLDER" >ray.txt 2>&1
until python -c "import ray; ray.init(); exit(len(ray.nodes()) < 2)" 2>/dev/null; do sleep 1; done
exec python -m traceml run --run-name job -- python "$TRAIN" --steps=300
"""
MEMBER = """\
until env -u RAY_ADDRESS ray start --address=10.77.0.1:6388 --node-ip-address=10.77.0.2 \
  --num-cpus=1 --block; do sleep 1; done
"""


class TestWorkersOnTwoMachines:
    pytestmark = needs_ray_and_machines

    def test_a_worker_on_a_machine_without_an_agent_is_part_of_the_run(self, tmp_path: Path):
        own = Path(f"/tmp/traceml-ray-{os.getpid()}-own")  # short: it holds sockets
        own.mkdir()
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_ADDRESS": "10.77.0.1:6388",
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_FOLDER": str(own),
            "TRAIN": str(TRAIN),
        }
        with Machines(2, tmp_path) as machines:
            before = f"mount -t tmpfs tmpfs {own}"
            driver, _ = (
                machines.start(number, ["sh", "-c", script], environment, before)
                for number, script in enumerate((CLUSTER, MEMBER))
            )
            assert driver.wait(TIMEOUT_S) == 0, machines.said(0)
            summary = read_summary(machines.folder(0), "job")
        own.rmdir()
        ways = [(node["name"], node["way"], node["is_complete"]) for node in summary["nodes"]]
        assert ways == [("node-a", "head", True), ("node-b", "http", True)]
        assert sorted(rank for node in summary["nodes"] for rank in node["ranks"]) == [0, 1]
        assert summary["tracer"]["steps_recorded"] == 600


def read_summary(place: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "logs" / name / "final_summary.json").read_text())
    return found


# What the hook gives to Ray


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose agent can be reached."""
    (tmp_path / MARKS).mkdir()
    (tmp_path / MARKS / HEAD_MARK).write_text('{"host": "host-a"}')
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.setenv(RING_FOLDER, "/dev/shm/traceml-1-00000000")
    return tmp_path


def test_workers_get_the_run_and_what_the_user_asked_for(run_folder: Path):
    asked = {"pip": ["numpy"], "env_vars": {"MINE": "1", "PYTHONPATH": "/mine"}}
    made = ray_environment.join_workers(asked)
    assert made is not None
    assert made["pip"] == ["numpy"]
    variables = made["env_vars"]
    assert variables["MINE"] == "1"
    assert variables[RUN_FOLDER] == str(run_folder)
    assert variables["TRACEML_HEAD"] == '{"host": "host-a"}'
    assert variables["PYTHONPATH"].endswith(":/mine")
    assert asked == {"pip": ["numpy"], "env_vars": {"MINE": "1", "PYTHONPATH": "/mine"}}


def test_an_agent_that_does_not_answer_holds_up_ray_for_a_while_only(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (run_folder / MARKS / HEAD_MARK).unlink()
    monkeypatch.setattr(ray_environment, "HEAD_TIMEOUT_S", 0.05)
    made = ray_environment.join_workers(None)
    assert made is not None
    assert "TRACEML_HEAD" not in made["env_vars"]
    assert made["env_vars"]["PYTHONPATH"].endswith(":${PYTHONPATH}")


def test_a_job_without_tracing_stays_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    monkeypatch.setenv("TRACEML_DISABLED", "1")
    asked = {"env_vars": {"MINE": "1"}}
    assert ray_environment.join_workers(asked) is asked
