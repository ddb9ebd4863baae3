"""The training command, and the environment that loads the tracer into it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceml.model.environment import (
    DISABLED,
    ESSENTIAL,
    KINETO,
    LOG_TO,
    MAX_STEPS,
    NOTIFY,
    OOM_SNAPSHOT,
    PROFILE,
    RING_FOLDER,
    RUN_FOLDER,
    SCRIPT,
)
from traceml.model.errors import UsageError, did_you_mean

DEFAULT_MASTER_PORT = 29500
DEFAULT_ENDPOINT_PORT = 29400
"""torchrun's, for `--rdzv-endpoint` without a port."""
INJECT = Path(__file__).parents[1] / "trace" / "inject"

_PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz", ".zip")
_OTHER_WAYS = {
    ".ipynb": "a notebook; call traceml.init() in its first cell instead",
    ".json": "a JSON file; pass the script that reads it",
    ".sh": "a shell script; a whole command goes after --: traceml run -- sh {script}",
}
"""By suffix, what a file is that people pass for the script; JSON is often valid Python, too."""
_MAX_SCRIPT_BYTES = 1 << 20
_ZIP_MARK = b"PK\x03\x04"


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

    @property
    def meeting_point(self) -> str:
        """Where the machines meet, as `host:port`."""
        return f"{self.master_addr or '127.0.0.1'}:{self.master_port or DEFAULT_MASTER_PORT}"


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
        launcher.append(f"--master-port={cluster.master_port or DEFAULT_MASTER_PORT}")
    return [*launcher, script, *arguments]


def require_machines(nodes: int, node_rank: int | None, master_addr: str | None) -> None:
    """Raises UsageError where the options do not say which of the machines this is, or where they
    meet: torchrun would wait for them without a word."""
    if nodes == 1 and node_rank:
        raise UsageError(
            f"--node-rank {node_rank} needs more than one machine, and --nnodes is 1; "
            "pass --nnodes, or leave --node-rank out"
        )
    missing = [
        option
        for option, value in (("--node-rank", node_rank), ("--master-addr", master_addr))
        if value is None
    ]
    if nodes > 1 and missing:
        raise UsageError(
            f"--nnodes {nodes} without {' and '.join(missing)} would wait for the other machines "
            f"for ever; run on each machine with its own number, 0 to {nodes - 1}: "
            f"traceml run --nnodes {nodes} --node-rank 0 --master-addr HOST-OF-NUMBER-0 train.py"
        )
    if node_rank is not None and node_rank >= nodes:
        raise UsageError(
            f"there is no machine {node_rank} of {nodes}; expected --node-rank 0 to {nodes - 1}; "
            "the first machine has number 0"
        )


def _require_script(script: str) -> None:
    path = Path(script)
    try:
        if path.is_dir() and (path / "__main__.py").is_file():
            return
        found = "a folder without a __main__.py" if path.is_dir() else "nothing"
        is_there = path.exists() and not path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        found, is_there = str(error), False
    if not is_there:
        raise UsageError(
            f"there is no script {script!r} (found {found} there, from {Path.cwd()})"
            f"{did_you_mean(path.name, _scripts_beside(path))}; "
            "pass a Python file, or a whole command after --"
        )
    if not path.is_file():
        return  # a pipe, such as <(…): Python reads it once, and so we must not
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {script!r} cannot be read; check its permissions")
    if path.suffix not in _PYTHON_SUFFIXES:
        _require_python(script, path)


