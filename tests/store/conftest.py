"""A small ring of given steps, and the folder it is drained into."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from row_rings import RowRing
from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.model.run import Manifest
from traceml.store import folder as folders
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader

SECOND_NS = 1_000_000_000


def step_values(number: int, **known: int) -> list[int]:
    """All fields of a step but its sequence; each differs from step to step."""
    plain = {
        "start_ns": number * 1_000,
        "wall_ns": 1_000 + number,
        "input_ns": 100 + number % 7,
        "body_ns": 900 + number % 5,
        "evaluation_ns": 0,
        "checkpoint_ns": 0,
        "forward_ns": 300,
        "samples": 32,
        "micro_batches": 1,
        "flags": 0,
        "optimizer_steps": 1,
        **known,
    }
    names = [name for name, _ in record_layout.STEP if name != "sequence"]
    return [plain.get(name, record_layout.NOT_MEASURED) for name in names]


class Tracer:
    """The writing end of one rank."""

    def __init__(
        self, folder: Path, rank: int, pid: int, unix_s: float, steps: int, messages: int
    ) -> None:
        self.ring = RowRing(folder / f"rank-{rank}-{pid}.ring", steps, messages)
        self.path = self.ring.path
        self.stem = self.path.stem
        self.ring.identify(
            Rank(
                rank=rank,
                local_rank=rank,
                world_size=4,
                local_world_size=4,
                node_rank=0,
                pid=pid,
                hostname="host-a",
                device="cpu",
                device_name="",
                device_total_bytes=None,
                monotonic_ns=0,
                unix_ns=int(unix_s * SECOND_NS),
            )
        )

    def step(self, count: int = 1, **known: int) -> None:
        """Write so many steps."""
        for _ in range(count):
            self.ring.write_step(*step_values(self.ring.steps_written, **known))

    def metrics(self, step: int, **values: Any) -> None:
        """Log metric values as the tracer's messages do."""
        message = {"kind": "metrics", "step": step, "unix_ns": step, "values": values}
        self.say(message)

    def say(self, message: dict[str, Any]) -> None:
        """Write any message."""
        self.ring.write_message(json.dumps(message, separators=(",", ":")).encode())

    def drain(self, folder: Path, everything: bool = False) -> RankFiles:
        """Drain with a new agent's eyes."""
        files = RankFiles.of(folder, self.stem)
        with RingReader(self.path) as ring:
            files.drain(ring, everything)
        return files


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    folders.write_manifest(folder, Manifest(run_name="run", started_unix_s=1_800_000_000.0))
    return folder


@pytest.fixture
def tracer(tmp_path: Path) -> Callable[..., Tracer]:
    """Make a rank with a ring of `steps` and `messages` slots."""

    def make(
        rank: int = 0,
        pid: int = 100,
        steps: int = 64,
        messages: int = 32,
        unix_s: float = 1_800_000_000.0,
    ) -> Tracer:
        return Tracer(tmp_path / "rings", rank, pid, unix_s, steps, messages)

    return make
