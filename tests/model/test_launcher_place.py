"""A process's place in its job, in the words of each launcher."""

from __future__ import annotations

import pytest

from traceml.model.launcher_place import (
    RankPlace,
    counts_machines,
    has_rank,
    launch_id,
    place_in_environment,
    spans_machines,
)

SLURM_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_GTIDS": "2",
    "SLURM_STEP_NUM_NODES": "2",
}
SLURM_BATCH = {name: "0" for name in SLURM_TASK if name != "SLURM_STEP_ID"} | {"SLURM_NTASKS": "3"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
RAY = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "1",
}
OPERATOR = {"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2"}
DEEPSPEED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*SLURM_TASK, *TORCHRUN, *OPEN_MPI, *MPICH, *RAY, *OPERATOR, *DEEPSPEED}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "place", "is_on_several"),
    [
        pytest.param({}, RankPlace(), False, id="no launcher"),
        pytest.param(SLURM_TASK, RankPlace(2, 3, 0, 1, 1), True, id="a task of Slurm"),
        pytest.param(SLURM_BATCH, RankPlace(), False, id="a batch script is no task"),
        pytest.param(TORCHRUN, RankPlace(5, 8, 1, 4, 1), True, id="torchrun"),
        pytest.param(
            {**SLURM_TASK, **TORCHRUN}, RankPlace(5, 8, 1, 4, 1), True, id="torchrun in Slurm"
        ),
        pytest.param(
            {**SLURM_TASK, "RANK": "2", "WORLD_SIZE": "3"},
            RankPlace(2, 3, 0, 1, 1),
            True,
            id="RANK exported from Slurm's",
        ),
        pytest.param(OPEN_MPI, RankPlace(3, 4, 1, 2, 1), True, id="Open MPI on two machines"),
        pytest.param(
            {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            RankPlace(3, 4, 1, 4, 0),
            False,
            id="Open MPI on one machine",
        ),
        pytest.param(MPICH, RankPlace(1, 2, 1, 2, 0), False, id="MPICH"),
        pytest.param(RAY, RankPlace(1, 2, 0, 1, 1), True, id="Ray"),
        pytest.param(OPERATOR, RankPlace(1, 2, 0, 1, 1), True, id="Kubernetes' PyTorch operator"),
        pytest.param(DEEPSPEED, RankPlace(3, 4, 1, 2, 1), True, id="DeepSpeed"),
    ],
)
def test_the_place_of_a_process(
    environment: dict[str, str],
    place: RankPlace,
    is_on_several: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place_in_environment() == place
    assert spans_machines() == is_on_several
    assert has_rank() == (place != RankPlace())


@pytest.mark.parametrize(
    ("environment", "is_counted"),
    [
        pytest.param({}, False, id="no launcher"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2"}, False, id="ranks started by hand"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2", "PET_NNODES": "2"}, True, id="an operator"),
        pytest.param(TORCHRUN, True, id="torchrun"),
        pytest.param(SLURM_TASK, True, id="a task of Slurm"),
        pytest.param(OPEN_MPI, True, id="Open MPI"),
        pytest.param(DEEPSPEED, True, id="DeepSpeed"),
    ],
)
def test_it_is_known_whether_a_launcher_counts_machines(
    environment: dict[str, str], is_counted: bool, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert counts_machines() == is_counted


def test_a_job_that_is_started_again_is_another_launch(monkeypatch: pytest.MonkeyPatch):
    for name, value in SLURM_TASK.items():
        monkeypatch.setenv(name, value)
    first = launch_id()
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert launch_id() == first
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert launch_id() not in (None, first)
