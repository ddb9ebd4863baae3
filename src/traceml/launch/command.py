"""The training command, and the environment that loads the tracer into it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traceml.model.environment import DISABLED, MAX_STEPS, RING_FOLDER, RUN_FOLDER, SCRIPT
from traceml.model.errors import UsageError

INJECT = Path(__file__).parents[1] / "trace" / "inject"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The number of processes per node and of nodes."""

    processes_per_node: int = 1
    nodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def world_size(self) -> int:
        """The number of processes of the job."""
        return self.processes_per_node * self.nodes


def for_script(script: str, arguments: list[str], cluster: Cluster) -> list[str]:
    """Returns the command that runs a script with this interpreter, alone or through torchrun."""
    _require_script(script)
    if cluster.world_size == 1:
        return [sys.executable, script, *arguments]
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    launcher.append(f"--nproc-per-node={cluster.processes_per_node}")
    if cluster.nodes == 1 and cluster.master_port is None:
        launcher.append("--standalone")  # a free port of its own: runs go side by side
    else:
        launcher.append(f"--nnodes={cluster.nodes}")
        launcher.append(f"--node-rank={cluster.node_rank}")
        launcher.append(f"--master-addr={cluster.master_addr or '127.0.0.1'}")
        launcher.append(f"--master-port={cluster.master_port or 29500}")
    return [*launcher, script, *arguments]


def _require_script(script: str) -> None:
    path = Path(script)
    if path.is_dir() and (path / "__main__.py").is_file():
        return
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise UsageError(
            f"there is no script {script!r} (found {found} there, from {Path.cwd()}); "
            "pass a Python file, or a whole command after --"
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {script!r} cannot be read; check its permissions")


def require_command(command: list[str]) -> None:
    """Raises UsageError for a command that does not exist, before anything is started."""
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"there is no command {command[0]!r} on the PATH; "
            "pass a command that can be run after --, such as `-- torchrun train.py`"
        )


def subject(command: list[str]) -> str:
    """Returns what to name the run after: the command's script or module, or its program."""
    for position, word in enumerate(command[1:], start=1):
        if word.endswith(".py"):
            return word
        if command[position - 1] == "-m":
            return word.replace(".", "-")
    return command[0]


def isolated_python(command: list[str]) -> str | None:
    """Returns the option of a Python command that prevents our bootstrap, if it has one."""
    if not Path(command[0]).name.startswith("python"):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            return None  # the script begins: what follows is its own
        if word.startswith("--"):
            next(words, None)  # --check-hash-based-pycs takes a value
            continue
        for position, letter in enumerate(word[1:], start=1):
            if letter in "IES":
                return f"-{letter}"
            if letter in "cm":
                return None
            if letter in "WX":  # their value follows, here or in the next word
                if position == len(word) - 1:
                    next(words, None)
                break
    return None


def environment_for(
    outer: Mapping[str, str],
    run_folder: Path,
    ring_folder: str,
    max_steps: int | None,
) -> dict[str, str]:
    """Returns the training command's environment, with the variables that point to the run
    folder."""
    path = [str(INJECT), *filter(None, [outer.get("PYTHONPATH")])]
    environment = {
        **outer,
        "PYTHONPATH": os.pathsep.join(path),
        RUN_FOLDER: str(run_folder),
        RING_FOLDER: ring_folder,
    }
    for name in (MAX_STEPS, DISABLED, SCRIPT):
        environment.pop(name, None)
    if max_steps is not None:
        environment[MAX_STEPS] = str(max_steps)
    return environment


def untraced_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command that must not be traced."""
    ours = (RUN_FOLDER, RING_FOLDER, MAX_STEPS, SCRIPT)
    return {name: value for name, value in outer.items() if name not in ours} | {DISABLED: "1"}
