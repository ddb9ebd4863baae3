"""Finds a file that a run logged, by its name, for somebody who asks for its content."""

from __future__ import annotations

from pathlib import Path

from traceml.api.artifact_contents import located
from traceml.api.run_files import RunFiles
from traceml.model.errors import RunNotFound, UnreadableArtifact


def find_logged_file(folder: Path, name: str) -> Path:
    """Returns the kept copy of a logged file, or of a file in a logged folder (`FOLDER/PATH`).

    Raises RunNotFound where the run logged no such file, or nothing was kept of it.
    """
    summary = RunFiles(folder).summary
    artifacts = {} if summary is None else summary.artifacts
    found = artifacts.get(name)
    if found is not None and not found.files:
        stored, size = found.stored, found.size_bytes
    else:
        for above, outer in artifacts.items():
            inner = outer.files.get(name.removeprefix(f"{above}/"))
            if inner is not None and name.startswith(f"{above}/") and outer.stored is not None:
                found, stored, size = outer, f"{outer.stored}/{name[len(above) + 1 :]}", None
                break
        else:
            raise RunNotFound(
                f"the run {folder.name!r} has logged no file {name[:120]!r}; its page lists them"
            )
    try:
        return located(folder.name, folder, stored, size, found.note)
    except UnreadableArtifact as error:
        raise RunNotFound(f"{name[:120]!r} cannot be sent: {error}") from None
