"""Starts scripts with TraceML and without, the same way for every benchmark."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SCRIPTS = Path(__file__).parent / "scripts"
_SOURCE = str(Path(__file__).parents[1] / "src")


def environment() -> dict[str, str]:
    """Ours, with the package of this checkout found first."""
    path = [_SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def traceml() -> list[str]:
    """The command line, as it was installed, or else as a module."""
    installed = Path(sys.executable).parent / "traceml"
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "traceml"]


def command(script: str, *arguments: object, logs: Path | None) -> list[str]:
    """The command that runs one of our scripts, traced if there is a folder for the run."""
    words = [str(SCRIPTS / script), *map(str, arguments)]
    if logs is None:
        return [sys.executable, *words]
    return [*traceml(), "run", "--logs-dir", str(logs), words[0], "--args", *words[1:]]


def start(words: list[str]) -> subprocess.Popen[bytes]:
    """Start it, silently."""
    return subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def run(words: list[str]) -> None:
    """Run it to its end; a failure ends the benchmark."""
    subprocess.run(words, env=environment(), check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command that may fail left behind."""

    status: int | None
    """`None` where it had to be ended."""
    output: str
    """Both streams, as they came."""
    wall_s: float


def run_to_end(words: list[str], timeout_s: float, cwd: Path | None = None) -> Ended:
    """Run it to its end; after the timeout it is ended, with all that it started."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
        finally:
            end_tree(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Ended(status, text, time.monotonic() - began)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of it running: ranks under torchrun have sessions of their own."""
    if process.poll() is not None:
        return
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def seconds(words: list[str]) -> float:
    """How long it takes from start to exit."""
    began = time.monotonic()
    run(words)
    return time.monotonic() - began


def children_cpu_s() -> float:
    """CPU time of all processes that have ended below this one, which load stretches least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def only_run(logs: Path) -> Path:
    """The one run folder under the logs folder."""
    (folder,) = (path for path in logs.iterdir() if path.is_dir())
    return folder


def details(**values: Any) -> dict[str, Any]:
    """Named values for the JSON file."""
    return values