def _require_python(script: str, path: Path) -> None:
    """Raises UsageError for a file that is neither called nor written like a Python script."""
    other = _OTHER_WAYS.get(path.suffix)
    if other is not None:
        found = other.format(script=script)
        raise UsageError(f"{script!r} is {found}; expected a Python script such as train.py")
    with path.open("rb") as file:
        content = file.read(_MAX_SCRIPT_BYTES + 1)
    if len(content) > _MAX_SCRIPT_BYTES or content[:4] == _ZIP_MARK:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python will say it itself
            compile(content, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, in some Pythons
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise UsageError(
            f"{script!r} is not Python ({getattr(error, 'msg', error)}{where}); expected a script "
            f"such as train.py; a program goes after --: traceml run -- ./{path.name}"
        ) from None


def _scripts_beside(path: Path) -> list[str]:
    """Returns the names of the Python files in the folder of a path."""
    try:
        return [each.name for each in path.parent.glob("*.py")]
    except (OSError, ValueError):
        return []


def require_command(command: list[str]) -> None:
    """Raises UsageError for a command that cannot be run, before anything is started."""
    program = command[0]
    if shutil.which(program) is not None:
        return
    rest = shlex.join(command[1:])
    is_file = os.path.isfile(program)  # noqa: PTH113 - never raises, however long the name
    if not program.strip():
        what, instead = "is an empty name", "such as traceml run -- torchrun train.py"
    elif os.path.isdir(program):  # noqa: PTH112 - never raises
        what, instead = "is a folder", "pass a program"
    elif is_file and program.endswith(".py"):
        arguments = f" --args {rest}" if rest else ""
        what = "is a Python script and no program"
        instead = f"leave -- out: traceml run {program}{arguments}"
    elif is_file and "/" in program:
        what = "is not executable"
        instead = f"make it so (chmod +x {program}), or name its interpreter: -- sh {program}"
    elif is_file:
        what = "is not on the PATH"
        instead = f"a file of this folder is called ./{program}"
    elif "/" in program:
        what, instead = f"is not there (looked from {Path.cwd()})", "check the path"
    else:
        what, instead = "is not on the PATH", "check its name, or give its whole path"
    raise UsageError(f"the command {program!r} {what}; expected a program after --; {instead}")


def subject(command: list[str]) -> str:
    """Returns what to name the run after: the command's script or module, or its program."""
    for position, word in enumerate(command[1:], start=1):
        if word.endswith(".py"):
            return word
        if command[position - 1] == "-m":
            return word.replace(".", "-")
    return command[0]


def asks_for_machines(command: Sequence[str]) -> bool:
    """Returns whether a command starts ranks on several machines, or may, by the options of torch's
    launcher."""
    return _option(command, "--nnodes") not in (None, "1", "1:1")


def node_rank(command: Sequence[str]) -> int:
    """Returns which of the job's machines this is, as the options of torch's launcher say it; 0
    where they do not."""
    said = _option(command, "--node-rank") if asks_for_machines(command) else None
    return int(said) if said is not None and said.isascii() and said.isdigit() else 0


def meeting_point(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns the host and the port at which the ranks of a job on several machines meet, as the
    options of torch's launcher, or else the environment, say it; `None` where they do not."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    endpoint = _option(command, "--rdzv-endpoint") if asks_for_machines(command) else None
    if endpoint:
        host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
        port = port or str(DEFAULT_ENDPOINT_PORT)
    elif asks_for_machines(command):
        host = _option(command, "--master-addr") or host
        port = _option(command, "--master-port") or str(DEFAULT_MASTER_PORT)
    is_known = host and port.isascii() and port.isdigit()
    return (host.strip("[]"), int(port)) if is_known else None


def _option(command: Sequence[str], name: str) -> str | None:
    """Returns the value of a launcher's option, in either spelling; `None` where it is not given.
    What follows the script is the script's own."""
    words = iter(command)
    for word in words:
        if word.endswith(".py"):
            return None
        given, equals, value = word.partition("=")
        if given.replace("_", "-") == name:
            return value if equals else next(words, "")
    return None


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
    profile: str = ESSENTIAL,
    oom_snapshot: bool = False,
    kineto: int | None = None,
    log_to: Sequence[str] = (),
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
    for name in (MAX_STEPS, PROFILE, OOM_SNAPSHOT, KINETO, LOG_TO, DISABLED, SCRIPT, NOTIFY):
        environment.pop(name, None)
    if max_steps is not None:
        environment[MAX_STEPS] = str(max_steps)
    if profile != ESSENTIAL:
        environment[PROFILE] = profile
    if oom_snapshot:
        environment[OOM_SNAPSHOT] = "1"
    if kineto is not None:
        environment[KINETO] = str(kineto)
    if log_to:
        environment[LOG_TO] = ",".join(log_to)
    return environment


def untraced_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command that must not be traced."""
    told = (MAX_STEPS, PROFILE, OOM_SNAPSHOT, KINETO, LOG_TO, SCRIPT, NOTIFY)
    ours = (RUN_FOLDER, RING_FOLDER, *told)
    return {name: value for name, value in outer.items() if name not in ours} | {DISABLED: "1"}
