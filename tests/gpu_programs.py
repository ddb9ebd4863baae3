"""Starts programs on a machine with a GPU, where TraceML may be on the path and not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # the benchmarks lie beside the package

from benchmarks.jobs.scripts import gpu_turn

TRACEML_RUN = [sys.executable, "-m", "traceml", "run", "--mode=summary"]
TIMEOUT_S = 240.0
"""For starting Python, torch and CUDA beside other programs, compiling, and training a little."""

Ran = subprocess.CompletedProcess[str]


def with_turns(folder: Path) -> dict[str, str]:
    """An environment in which scripts can `from gpu_turn import wait_for_turn`.

    Their turns are among those of `make gpu` where it runs, and otherwise among themselves.
    """
    scripts = str(Path(gpu_turn.__file__).parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), scripts]))
    return {gpu_turn.TURN_FILE: str(folder / "turn"), **os.environ, "PYTHONPATH": path}


def run_all(
    commands: Sequence[Sequence[str | Path]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> list[Ran]:
    """Run programs beside each other, in one folder, to their ends; starting takes them longest."""

    def run(command: Sequence[str | Path]) -> Ran:
        return subprocess.run(
            [str(word) for word in command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(run, commands))


def summary_of(folder: Path, run_name: str) -> dict[str, Any]:
    """The final summary of a run that was started in a folder."""
    path = folder / "logs" / run_name / "final_summary.json"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found
