"""Records size and hash of the files that a script logs as artifacts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traceml.store.folder import write_atomically
from traceml.store.load import ARTIFACTS, read_artifact_hashes
from traceml.store.records import Artifact

MAX_HASHED_BYTES = 256 << 20
"""About half a second of hashing; of a larger file only the size is recorded."""


class Artifacts:
    """Size and hash of every artifact, as it was when the script logged it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Any] = read_artifact_hashes(folder)
        self._changed = False

    def note(self, messages: Iterable[bytes]) -> None:
        """Reads the artifacts named in newly drained messages."""
        for message in messages:
            if b'"artifact"' in message[:40]:
                self._look_at(str(json.loads(message).get("path")))
        self.save()

    def complete(self, named: Iterable[Artifact]) -> None:
        """Reads the artifacts that an agent which died had not read."""
        for artifact in named:
            if artifact.path not in self._found:
                self._look_at(artifact.path)
        self.save()

    def _look_at(self, path: str) -> None:
        self._found[path] = _describe(Path(path))
        self._changed = True

    def save(self) -> None:
        """Writes what was found."""
        if self._changed:
            write_atomically(self._folder / ARTIFACTS, json.dumps(self._found).encode())
            self._changed = False


def _describe(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if not path.is_file() or size > MAX_HASHED_BYTES:
            return {"size_bytes": size if path.is_file() else None, "sha256": None}
        return {"size_bytes": size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    except (OSError, ValueError):  # ValueError: no path can hold a NUL character
        return {"size_bytes": None, "sha256": None}
