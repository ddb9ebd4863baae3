"""Makes the run folder of the current record format that stays here for good.

`python tests/data/records/make.py` writes `v<VERSION>/` beside this file, and refuses to replace
one: what a released version wrote is history.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.model.run import Ending, Manifest
from traceml.model.sample import HostSample, ProcessSample, Sample
from traceml.store import folder as folders
from traceml.store import record_file
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile

sys.path.insert(0, str(Path(__file__).parents[2]))
from row_rings import RowRing

STARTED_S = 1_800_000_000.0
STEPS = 48
MS = 1_000_000

record_file.SEGMENT_STEPS = 16  # small, so that blocks come into it
record_file.KEEP_SEGMENTS = 1


def write_steps(ring: RowRing) -> None:
    """Steps of 10 ms: 3 of input, 7 of body; the last one aborted."""
    for number in range(STEPS):
        known = {
            "start_ns": number * 10 * MS,
            "wall_ns": 10 * MS,
            "input_ns": 3 * MS,
            "body_ns": 7 * MS,
            "evaluation_ns": 0,
            "checkpoint_ns": 0,
            "forward_ns": 2 * MS,
            "backward_ns": 3 * MS,
            "optimizer_ns": 1 * MS + number,
            "gc_ns": 0,
            **{name: 100 * place + number for place, name in enumerate(record_layout.GPU_FIELDS)},
            "samples": 32,
            "micro_batches": 1,
            "flags": int(record_layout.StepFlag.ABORTED) if number == STEPS - 1 else 0,
            "optimizer_steps": 1,
        }
        names = [name for name, _ in record_layout.STEP if name != "sequence"]
        ring.write_step(*(known.get(name, record_layout.NOT_MEASURED) for name in names))


def write_messages(ring: RowRing) -> None:
    """Parameters, twenty metric values, an artifact."""
    said: list[dict[str, object]] = [{"kind": "params", "values": {"lr": 0.1, "note": "x" * 300}}]
    for step in range(1, 21):
        values = {"loss": 1 / step}
        said.append({"kind": "metrics", "step": step, "unix_ns": step, "values": values})
    said.append({"kind": "artifact", "path": "/checkpoints/model.pt", "name": "model"})
    for message in said:
        ring.write_message(json.dumps(message, separators=(",", ":")).encode())


def main() -> None:
    """Write the run folder."""
    folder = Path(__file__).parent / f"v{record_layout.VERSION}"
    folder.mkdir()
    folders.write_manifest(
        folder,
        Manifest(
            run_name="kept",
            started_unix_s=STARTED_S,
            command=("python", "train.py"),
            traceml_version="0.1.0",
            hostname="host-a",
            expected_world_size=1,
        ),
    )
    with tempfile.TemporaryDirectory() as place:
        ring = RowRing(Path(place) / "rank-0-1000.ring")
        ring.identify(
            Rank(
                rank=0,
                local_rank=0,
                world_size=1,
                local_world_size=1,
                node_rank=0,
                pid=1000,
                hostname="host-a",
                device="cpu",
                device_name="",
                device_total_bytes=None,
                monotonic_ns=0,
                unix_ns=int(STARTED_S * 1e9),
            )
        )
        write_steps(ring)
        write_messages(ring)
        line = ring.open_region()
        assert line is not None
        ring.write_region(line, b"augment", 10, 20 * MS, 5 * MS, record_layout.NOT_MEASURED)
        ring.mark_ended()
        with RingReader(ring.path) as reader:
            RankFiles.of(folder, ring.path.stem).drain(reader, everything=True)
        ring.close()
    samples = SampleFile(folder)
    for second in range(3):
        process = ProcessSample(0, 1000, cpu_cores=1.0, rss_bytes=1 << 30, workers=2)
        samples.append(Sample(STARTED_S + second, HostSample(cpu_share=0.5), (process,)))
    folders.write_ending(folder, Ending(STARTED_S + 3, exit_status=0))


if __name__ == "__main__":
    main()
