"""The templates in `examples/launch`: torchrun and Kubernetes' pods on two machines, which are
network namespaces here, and MPI on this one. `tests/launch/test_slurm.py` has those of Slurm,
`tests/integrations/test_ray.py` that of Ray.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_namespaces import Machines, why_not_possible
from processes import BIN, skip_without, wait_until

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
TRAIN = str(LAUNCH / "train.py")
TIMEOUT_S = 300
STEPS = 60
needs_machines = [pytest.mark.slow, skip_without("namespaces", why_not_possible())]
WITHOUT_MPI = None if shutil.which("mpirun") else "mpirun is not installed (openmpi-bin)"
needs_mpi = [pytest.mark.slow, skip_without("mpi", WITHOUT_MPI)]


def environment(**variables: str) -> dict[str, str]:
    return {"PATH": f"{BIN}:{os.environ['PATH']}", "TRAIN": TRAIN, **variables}


def summary_of(logs: Path) -> dict[str, Any]:
    """The only summary in a logs folder."""
    (path,) = logs.rglob("final_summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def assert_one_run_on_two_machines(summary: Mapping[str, Any]) -> None:
    assert sorted(node["name"] for node in summary["nodes"]) == ["node-a", "node-b"]
    assert sorted(rank for node in summary["nodes"] for rank in node["ranks"]) == [0, 1]
    assert summary["tracer"]["steps_recorded"] == 2 * STEPS
    assert summary["tracer"]["notes"] == []


def run_on_two_machines(
    place: Path, commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]]
) -> None:
    """Runs a command on each of two machines that share their folders, to their ends."""
    with Machines(2, place, is_shared=True) as machines:
        started = [
            machines.start(number, commands[number], environment(**variables[number]))
            for number in range(2)
        ]
        statuses = [process.wait(TIMEOUT_S) for process in started]
        assert statuses == [0, 0], machines.said(0) + machines.said(1)


class TestTorchrun:
    pytestmark = needs_machines

    def test_two_machines(self, tmp_path: Path):
        command = [str(LAUNCH / "torchrun.sh"), Machines.address(0), f"--steps={STEPS}"]
        local = [{"LOCAL_ADDR": Machines.address(number)} for number in range(2)]
        run_on_two_machines(tmp_path, [command, command], local)
        assert_one_run_on_two_machines(summary_of(tmp_path))


# MPI


class TestMpi:
    pytestmark = needs_mpi

    def run(self, place: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
        variables = environment(
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            MPI_OPTIONS="--oversubscribe",
            MASTER_PORT=str(random.randrange(20_000, 30_000)),  # no system gives those away
        )
        return subprocess.run(
            [str(LAUNCH / "mpirun.sh"), f"--steps={STEPS}", *words],
            cwd=place,
            env={**os.environ, **variables},
            capture_output=True,
            timeout=TIMEOUT_S,
        )

    def test_two_ranks_are_one_run_with_one_agent(self, tmp_path: Path):
        done = self.run(tmp_path)
        assert done.returncode == 0, done.stderr.decode()
        summary = summary_of(tmp_path)
        assert list(summary["step_time"]["groups"]["rows"]) == ["0", "1"]
        assert summary["meta"]["nodes_observed"] == 1
        assert summary["tracer"]["steps_recorded"] == 2 * STEPS
        assert done.stderr.decode().count("TraceML · mpi-train") == 1

    def test_a_failed_rank_is_named_and_its_status_kept(self, tmp_path: Path):
        done = self.run(tmp_path, "--fail-at=10")
        assert done.returncode == 1, done.stderr.decode()
        # mpirun kills the other rank and its launcher: the agent outlives them.
        wait_until(lambda: list(tmp_path.rglob("final_summary.json")), "the summary is written")
        summary = summary_of(tmp_path)
        assert summary["primary_diagnosis"]["kind"] == "EXCEPTION"
        assert summary["primary_diagnosis"]["summary"].startswith("Rank 1 failed at step 11")


# Kubernetes

POD = {
    "restartPolicy": str,
    "terminationGracePeriodSeconds": int,
    "containers": [
        {
            "name": str,
            "image": str,
            "command": [str],
            "args": [str],
            "env": [{"name": str, "value": str}],
            "ports": [{"containerPort": int}],
            "resources": {"limits": {"nvidia.com/gpu": int}},
            "volumeMounts": [{"name": str, "mountPath": str}],
        }
    ],
    "volumes": [
        {
            "name": str,
            "persistentVolumeClaim": {"claimName": str},
            "emptyDir": {"medium": str},
        }
    ],
}
REPLICAS = {"replicas": int, "restartPolicy": str, "template": {"spec": POD}}
JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": str,
    "backoffLimit": int,
    "template": {"spec": POD},
}
SPECS: dict[str, tuple[str, Any]] = {
    "PyTorchJob": (
        "kubeflow.org/v1",
        {"nprocPerNode": str, "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker": REPLICAS}},
    ),
    "TrainJob": (
        "trainer.kubeflow.org/v1alpha1",
        {
            "runtimeRef": {"name": str},
            "trainer": {
                "numNodes": int,
                "numProcPerNode": int,
                "image": str,
                "command": [str],
                "args": [str],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": int}},
            },
        },
    ),
    "JobSet": (
        "jobset.x-k8s.io/v1alpha2",
        {
            "failurePolicy": {"maxRestarts": int},
            "network": {"enableDNSHostnames": bool},
            "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": JOB}}],
        },
    ),
}
"""The fields of each resource that the templates may use, with their types, as the API has them."""
MANIFESTS = sorted(LAUNCH.glob("kubernetes_*.yaml"))


def read_manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((LAUNCH / f"kubernetes_{name}.yaml").read_text())
    return found


def mistakes(found: object, expected: Any, place: str) -> Iterator[str]:
    """The places where a resource has a field or a type that its API does not have."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            yield f"{place} is {found!r}, not fields"
            return
        for name, value in found.items():
            if name in expected:
                yield from mistakes(value, expected[name], f"{place}.{name}")
            else:
                yield f"{place} has no field {name}"
    elif isinstance(expected, list):
        for number, value in enumerate(found if isinstance(found, list) else [found]):
            yield from mistakes(value, expected[0], f"{place}[{number}]")
    elif type(found) is not expected:
        yield f"{place} is {found!r}, not {expected.__name__}"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_has_the_fields_of_its_api_alone(path: Path):
    manifest = yaml.safe_load(path.read_text())
    version, spec = SPECS[manifest["kind"]]
    assert manifest["apiVersion"] == version
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert list(mistakes(manifest["spec"], spec, "spec")) == []


