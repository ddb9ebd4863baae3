"""Starts scripts with TraceML and without, the same way for every benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def seconds(words: list[str]) -> float:
    """How long it takes from start to exit."""
    began = time.monotonic()
    run(words)
    return time.monotonic() - began


def only_run(logs: Path) -> Path:
    """The one run folder under the logs folder."""
    (folder,) = (path for path in logs.iterdir() if path.is_dir())
    return folder


def details(**values: Any) -> dict[str, Any]:
    """Named values for the JSON file."""
    return values
