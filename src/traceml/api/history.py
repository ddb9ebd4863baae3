"""Learns from earlier runs of a command how far two runs of it differ by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traceml.compare.allowance import learn
from traceml.compare.terms import History
from traceml.model.errors import TraceMLError
from traceml.store.folder import MANIFEST, SUMMARY, read_manifest
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary

MOST_READ = 20
"""Summaries of a command; the newest say most about the machine as it is."""
MOST_LOOKED_AT = 500
"""Folders: a comparison of two files does not search a whole archive."""


def history_of(compared: Sequence[Path], summaries: Sequence[Summary]) -> History | None:
    """The spread of earlier runs of the same commands, in the folders the runs lie in."""
    groups: dict[tuple[tuple[str, ...], str | None], list[float]] = {}
    for path, summary in zip(compared, summaries, strict=True):
        command = _command(path.parent)
        key = (command, _commit(summary))
        if command and key not in groups:
            groups[key] = list(_earlier(path.parent.parent, key, compared))
    return learn(list(groups.values()))


def _earlier(
    logs_dir: Path, key: tuple[tuple[str, ...], str | None], compared: Sequence[Path]
) -> Iterator[float]:
    """The step times of other runs with this command and commit, the newest first."""
    read = 0
    for folder in _newest(logs_dir):
        path = folder / SUMMARY
        if path in compared or _command(folder) != key[0]:
            continue
        try:
            summary = read_compared(path)
        except TraceMLError:
            continue  # unfinished or damaged: no witness
        read += 1
        step_ms = summary.step_time and summary.step_time.global_.average.get("step_time_ms")
        if step_ms and _commit(summary) == key[1]:
            yield step_ms
        if read == MOST_READ:
            return


def _newest(logs_dir: Path) -> list[Path]:
    """Run folders, the one that began last first."""
    began = []
    for manifest in logs_dir.glob(f"*/{MANIFEST}"):
        try:
            began.append((manifest.stat().st_mtime, manifest.parent))
        except OSError:
            continue  # gone since
    return [folder for _, folder in sorted(began, reverse=True)[:MOST_LOOKED_AT]]


def _command(folder: Path) -> tuple[str, ...]:
    try:
        return read_manifest(folder).command
    except (TraceMLError, OSError):
        return ()


def _commit(summary: Summary) -> str | None:
    code = summary.lineage.code if summary.lineage else None
    return code.commit if code else None
