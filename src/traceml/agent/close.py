"""Closes a run: everything recorded is brought to disk, read back, and summarised.

The agent does this at the end, `traceml recover` later: the same road, so the same summary.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from traceml import __version__
from traceml.model.environment import PYTHON_MARK, TORCH_MARK, TROUBLE_MARK
from traceml.model.run import Ending
from traceml.store import folder as folders
from traceml.store.load import drain_rings, load_run
from traceml.store.records import RunRecords
from traceml.summary.build import build, with_text
from traceml.summary.record import Summary
from traceml.text.summary import summary_text


def write_ending(folder: Path, exit_status: int | None) -> None:
    """Write down that and how the run ended."""
    folders.write_ending(folder, Ending(time.time(), exit_status))


def recover(folder: Path) -> Summary:
    """Bring to disk what rings still hold, then summarise; nobody else may be draining them."""
    for note in drain_rings(folder, everything=True):
        print(note, file=sys.stderr)
    return summarise(folder)


def summarise(folder: Path) -> Summary:
    """Build the summary from what is on disk, and write it."""
    records = load_run(folder)
    if not any(len(rank.steps) or len(rank.blocks) for rank in records.ranks):
        records = _with_reason(records, folder)
    summary = build(records, generated_unix_s=_generated(records), version=__version__)
    summary = with_text(summary, summary_text(summary))
    encoded = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    folders.write_atomically(folder / folders.TEXT, (summary.text or "").encode())
    folders.write_atomically(folder / folders.SUMMARY, encoded + b"\n")
    return summary


def _generated(records: RunRecords) -> float:
    """The run's own end where it is known, so that a summary built again is the same."""
    return records.ending.unix_s if records.ending else time.time()


def _with_reason(records: RunRecords, folder: Path) -> RunRecords:
    ending = records.ending or Ending(time.time())
    return replace(records, ending=replace(ending, reason_without_steps=_why_no_steps(folder)))


def _why_no_steps(folder: Path) -> str:
    """How far the interpreters below `traceml run` came."""
    trouble = folders.read_mark(folder, TROUBLE_MARK)
    if trouble:
        return trouble
    if folders.read_manifest(folder).mode == "init":
        return "no training step was seen before the process ended"
    if folders.read_mark(folder, PYTHON_MARK) is None:
        return (
            "no Python interpreter loaded the tracer: python -I, -E or -S, a replaced PYTHONPATH, "
            "or a sitecustomize ahead of ours keeps it out"
        )
    if folders.read_mark(folder, TORCH_MARK) is None:
        return "the script never imported torch"
    return "torch was imported, but no optimizer step and no backward pass completed a step"
