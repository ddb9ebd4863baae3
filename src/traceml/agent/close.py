"""Closes a run: everything recorded is brought to disk, read back, and summarised.

The agent does this at the end, `traceml recover` later: the same road, so the same summary.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from traceml import __version__
from traceml.agent.artifacts import Artifacts
from traceml.agent.earlier_predictions import with_scores
from traceml.agent.node_recovery import add_node, choose_head, mark_finished
from traceml.agent.processes import is_alive, process_of
from traceml.model.environment import NO_TORCH_MARK, PYTHON_MARK, TORCH_MARK, TROUBLE_MARK
from traceml.model.errors import TraceMLError, UnreadableRecords
from traceml.model.printable import printable
from traceml.model.run import DISK_FULL, NO_TORCH, NO_TRACER, Ending
from traceml.store import folder as folders
from traceml.store.failures import remove_ring
from traceml.store.load import drain_rings, load_run, ring_paths
from traceml.store.node_folders import NODES, node_folders
from traceml.store.records import RankRecords, RunRecords
from traceml.store.rings import RingReader
from traceml.store.shared_names import take_wanted_name
from traceml.summaries.build import build, flat_numbers, with_text
from traceml.summaries.record import Summary
from traceml.text.summary import summary_text


def write_ending(folder: Path, exit_status: int | None) -> None:
    """Write down that and how the run ended."""
    folders.write_ending(folder, Ending(time.time(), exit_status))


def recover(folder: Path, others: Sequence[Path] = ()) -> Summary:
    """Bring to disk what rings still hold, then summarise; nobody else may be draining them.

    `others` are folders of further nodes of the same run: they are copied into the folder of its
    head, whichever of all these that is.
    """
    head = choose_head([folder, *others]) if others else folder
    for other in (folder, *others):
        if other != head:
            notes = _bring_to_disk(other)
            add_node(head, other, is_finished=not notes)
    for node in node_folders(head):
        with suppress(TraceMLError):  # it is damaged: the summary says so
            if ring_paths(node, folders.read_manifest(node)):  # it shares the folder with us
                mark_finished(node, is_finished=not _bring_to_disk(node))
    notes = _bring_to_disk(head)
    if node_folders(head):
        take_wanted_name(head)
    return summarise(head, [note for note in notes if note.startswith(DISK_FULL)])


def _bring_to_disk(folder: Path) -> list[str]:
    """Write what a node's rings hold into its folder, and its ending; returns what could not be."""
    # Not of the other nodes' folders, which a recovery may just have copied here.
    own = (path for path in folder.glob("*") if path.name != NODES)
    last_sign = max((path.lstat().st_mtime for path in own), default=0.0)
    manifest = folders.read_manifest(folder)
    is_over = not any(map(_is_written, ring_paths(folder, manifest)))
    folders.release_room(folder)
    notes = drain_rings(folder, everything=True)
    for note in notes:
        print(printable(note), file=sys.stderr)
    Artifacts(folder).complete()
    if is_over and folders.read_ending(folder) is None:
        # Nobody saw the end: it was after the last sign of life.
        records = load_run(folder)
        last_step = max(map(_last_step_unix_s, records.ranks), default=0.0)
        folders.write_ending(folder, Ending(max(last_sign, last_step)))
    if is_over and not notes:
        for path in ring_paths(folder, manifest):
            remove_ring(path)
        folders.remove_rings(manifest)
    return notes


def _is_written(ring: Path) -> bool:
    """Whether the process that made a ring is still there to write it."""
    try:
        with RingReader(ring) as reader:
            rank = reader.head().rank
    except (UnreadableRecords, OSError, ValueError):
        return False
    process = process_of(rank.pid) if rank.hostname == socket.gethostname() else None
    return process is not None and is_alive(process)


def _last_step_unix_s(rank: RankRecords) -> float:
    if not len(rank.steps):
        return 0.0
    return rank.rank.unix_s(int(rank.steps["start_ns"][-1] + rank.steps["wall_ns"][-1]))


def summarise(folder: Path, not_on_disk: Sequence[str] = (), is_final: bool = True) -> Summary:
    """Build the summary from what is on disk, and write it.

    `not_on_disk`: what had no room there, in words for people; the summary says so. One of a run
    that goes on does not ask how the predictions of earlier runs came out.
    """
    with without_garbage_collection():
        return _summarise(folder, not_on_disk, is_final)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Leaves cycles alone meanwhile: of the millions of objects of a large run none is garbage, and
    looking for some takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _summarise(folder: Path, not_on_disk: Sequence[str], is_final: bool) -> Summary:
    records = load_run(folder)
    records = replace(records, notes=(*not_on_disk, *records.notes))
    if not any(len(rank.steps) or len(rank.blocks) for rank in records.ranks):
        records = _with_reason(records, not_on_disk[0] if not_on_disk else _why_no_steps(folder))
    summary = build(records, generated_unix_s=_generated(records), version=__version__)
    if is_final:
        summary = with_scores(summary, folder, records.manifest.started_unix_s)
    summary = with_text(summary, summary_text(summary))
    encoded = msgspec.json.encode(summary)
    try:
        _write(folder / folders.SUMMARY, msgspec.json.format(encoded, indent=2))
    except OSError:  # a full disk: without indentation it takes half the room
        _write(folder / folders.SUMMARY, encoded)
    folders.write_atomically(folder / folders.TEXT, (summary.text or "").encode())
    return summary


def _write(path: Path, content: bytes) -> None:
    folders.write_atomically(path, content + b"\n")


def write_answer(folder: Path, summary: Summary) -> None:
    """Write the summary's numbers for a training process, which needs nothing of ours to read."""
    folders.write_atomically(folder / folders.ANSWER, msgspec.json.encode(flat_numbers(summary)))


def _generated(records: RunRecords) -> float:
    """The run's own end where it is known, so that a summary built again is the same."""
    return records.ending.unix_s if records.ending else time.time()


def _with_reason(records: RunRecords, reason: str) -> RunRecords:
    ending = records.ending or Ending(time.time())
    return replace(records, ending=replace(ending, reason_without_steps=reason))


def _why_no_steps(folder: Path) -> str:
    """How far the interpreters below `traceml run` came."""
    trouble = folders.read_mark(folder, TROUBLE_MARK)
    if trouble:
        return trouble
    if folders.read_manifest(folder).mode == "init":
        return "No training step was seen before the process ended."
    if folders.read_mark(folder, PYTHON_MARK) is None:
        return (
            f"{NO_TRACER}: the command started none, or python -I, -E "
            "or -S, a replaced PYTHONPATH, or a sitecustomize ahead of ours kept it out."
        )
    interpreter = folders.read_mark(folder, NO_TORCH_MARK)
    if folders.read_mark(folder, TORCH_MARK) is None and interpreter is not None:
        return f"The script asked for torch, which {interpreter} does not have."
    if folders.read_mark(folder, TORCH_MARK) is None:
        return f"{NO_TORCH}."
    return "The script imported torch, but no optimizer step and no backward pass completed a step."


def keep_output(terminal: int, folder: Path) -> None:
    """Copies what is printed to a terminal into the run's output until the terminal is closed.

    For a training whose launcher is gone: a terminal that nobody reads would block it.
    """
    with suppress(OSError):  # its other side is closed
        while content := os.read(terminal, 1 << 16):
            with (
                suppress(OSError),
                (folder / folders.OUTPUT).open("ab") as file,
            ):  # a full disk stops nobody
                file.write(content)
