"""Jobs on a real Slurm cluster of two nodes, started as the templates in `examples/launch` do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import BIN, skip_without, wait_until
from slurm_cluster import SlurmCluster, why_not_possible
from traceml.store import folder as folders
from traceml.store.node_folders import NODES

pytestmark = [pytest.mark.slow, skip_without("slurm", why_not_possible())]
TIMEOUT_S = 180.0
LAUNCH = Path(__file__).parents[2] / "examples" / "launch"

WITHIN = """\
#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29600
exec traceml run --run-name within -- srun python "$TRAIN" "$@"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with (
        pytest.MonkeyPatch.context() as patch,
        SlurmCluster(tmp_path_factory.mktemp("slurm")) as made,
    ):
        patch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")  # jobs get the environment of sbatch
        patch.setenv("TRAIN", str(LAUNCH / "train.py"))
        yield made


def read_summary(cluster: SlurmCluster, name: str) -> dict[str, Any]:
    path = cluster.folder / "logs" / name / folders.SUMMARY
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def nodes_of(summary: dict[str, Any]) -> list[tuple[str, list[int], bool]]:
    return [(node["name"], node["ranks"], node["is_complete"]) for node in summary["nodes"]]


def wait_for_steps(cluster: SlurmCluster, name: str) -> None:
    """Wait until both nodes of a run have recorded steps."""
    run = cluster.folder / "logs" / name
    patterns = ("rank-*.steps", f"{NODES}/node-b/rank-*.steps")
    wait_until(
        lambda: all(list(run.glob(pattern)) for pattern in patterns),
        f"both nodes of {run} have steps",
        TIMEOUT_S,
    )


# `srun traceml run train.py`, preempted, and cancelled after its second start


@pytest.fixture(scope="module")
def preempted(cluster: SlurmCluster) -> str:
    """A job that is warned with USR1, put back into the queue, and cancelled when it runs again."""
    job = cluster.submit(str(LAUNCH / "slurm.sbatch"), "--steps=4000")
    wait_for_steps(cluster, f"train-{job}")
    cluster.call("scancel", "--signal=USR1", job)
    wait_until(lambda: cluster.said(job).count("got SIGUSR1") >= 2, "both ranks were warned")
    cluster.call("scontrol", "requeue", job)
    wait_for_steps(cluster, f"train-{job}.restart-1")
    cluster.call("scancel", job)
    assert cluster.wait_for_end(job)["JobState"] == "CANCELLED"
    return job


def test_each_signal_reaches_each_rank_once(cluster: SlurmCluster, preempted: str):
    said = cluster.said(preempted)
    for rank in (0, 1):
        assert said.count(f"rank {rank} got SIGUSR1") == 1
        # Once per start; a rank whose peer has ended before may fail for that and get none.
        assert said.count(f"rank {rank} got SIGTERM") <= 2
    assert all(said.count(f"got {name}") >= 2 for name in ("SIGUSR1", "SIGTERM"))


def test_the_tasks_of_a_job_are_one_run(cluster: SlurmCluster, preempted: str):
    summary = read_summary(cluster, f"train-{preempted}")
    assert nodes_of(summary) == [("node-a", [0], True), ("node-b", [1], True)]
    assert summary["meta"]["world_size"] == summary["meta"]["nodes_observed"] == 2
    assert cluster.said(preempted).count("TraceML · ") == 2  # one summary per start


def test_a_second_start_keeps_the_run_of_the_first(cluster: SlurmCluster, preempted: str):
    summary = read_summary(cluster, f"train-{preempted}.restart-1")
    assert nodes_of(summary) == [("node-a", [0], True), ("node-b", [1], True)]
    names = {path.name for path in (cluster.folder / "logs").glob(f"train-{preempted}*")}
    assert names == {f"train-{preempted}", f"train-{preempted}.restart-1"}


# `traceml run -- srun python train.py`, of which a rank fails


@pytest.fixture(scope="module")
def failed(cluster: SlurmCluster) -> dict[str, str]:
    """Two tasks on each node; the last one, where no `traceml run` is, raises."""
    script = cluster.folder / "within.sbatch"
    script.write_text(WITHIN)
    options = ["--nodes=2", "--ntasks-per-node=2"]
    job = cluster.submit(*options, str(script), "--steps=40", "--fail-at=20")
    return cluster.wait_for_end(job)


def test_ranks_on_machines_without_a_launcher_are_part_of_the_run(
    cluster: SlurmCluster, failed: dict[str, str]
):
    summary = read_summary(cluster, "within")
    assert [(node["name"], node["ranks"]) for node in summary["nodes"]] == [
        ("node-a", [0, 1]),
        ("node-b", [2, 3]),
    ]
    assert summary["tracer"]["steps_recorded"] >= 4 * 19


def test_the_status_is_that_of_the_job_and_the_failed_rank_is_named(
    cluster: SlurmCluster, failed: dict[str, str]
):
    assert (failed["JobState"], failed["ExitCode"]) == ("FAILED", "1:0")
    summary = read_summary(cluster, "within")
    assert summary["primary_diagnosis"]["kind"] == "EXCEPTION"
    assert summary["primary_diagnosis"]["summary"].startswith("Rank 3 of node-b failed at step 21")
    assert "planted failure" in summary["failure"]["traceback"]


# torchrun in one task per node


def test_torchrun_in_the_tasks_of_a_job(cluster: SlurmCluster):
    job = cluster.submit(str(LAUNCH / "slurm_torchrun.sbatch"), "--steps=60")
    assert cluster.wait_for_end(job)["ExitCode"] == "0:0", cluster.said(job)
    (run,) = (cluster.folder / "logs").glob(f"train-{job}*")
    summary = read_summary(cluster, run.name)
    assert sorted(rank for node in summary["nodes"] for rank in node["ranks"]) == [0, 1]
    assert summary["tracer"]["steps_recorded"] == 120
