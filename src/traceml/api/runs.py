"""Finds a run by what a user says, shows its summary again, or rebuilds it."""

from __future__ import annotations

import os
from pathlib import Path

from traceml.model.errors import RunNotFound, UsageError
from traceml.store import folder as folders
from traceml.summaries.read import locate, read_summary
from traceml.text.summary import summary_text


def view(run: str, logs_dir: Path) -> str:
    """A finished run's summary as text."""
    return summary_text(read_summary(locate(run, logs_dir), follow_links=True))


def recover(run: str, logs_dir: Path) -> str:
    """Rebuild the summary of a run whose agent died; returns it as text."""
    from traceml.agent.close import recover as rebuild

    folder = find_folder(run, logs_dir)
    if folders.is_going_on(folder):
        raise UsageError(
            f"the run {folder.name!r} is still going on ({folder}): its agent writes the summary "
            "when it ends; recover is for runs that nobody follows any more"
        )
    held = folders.hold(folder)
    try:
        return rebuild(folder).text or ""
    except OSError as error:
        raise UsageError(
            f"the summary of {folder} cannot be written ({error}); "
            "make room, or make the folder writable, and recover again: the records are kept"
        ) from error
    finally:
        if held is not None:
            os.close(held)


def find_folder(run: str, logs_dir: Path) -> Path:
    """The run folder that a path or a name stands for."""
    for folder in (Path(run), logs_dir / run):
        if (folder / folders.MANIFEST).is_file():
            return folder.absolute()
    raise RunNotFound(
        f"there is no run {run!r}: neither {Path(run)} nor {logs_dir / run} holds a "
        f"{folders.MANIFEST}; pass a run folder, or a run's name with --logs-dir"
    )
