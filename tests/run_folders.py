"""Makes run folders from runs that were made up: the files an agent leaves, written by its code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from factories import make_run
from traceml.agent.close import summarise
from traceml.model.run import Ending
from traceml.store import folder as folders
from traceml.store.record_file import RankFiles
from traceml.store.records import RankRecords, RunRecords
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile
from traceml.trace import ring as rings


def write_run(
    folder: Path, run: RunRecords | None = None, ending: Ending | None = None, is_over: bool = True
) -> Path:
    """Write a run; one that is over has an ending and a summary."""
    run = run or make_run()
    folder.mkdir(parents=True)
    folders.write_manifest(folder, replace(run.manifest, run_name=folder.name))
    for rank in run.ranks:
        write_rank(folder, rank)
    samples = SampleFile(folder)
    for sample in run.samples:
        samples.append(sample)
    if is_over:
        last = ending or run.ending
        assert last is not None
        folders.write_ending(folder, last)
        summarise(folder)
    return folder


def write_rank(folder: Path, rank: RankRecords, first: int = 0, end: int | None = None) -> None:
    """Write some of a rank's steps, or all of them, after those that are there."""
    ring = rings._create_sized(folder / f"rank-{rank.rank.rank}-{rank.rank.pid}.ring", 4, 4)
    ring.identify(rank.rank)
    if end is None:
        ring.mark_ended()
    ring.close()
    with RingReader(ring.path) as reader:
        RankFiles.of(folder, ring.path.stem)._append(reader.head_bytes(), rank.steps[first:end])
    ring.path.unlink()