def test_a_misspelt_field_is_found():
    manifest = read_manifest("pytorchjob")
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = "1"
    manifest["spec"]["nprocPerNode"] = 1
    found = list(mistakes(manifest["spec"], SPECS["PyTorchJob"][1], "spec"))
    assert "spec.nprocPerNode is 1, not str" in found
    assert any("has no field replica" in each for each in found)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_pod_mounts_what_it_writes_to(path: Path):
    for pod in pods_in(yaml.safe_load(path.read_text())):  # a TrainJob's are its runtime's
        (container,) = pod["containers"]
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert {"/logs", "/dev/shm"} == set(mounted)
        assert set(mounted.values()) == {volume["name"] for volume in pod["volumes"]}
        assert pod["terminationGracePeriodSeconds"] >= 90  # more than an agent may take to close


def pods_in(value: object) -> Iterator[dict[str, Any]]:
    """Every pod in a resource."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pods_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from pods_in(each)


def command_of(container: Mapping[str, Any], logs: Path) -> list[str]:
    """What a container runs, with the paths of this machine."""
    words = [*container["command"], *container["args"]]
    paths = {"/workspace/train.py": TRAIN, "/logs": str(logs), "100": str(STEPS)}
    for there, here in paths.items():
        words = [word.replace(there, here) for word in words]
    return words


class TestPods:
    pytestmark = needs_machines

    def test_the_pods_of_the_pytorch_operator(self, tmp_path: Path):
        """With the variables that the operator sets."""
        replicas = read_manifest("pytorchjob")["spec"]["pytorchReplicaSpecs"]
        commands, variables = [], []
        for number, kind in enumerate(("Master", "Worker")):
            (container,) = replicas[kind]["template"]["spec"]["containers"]
            commands.append(command_of(container, tmp_path / "logs"))
            meeting = {"MASTER_ADDR": Machines.address(0), "MASTER_PORT": "23456"}
            variables.append(
                {
                    **meeting,
                    **{f"PET_{name}": value for name, value in meeting.items()},
                    "RANK": str(number),
                    "WORLD_SIZE": "2",
                    "PET_NNODES": "2",
                    "PET_NPROC_PER_NODE": "1",
                    "PET_NODE_RANK": str(number),
                }
            )
        run_on_two_machines(tmp_path, commands, variables)
        assert_one_run_on_two_machines(summary_of(tmp_path / "logs"))

    def test_the_pods_of_a_jobset(self, tmp_path: Path):
        (pod,) = pods_in(read_manifest("jobset"))
        (container,) = pod["containers"]
        command = command_of(container, tmp_path / "logs")
        given = {each["name"]: each["value"] for each in container["env"]}
        assert set(given) == {"MASTER_ADDR", "MASTER_PORT"}
        variables = [
            {**given, "MASTER_ADDR": Machines.address(0), "JOB_COMPLETION_INDEX": str(number)}
            for number in range(2)
        ]
        run_on_two_machines(tmp_path, [command, command], variables)
        assert_one_run_on_two_machines(summary_of(tmp_path / "logs"))


def test_a_train_job_runs_what_the_pods_of_the_operator_run():
    """Both set the same variables for torchrun."""
    (pod, _) = pods_in(read_manifest("pytorchjob"))
    trainer = read_manifest("trainjob")["spec"]["trainer"]
    for name in ("command", "args", "image"):
        assert trainer[name] == pod["containers"][0][name]
