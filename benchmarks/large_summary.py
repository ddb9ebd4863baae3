"""The summary of a very large run, from synthetic records written as the agent writes them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import commands
from benchmarks.figure import Figure
from benchmarks.made_runs import PER_NODE, STARTED_S, made_rank, made_sample, made_steps
from traceml.model.rank import Rank
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile
from traceml.trace import ring as rings

RANKS = 1024
STEPS = 1000
SAMPLES = 120
REPEATS = 9


def write_rank(folder: Path, rank: int, ranks: int = RANKS, steps: int = STEPS) -> None:
    """The record files of one rank, by the code that brings steps to disk."""
    files, head = rank_files(folder, made_rank(rank, ranks), is_over=True)
    files._append(head, made_steps(rank, steps))


def rank_files(folder: Path, rank: Rank, is_over: bool = False) -> tuple[RankFiles, bytes]:
    """The files of one rank's process, before its first step, and the head that they begin with."""
    ring = rings._create_sized(folder / f"rank-{rank.rank}-{rank.pid}.ring", 16, 16)
    ring.identify(rank)
    if is_over:
        ring.mark_ended()
    ring.close()
    with RingReader(ring.path) as reader:
        head = reader.head_bytes()
    ring.path.unlink()
    return RankFiles(folder, ring.path.stem, []), head


def write_run(folder: Path) -> None:
    """A whole run: ranks, samples, beginning and end."""
    folders.write_manifest(
        folder, Manifest("large", STARTED_S - 5, expected_world_size=RANKS, nodes=RANKS // PER_NODE)
    )
    for rank in range(RANKS):
        write_rank(folder, rank)
    samples = SampleFile(folder)
    for second in range(SAMPLES):
        samples.append(made_sample(second))
    folders.write_ending(folder, Ending(STARTED_S + SAMPLES, 0))


def summarise(folder: Path, ranks: int = RANKS, steps: int = STEPS) -> dict[str, Any]:
    """Load, build and write out in a fresh process."""
    words = [sys.executable, str(commands.SCRIPTS / "summarise.py"), str(folder)]
    done = subprocess.run(words, env=commands.environment(), check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["ranks"] != ranks or found["steps"] != ranks * steps:
        raise RuntimeError(f"the summary of {ranks} ranks × {steps} steps holds {found}")
    return found


def run() -> list[Figure]:
    """Time and memory of a large summary."""
    with tempfile.TemporaryDirectory() as place:
        write_run(Path(place))
        found = [summarise(Path(place)) for _ in range(REPEATS)]
    total = [each["total_s"] for each in found]
    peak = [each["peak_bytes"] / 1e6 for each in found]
    parts = ", ".join(
        f"{name} {median(each[f'{name}_s'] for each in found):.2f}"
        for name in ("load", "build", "text")
    )
    imports = median(each["import_s"] for each in found)
    what = f"summary of {RANKS:,} ranks × {STEPS:,} steps"
    spread = f"range of {REPEATS}"
    return [
        Figure(
            f"{what}: time",
            "≤ 1 s",
            median(total),
            "s",
            min(total),
            max(total),
            spread,
            f"{parts}; imports {imports:.2f} s more",
            {"runs": found},
        ),
        Figure(
            f"{what}: peak memory", "≤ 500 MB", median(peak), "MB", min(peak), max(peak), spread
        ),
    ]
