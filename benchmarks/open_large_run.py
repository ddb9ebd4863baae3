"""How long it takes to open a very large run, from records written as the agent writes them."""

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
from traceml.agent.close import summarise
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile
from traceml.trace import ring as rings

RANKS = 64
STEPS = 100_000
SAMPLES = 10_000
SLOW_RANK = 37
REPEATS = 5
CLOSER = (40_000, 42_000)
"""The steps that are looked at more closely."""


def write_rank(folder: Path, rank: int) -> None:
    """The record files of one rank, by the code that drains a ring into them."""
    ring = rings._create_sized(folder / f"rank-{rank}-{1000 + rank}.ring", 16, 16)
    ring.identify(made_rank(rank, RANKS))
    ring.mark_ended()
    ring.close()
    with RingReader(ring.path) as reader:
        RankFiles(folder, ring.path.stem, [])._append(
            reader.head_bytes(), made_steps(rank, STEPS, slower=0.2 * (rank == SLOW_RANK))
        )
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
    samples.append(made_sample(0))
    path = next(folder.glob("samples.jsonl"))
    line = path.read_bytes()
    old = f"{STARTED_S:.1f}".encode()
    later = (line.replace(old, b"%.1f" % (STARTED_S + second)) for second in range(1, SAMPLES))
    with path.open("ab") as file:
        file.writelines(later)


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
