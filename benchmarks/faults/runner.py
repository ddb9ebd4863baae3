"""Runs a scenario as a user would, in real processes, and brings back what TraceML left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.faults.scenario import Scenario
from benchmarks.faults.training.plan import NOTED_IN, to_words

SCRIPT = Path(__file__).parent / "training" / "train.py"
ROOT = Path(__file__).parents[2]
RUN_NAME = "run"
POLL_S = 0.05
PATIENCE_S = 20.0
"""How long a training that was asked to end may take to do so, its summary included."""


@dataclass(frozen=True, slots=True)
class Onset:
    """When the fault struck first, by the script's own word."""

    step: int
    unix_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run left."""

    summary: dict[str, Any] | None
    live: tuple[dict[str, Any], ...] = ()
    onset: Onset | None = None
    status: int | None = 0
    """The exit status; `None` where the run had to be ended from outside."""
    output: str = ""
    wall_s: float = 0.0


def run(scenario: Scenario, folder: Path) -> Outcome:
    """Run it once, with its neighbours beside it, in a folder of its own."""
    folder.mkdir(parents=True)
    noted, output = folder / "onset.json", folder / "output.txt"
    environment = {
        **commands.environment(),
        NOTED_IN: str(noted),
        "OMP_NUM_THREADS": "1",
    }
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    began = time.monotonic()
    with neighbours(scenario), output.open("wb") as stream:
        process = subprocess.Popen(
            command(scenario, folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            status = _wait(process, scenario, noted)
        finally:
            commands.end_tree(process)
    return Outcome(
        summary=_read_json(folder / RUN_NAME / "final_summary.json"),
        live=_read_lines(folder / RUN_NAME / "live.jsonl"),
        onset=_read_onset(noted),
        status=status,
        output=output.read_text(errors="replace"),
        wall_s=time.monotonic() - began,
    )


def command(scenario: Scenario, logs: Path) -> list[str]:
    """What a user would type."""
    traced = [*commands.traceml(), "run", "--mode=summary", "--logs-dir", str(logs)]
    traced += ["--run-name", RUN_NAME]
    script = [str(SCRIPT)]
    words = to_words(scenario.setup, scenario.plant)
    ranks = str(scenario.ranks)
    if scenario.launcher == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*traced, "--", *launcher, "--nproc-per-node", ranks, *script, *words]
    if scenario.ranks > 1:
        traced += ["--nproc-per-node", ranks]
    return [*traced, *script, "--args", *words]


# Processes beside the training, and its end


@contextmanager
def neighbours(scenario: Scenario) -> Iterator[None]:
    """Busy processes, gone at the end: anywhere, or on the core that the training is pinned to."""
    crowded = {max(os.sched_getaffinity(0))}  # where the script pins itself
    with ExitStack() as stack:
        for _ in range(scenario.neighbours):
            stack.enter_context(_busy())
        for _ in range(scenario.crowding):
            process = stack.enter_context(_busy())
            os.sched_setaffinity(process.pid, crowded)
        yield


@contextmanager
def _busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], scenario: Scenario, noted: Path) -> int | None:
    """Wait for its end, or end it when nobody would wait any longer."""
    deadline = time.monotonic() + scenario.timeout_s
    gives_up = scenario.gives_up_after_s
    while process.poll() is None:
        if gives_up is not None and noted.exists():
            deadline, gives_up = time.monotonic() + gives_up, None
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
            return None
        time.sleep(POLL_S)
    return process.returncode


# What the run left


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return content


def _read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return ()
    return tuple(json.loads(line) for line in lines if line)


def _read_onset(path: Path) -> Onset | None:
    content = _read_json(path)
    return None if content is None else Onset(content["step"], content["unix_s"])
