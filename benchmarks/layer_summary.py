"""The summary of a run with a deep profile of a large model, from files as the tracer writes them.

A short profile is read whole; of a long one, pieces from the whole run.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.figure import Figure
from benchmarks.large_summary import summarise, write_rank
from benchmarks.made_runs import STARTED_S
from traceml.model.environment import LAYERS
from traceml.model.layer_names import COUNTED
from traceml.model.packed_times import pack
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders

RANKS = 64
LAYER_COUNT = 2000
STEPS = 200
SHORT, LONG = 8, 60
"""Steps that were timed in each process."""
REPEATS = 5


def layer_lines(timed: int) -> list[dict[str, Any]]:
    """What one process writes: names, timed steps, memory, operations and kernels."""
    random = np.random.default_rng(0)

    def row(most: int) -> list[int]:
        found: list[int] = random.integers(0, most, LAYER_COUNT).tolist()
        return found

    def packed(most: int, count: int = LAYER_COUNT) -> str:
        return pack(random.integers(0, most, count).tolist())

    parts = ("", "attn", "attn.q", "attn.k", "mlp", "mlp.up", "mlp.down", "norm")
    names = [f"blocks.{n // 8}.{parts[n % 8]}".rstrip(".") for n in range(LAYER_COUNT)]
    times = [
        f"{clock}_{phase}_ns" for clock in ("host", "gpu") for phase in ("forward", "backward")
    ]
    held = ("parameters", "buffers", "gradients", "optimizer", "saved", "peak")
    launches = [(n % 100, n) for n in range(LAYER_COUNT)]
    return [
        {"set": 1, "names": names, "kinds": ["Linear"] * LAYER_COUNT},
        {"set": 1, "step": 7, **{name: row(10**8) for name in held}},
        {"set": 1, "step": 8, **{name: row(10**9) for name in COUNTED}},
        {
            "set": 1,
            "launches_from": 0,
            "kernel_names": [f"kernel_{n}" for n in range(100)],
            "launches": launches,
        },
        *(
            {
                "set": 1,
                "step": 9 + 7 * n,
                "busy_ns": 10**8,
                "kernels": 5000,
                "launch_calls": packed(9),
                "launch_ns": packed(10**5),
            }
            for n in range(1 + timed // 8)
        ),
        *(
            {
                "set": 1,
                "step": 10 + 7 * (n // 2) + n % 2,
                "calls": packed(3),
                **{name: packed(10**6) for name in times},
            }
            for n in range(timed)
        ),
    ]


def write_run(folder: Path, timed: int) -> int:
    """A whole run; returns how many bytes its layers take."""
    manifest = Manifest("deep", STARTED_S - 5, expected_world_size=RANKS)
    folders.write_manifest(folder, manifest)
    content = "".join(json.dumps(line) + "\n" for line in layer_lines(timed))
    for rank in range(RANKS):
        write_rank(folder, rank, RANKS, STEPS)
        (folder / LAYERS.format(pid=1000 + rank)).write_text(content)
    folders.write_ending(folder, Ending(STARTED_S + 60, 0))
    return RANKS * len(content)


def run() -> list[Figure]:
    """Time of the summary, with a short profile and with a long one."""
    return [figure for timed in (SHORT, LONG) for figure in _figures(timed)]


def _figures(timed: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as place:
        size = write_run(Path(place), timed)
        found = [summarise(Path(place), RANKS, STEPS) for _ in range(REPEATS)]
    if any(each["layers"] != LAYER_COUNT for each in found):
        raise RuntimeError(f"the summary of {LAYER_COUNT} layers holds {found[0]['layers']}")
    total = [each["total_s"] for each in found]
    peak = [each["peak_bytes"] / 1e6 for each in found]
    what = f"summary of {LAYER_COUNT:,} layers × {RANKS} ranks × {timed} steps looked at"
    spread, note = f"range of {REPEATS}", f"{size / 1e6:,.0f} MB of files"
    return [
        Figure(f"{what}: time", "≤ 2 s", median(total), "s", min(total), max(total), spread, note),
        Figure(f"{what}: peak memory", "", median(peak), "MB", min(peak), max(peak), spread),
    ]
