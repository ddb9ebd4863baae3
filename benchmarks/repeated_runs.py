"""What `compare` says of real runs that are all the same: every verdict on them is a false one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks import commands
from benchmarks.calibration import DECIDED, step_ms
from benchmarks.figure import Figure
from traceml.compare.pair import compare_groups
from traceml.summaries.read import FILE_NAME, read_summary
from traceml.summaries.record import Summary

RUNS = 8
TRAINING_S = 3.0

Split = tuple[Sequence[Summary], Sequence[Summary]]


def run() -> list[Figure]:
    """Train the same thing again and again, and compare what came of it."""
    runs = _repeat()
    steps_ms = [step_ms(each) for each in runs]
    spread = float(np.std(np.log(steps_ms), ddof=1))
    return [
        Figure(
            f"{RUNS} runs of one command: run-to-run spread",
            "–",
            100 * spread,
            "%",
            min(steps_ms),
            max(steps_ms),
            "ms per step",
        ),
        _false_verdicts("1 + 1", list(_splits(runs, 1)), "shown"),
        _false_verdicts("3 + 3", list(_splits(runs, 3)), "≤ 5 %"),
    ]


def _repeat() -> list[Summary]:
    found = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as place:
            logs = Path(place) / "logs"
            stamps = Path(place) / "stamps.json"
            commands.run(commands.command("train_small.py", stamps, TRAINING_S, logs=logs))
            found.append(read_summary(commands.only_run(logs) / FILE_NAME))
    return found


def _splits(runs: Sequence[Summary], size: int) -> Iterator[Split]:
    """Every way to compare so many of the runs with as many others."""
    for a in combinations(range(len(runs)), size):
        rest = [place for place in range(len(runs)) if place not in a]
        for b in combinations(rest, size):
            if a < b:
                yield [runs[place] for place in a], [runs[place] for place in b]


def _false_verdicts(name: str, splits: Sequence[Split], target: str) -> Figure:
    decided = sum(compare_groups(a, b, ("a", "b")).verdict.status in DECIDED for a, b in splits)
    return Figure(
        f"false verdicts from {name} of these runs",
        target,
        100 * decided / len(splits),
        "%",
        spread=f"{decided} of {len(splits)} ways to split them",
    )
