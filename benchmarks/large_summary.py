"""The summary of a very large run, from synthetic records written as the agent writes them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import commands
from benchmarks.figure import Figure
from traceml.model import layout
from traceml.model.rank import Rank
from traceml.model.run import Ending, Manifest
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample
from traceml.store import folder as folders
from traceml.store.recordfile import RankFiles
from traceml.store.records import STEP_DTYPE
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile
from traceml.trace import ring as rings

RANKS = 1024
STEPS = 1000
PER_NODE = 8
SAMPLES = 120
STARTED_S = 1_800_000_000.0
REPEATS = 9


def step_rows(rank: int) -> list[tuple[int, ...]]:
    """One rank's steps on a GPU, about 100 ms each, without their sequence numbers."""
    random = np.random.default_rng(rank)
    steps = np.zeros(STEPS, STEP_DTYPE)
    share = {"input": 0.05, "h2d": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
    factor = 1 + 0.02 * random.standard_normal(STEPS).clip(-3, 3)
    for name, part in share.items():
        steps[f"{name}_ns"] = steps[f"gpu_{name}_ns"] = 100e6 * part * factor
    steps["wall_ns"] = 100e6 * factor
    steps["body_ns"] = steps["gpu_body_ns"] = steps["wall_ns"] - steps["input_ns"]
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]
    steps["communication_ns"] = layout.NOT_MEASURED
    steps["allocated_bytes"], steps["reserved_bytes"] = 60 << 30, 70 << 30
    steps["samples"], steps["micro_batches"], steps["optimizer_steps"] = 32, 1, 1
    steps["flags"] = int(layout.StepFlag.GPU_TIMED)
    rows: list[tuple[int, ...]] = [row[:-1] for row in steps.tolist()]
    return rows


def write_rank(folder: Path, rank: int) -> None:
    """The road of the real thing: a ring is written, drained into record files, and removed."""
    ring = rings._create_sized(folder / f"rank-{rank}-{1000 + rank}.ring", 2 * STEPS, 16)
    node, local = divmod(rank, PER_NODE)
    ring.identify(
        Rank(
            rank=rank,
            local_rank=local,
            world_size=RANKS,
            local_world_size=PER_NODE,
            node_rank=node,
            pid=1000 + rank,
            hostname=f"node-{node}",
            device=f"cuda:{local}",
            device_name="NVIDIA H200",
            device_total_bytes=140 << 30,
            monotonic_ns=0,
            unix_ns=int(STARTED_S * 1e9),
        )
    )
    for row in step_rows(rank):
        ring.write_step(*row)
    ring.mark_final(STEPS)
    ring.mark_ended()
    ring.close()
    with RingReader(ring.path) as reader:
        RankFiles(folder, ring.path.stem, []).drain(reader, everything=True)
    ring.path.unlink()


def write_run(folder: Path) -> None:
    """A whole run: ranks, samples, beginning and end."""
    folders.write_manifest(
        folder, Manifest("large", STARTED_S - 5, expected_world_size=RANKS, nodes=RANKS // PER_NODE)
    )
    for rank in range(RANKS):
        write_rank(folder, rank)
    samples = SampleFile(folder)
    for second in range(SAMPLES):
        samples.append(_sample(second))
    folders.write_ending(folder, Ending(STARTED_S + SAMPLES, 0))


def _sample(second: int) -> Sample:
    host = HostSample(cpu_share=0.5, ram_used_bytes=1 << 38, ram_total_bytes=1 << 40)
    return Sample(
        STARTED_S + second,
        host,
        tuple(
            ProcessSample(n, 1000 + n, 1.0, 8 << 30, 40, 4, 0.5, 4 << 30) for n in range(PER_NODE)
        ),
        tuple(
            GpuSample(n, f"GPU-{n}", "NVIDIA H200", 0.9, 70 << 30, 140 << 30, 60.0, 600.0, 700.0)
            for n in range(PER_NODE)
        ),
    )


def summarise(folder: Path) -> dict[str, Any]:
    """Load, build and write out in a fresh process."""
    words = [sys.executable, str(commands.SCRIPTS / "summarise.py"), str(folder)]
    done = subprocess.run(words, env=commands.environment(), check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["ranks"] != RANKS or found["steps"] != RANKS * STEPS:
        raise RuntimeError(f"the summary of {RANKS} ranks × {STEPS} steps holds {found}")
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
