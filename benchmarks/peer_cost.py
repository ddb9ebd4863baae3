"""What leaving a tool on costs, ours beside its peers: the same training under each, in turn.

`traceml-ai` has a command of the same name as ours and so needs an environment of its own, with
torch: TRACEML_PEER is the path of that environment's Python. Without it that peer is left out.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.stats import median_interval

ROUNDS = 7
STEPS = 400
WARMUP_STEPS = 50
SCRIPT = commands.SCRIPTS / "train_peers.py"
PEER = "TRACEML_PEER"
NO_TOOL, OURS, TRACEML_AI, PROFILER = "no tool", "TraceML", "traceml-ai", "torch.profiler"

CommandOf = Callable[[Path, Path], list[str]]
"""The words that run the script, given the file for its times and a folder for the tool."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One training under a tool."""

    step_ms: float
    """The mean after warm-up."""
    run_s: float
    cpu_s: float
    """Of all processes together."""


def run() -> list[Figure]:
    """Train under every tool in each round, in an order of chance."""
    tools = _tools()
    trained: dict[str, list[Trained]] = {name: [] for name in tools}
    order = random.Random(0)
    for _ in range(ROUNDS):
        for name in order.sample(list(tools), len(tools)):
            trained[name].append(_train(tools[name]))
    plain = trained.pop(NO_TOOL)
    return [figure for name, runs in trained.items() for figure in _figures(name, runs, plain)]


def breakdown(figures: list[Figure]) -> str:
    """Which peer was left out."""
    if any(figure.what.startswith(TRACEML_AI) for figure in figures):
        return ""
    return f"{TRACEML_AI} is left out: {PEER} names no Python of an environment that has it"


def _tools() -> dict[str, CommandOf]:
    tools: dict[str, CommandOf] = {
        NO_TOOL: lambda times, _: [sys.executable, str(SCRIPT), str(times), str(STEPS)],
        OURS: lambda times, logs: commands.command(SCRIPT.name, times, STEPS, logs=logs),
        PROFILER: lambda times, _: [sys.executable, str(SCRIPT), str(times), str(STEPS), PROFILER],
    }
    peer = os.environ.get(PEER)
    if peer:
        traceml_ai = [str(Path(peer).parent / "traceml"), "run"]
        tools[TRACEML_AI] = lambda times, logs: [
            *(*traceml_ai, "--logs-dir", str(logs), str(SCRIPT)),
            *("--args", str(times), str(STEPS), TRACEML_AI),
        ]
    return tools


def _train(command: CommandOf) -> Trained:
    with tempfile.TemporaryDirectory() as place:
        times = Path(place) / "times.json"
        words = command(times, Path(place) / "logs")
        before, began_s = commands.children_cpu_s(), time.monotonic()
        subprocess.run(words, check=True, capture_output=True)
        run_s, cpu_s = time.monotonic() - began_s, commands.children_cpu_s() - before
        steps_s = json.loads(times.read_text())["times_s"][WARMUP_STEPS:]
    return Trained(fmean(steps_s) * 1e3, run_s, cpu_s)


def _figures(name: str, runs: list[Trained], plain: list[Trained]) -> list[Figure]:
    """What it added in each round, beside the training of that round without a tool."""
    step_ms = median(each.step_ms for each in plain)
    added = {
        f"added to a step of {step_ms:.1f} ms": ("ms", _differences(runs, plain, "step_ms")),
        "added to the run": ("s", _differences(runs, plain, "run_s")),
        "CPU time added, all processes": ("s", _differences(runs, plain, "cpu_s")),
    }
    figures = []
    for what, (unit, values) in added.items():
        middle, low, high = median_interval(values)
        spread = f"{len(values)} rounds"
        figures.append(Figure(f"{name}: {what}", "", middle, unit, low, high, spread))
    return figures


def _differences(runs: list[Trained], plain: list[Trained], field: str) -> list[float]:
    return [getattr(a, field) - getattr(b, field) for a, b in zip(runs, plain, strict=True)]
