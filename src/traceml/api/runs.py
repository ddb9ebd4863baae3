"""Finds a run by what a user says, shows its summary again, or rebuilds it."""

from __future__ import annotations

from pathlib import Path

from traceml.model.errors import RunNotFound
from traceml.store import folder as folders
from traceml.summary.read import locate, read_summary
from traceml.text.summary import summary_text


def view(run: str, logs_dir: Path) -> str:
    """A finished run's summary as text."""
    return summary_text(read_summary(locate(run, logs_dir)))


def recover(run: str, logs_dir: Path) -> str:
    """Rebuild the summary of a run whose agent died; returns it as text."""
    from traceml.agent.close import recover as rebuild

    folder = find_folder(run, logs_dir)
    manifest = folders.read_manifest(folder)
    summary = rebuild(folder)
    folders.remove_rings(manifest)
    return summary.text or ""


def find_folder(run: str, logs_dir: Path) -> Path:
    """The run folder that a path or a name stands for."""
    for folder in (Path(run), logs_dir / run):
        if (folder / folders.MANIFEST).is_file():
            return folder.absolute()
    raise RunNotFound(
        f"there is no run {run!r}: neither {Path(run)} nor {logs_dir / run} holds a "
        f"{folders.MANIFEST}; pass a run folder, or a run's name with --logs-dir"
    )
