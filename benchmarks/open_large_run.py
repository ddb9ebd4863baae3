"""How long it takes to open a very large run, from records written as the agent writes them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import commands
from benchmarks.figure import Figure
from traceml.agent.close import summarise
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

RANKS = 64
STEPS = 100_000
PER_NODE = 8
SAMPLES = 10_000
SLOW_RANK = 37
STARTED_S = 1_800_000_000.0
REPEATS = 5
CLOSER = (40_000, 42_000)
"""The steps that are looked at more closely."""


def step_records(rank: int) -> npt.NDArray[Any]:
    """One rank's steps on a GPU, about 100 ms each."""
    random = np.random.default_rng(rank)
    steps = np.zeros(STEPS, STEP_DTYPE)
    share = {"input": 0.05, "h2d": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}
    factor = 1 + 0.02 * random.standard_normal(STEPS).clip(-3, 3) + 0.2 * (rank == SLOW_RANK)
    for name, part in share.items():
        steps[f"{name}_ns"] = steps[f"gpu_{name}_ns"] = 100e6 * part * factor
    steps["wall_ns"] = 100e6 * factor
    steps["body_ns"] = steps["gpu_body_ns"] = steps["wall_ns"] - steps["input_ns"]
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]
    for name in ("communication_ns", "gpu_communication_ns", "rss_bytes", "compile_ns"):
        steps[name] = layout.NOT_MEASURED
    steps["allocated_bytes"], steps["reserved_bytes"] = 60 << 30, 70 << 30
    steps["samples"], steps["micro_batches"], steps["optimizer_steps"] = 32, 1, 1
    steps["flags"] = int(layout.StepFlag.GPU_TIMED)
    steps["sequence"] = np.arange(1, STEPS + 1)
    return steps


def write_rank(folder: Path, rank: int) -> None:
    """The record files of one rank, by the code that drains a ring into them."""
    ring = rings._create_sized(folder / f"rank-{rank}-{1000 + rank}.ring", 16, 16)
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
    ring.mark_ended()
    ring.close()
    with RingReader(ring.path) as reader:
        RankFiles(folder, ring.path.stem, [])._append(reader.head_bytes(), step_records(rank))
    ring.path.unlink()


def write_run(folder: Path) -> None:
    """A whole run: ranks, samples, a logged loss, beginning and end, summary."""
    folders.write_manifest(
        folder, Manifest("large", STARTED_S - 5, expected_world_size=RANKS, nodes=RANKS // PER_NODE)
    )
    for rank in range(RANKS):
        write_rank(folder, rank)
    _write_samples(folder)
    values = (
        f'{{"number":{step},"kind":"metrics","step":{step},"unix_ns":{step},'
        f'"values":{{"loss":{2 + 8 / step:.6f},"lr":0.001}}}}\n'
        for step in range(10, STEPS, 10)
    )
    (folder / "rank-0-1000.messages").write_text("".join(values))
    folders.write_ending(folder, Ending(STARTED_S + STEPS * 0.1, 0))
    summarise(folder)


def _write_samples(folder: Path) -> None:
    samples = SampleFile(folder)
    samples.append(_sample(0))
    path = next(folder.glob("samples.jsonl"))
    line = path.read_bytes()
    old = f"{STARTED_S:.1f}".encode()
    later = (line.replace(old, b"%.1f" % (STARTED_S + second)) for second in range(1, SAMPLES))
    with path.open("ab") as file:
        file.writelines(later)


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


def open_run(folder: Path) -> dict[str, Any]:
    """Open it in a fresh process."""
    script = str(commands.SCRIPTS / "open_run.py")
    words = [sys.executable, script, str(folder), *map(str, CLOSER)]
    done = subprocess.run(words, env=commands.environment(), check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["steps"] != f"{STEPS:,} steps":
        raise RuntimeError(f"the page of {STEPS:,} steps says {found['steps']}")
    return found


def run() -> list[Figure]:
    """Time and memory; the files are in the page cache, as after a run."""
    with tempfile.TemporaryDirectory() as place:
        write_run(Path(place))
        found = [open_run(Path(place)) for _ in range(REPEATS + 1)][1:]
    what = f"{RANKS} ranks × {STEPS:,} steps"
    first, last = CLOSER
    imports = median(each["import_s"] for each in found)
    page_mb = median(each["page_bytes"] for each in found) / 1e6
    return [
        _figure(
            f"open {what}: until the page is made",
            "≤ 2 s",
            [each["open_s"] for each in found],
            "s",
            f"a page of {page_mb:.2f} MB; imports {imports:.2f} s more",
            {"runs": found},
        ),
        _figure(
            f"look closer at {last - first:,} of {what}",
            "≤ 0.5 s",
            [each["detail_s"] for each in found],
            "s",
        ),
        _figure(
            f"open {what}: peak memory",
            "≤ 500 MB",
            [each["peak_bytes"] / 1e6 for each in found],
            "MB",
        ),
    ]


def _figure(
    what: str,
    target: str,
    values: list[float],
    unit: str,
    note: str = "",
    details: dict[str, Any] | None = None,
) -> Figure:
    spread = f"range of {len(values)}"
    middle, low, high = median(values), min(values), max(values)
    return Figure(what, target, middle, unit, low, high, spread, note, details or {})
