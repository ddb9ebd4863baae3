"""Learns from earlier runs of a command how much two runs of it vary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traceml.compare.allowance import learn
from traceml.compare.terms import EarlierSpread
from traceml.model.errors import TraceMLError
from traceml.model.lineage import Code, Command, Hardware, Lineage
from traceml.store.folder import MANIFEST, SUMMARY, read_manifest
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary, has_failed

MAX_SUMMARIES = 20
"""Summaries per command; the newest describe the machine best."""
MAX_FOLDERS = 500
"""A comparison of two files does not search a whole archive."""

_Command = tuple[str, ...]
_Setting = tuple[object, ...]
"""What else two equal runs must have in common: code, machine, number of ranks."""


def spread_of_earlier_runs(
    compared: Sequence[Path], summaries: Sequence[Summary]
) -> EarlierSpread | None:
    """Returns the spread of earlier runs like these, from the folders of these runs; `None` with
    too few."""
    groups: dict[tuple[_Command, _Setting], list[float]] = {}
    for path, summary in zip(compared, summaries, strict=True):
        command, setting = _command(path.parent), _setting(summary)
        if command and setting and (command, setting) not in groups:
            earlier = _earlier(path.parent.parent, command, setting, compared)
            groups[command, setting] = list(earlier)
    return learn(list(groups.values()))


def _earlier(
    logs_dir: Path, command: _Command, setting: _Setting, compared: Sequence[Path]
) -> Iterator[float]:
    """Returns the step times of other runs of this command that ended well, the newest first."""
    read = 0
    for folder in _newest(logs_dir):
        path = folder / SUMMARY
        if path in compared or _command(folder) != command:
            continue
        try:
            summary = read_compared(path)
        except TraceMLError:
            continue  # unfinished or damaged: no witness
        read += 1
        step_ms = summary.step_time and summary.step_time.global_.average.get("step_time_ms")
        failed = has_failed(summary, summary.exit_status)
        if step_ms and not failed and _setting(summary) == setting:
            yield step_ms
        if read == MAX_SUMMARIES:
            return


def _newest(logs_dir: Path) -> list[Path]:
    """Returns run folders, the latest start first."""
    began = []
    for manifest in logs_dir.glob(f"*/{MANIFEST}"):
        try:
            began.append((manifest.stat().st_mtime, manifest.parent))
        except OSError:
            continue  # gone since
    return [folder for _, folder in sorted(began, reverse=True)[:MAX_FOLDERS]]


def _command(folder: Path) -> _Command:
    try:
        return read_manifest(folder).command
    except (TraceMLError, OSError):
        return ()


def _setting(summary: Summary) -> _Setting:
    """Returns the setting; empty where the code has unknown changes, so that no other run equals
    it."""
    lineage = summary.lineage or Lineage()
    code, machine = lineage.code or Code(), lineage.hardware or Hardware()
    script = (lineage.command or Command()).script_sha256
    if code.dirty and code.changes is None:
        return ()
    changes = code.changes.sha256 if code.changes else None
    gpus = tuple(gpu.name for gpu in machine.gpus)
    return (code.commit, changes, script, machine.hostname, gpus, summary.meta.world_size)
