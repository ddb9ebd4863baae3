"""Whether a loop of very short steps is recorded to the last one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks import commands
from benchmarks.figure import Figure

SECONDS = 25


def figure(what: str, target: str, kind: str) -> Figure:
    """Steps taken against steps in the summary."""
    with tempfile.TemporaryDirectory() as place:
        said, logs = Path(place) / "said.json", Path(place) / "logs"
        commands.run(commands.command("fast_steps.py", said, SECONDS, kind, logs=logs))
        taken = json.loads(said.read_text())
        folder = commands.only_run(logs)
        tracer = json.loads((folder / "final_summary.json").read_text())["tracer"]
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    recorded, lost = tracer["steps_recorded"], tracer["steps_lost"]
    per_s = taken["steps"] / taken["seconds"]
    return Figure(
        what,
        target,
        100 * recorded / taken["steps"],
        "% recorded",
        note=f"{per_s:,.0f} steps/s: {taken['steps']:,} taken, {recorded:,} recorded, "
        f"{lost:,} lost; {size / 1e6:.0f} MB on disk",
        details=commands.details(**taken, recorded=recorded, lost=lost, bytes_on_disk=size),
    )


def run() -> list[Figure]:
    """A real step as fast as torch allows, and an empty one as fast as Python does."""
    return [
        figure("loop at 5,000 steps/s", "every step", "real"),
        figure("empty trace_step, flat out", "–", "empty"),
    ]
