"""Compares the contents of two logged files by their kind, from the folders of two runs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from traceml.compare.artifact_changes import LoggedFile
from traceml.compare.artifact_details import CheckpointChange, Details
from traceml.compare.checkpoints import compare_checkpoints
from traceml.model.artifact import ArtifactKind
from traceml.model.errors import UnreadableArtifact
from traceml.model.quantities import memory
from traceml.store.artifact_store import safe_relative
from traceml.store.regular_files import stat_regular
from traceml.store.safetensors_file import open_safetensors
from traceml.store.tensor_data import TensorFile
from traceml.store.torch_file import open_torch_file

MAX_READ_BYTES = 8 << 30
"""Of both files together, about ten seconds of reading; more only where it is asked for."""


@dataclass(frozen=True, slots=True)
class ArtifactContents:
    """The folders of the two runs whose files are compared."""

    lhs_folder: Path
    rhs_folder: Path
    reads_all: bool = False
    """Whether files of any size are read."""

    def compare(self, lhs: LoggedFile, rhs: LoggedFile) -> tuple[Details | None, str | None]:
        """Returns how two files differ; or `None` and why that is not known."""
        if lhs.kind != rhs.kind:
            return None, f"A's is of the kind {lhs.kind}, B's {rhs.kind}"
        if lhs.kind not in _COMPARED:
            return None, None
        try:
            paths = _located("A", self.lhs_folder, lhs), _located("B", self.rhs_folder, rhs)
            size = (lhs.size_bytes or 0) + (rhs.size_bytes or 0)
            if size > MAX_READ_BYTES and not self.reads_all:
                return None, f"{memory(size)} to read; --artifacts does"
            return _compare_checkpoints(*paths), None
        except UnreadableArtifact as error:
            return None, str(error)


_COMPARED = (ArtifactKind.CHECKPOINT.value,)


def _located(side: str, folder: Path, file: LoggedFile) -> Path:
    """Returns the kept copy of a file; raises UnreadableArtifact where it is not there."""
    if file.stored is None:
        raise UnreadableArtifact(f"{side}'s content was not kept ({file.note or 'no copy'})")
    inside = safe_relative(file.stored)
    path = folder / (inside or "")
    if inside is None or not path.resolve().is_relative_to(folder.resolve()):
        raise UnreadableArtifact(f"{side}'s copy is said to be outside of its run's folder")
    found = stat_regular(path)
    if found is None:
        raise UnreadableArtifact(f"{side}'s copy is gone: {path} was removed")
    if file.size_bytes is not None and found.st_size != file.size_bytes:
        raise UnreadableArtifact(
            f"{side}'s copy was changed: {path} has {found.st_size:,} bytes, "
            f"expected {file.size_bytes:,}"
        )
    return path


def _compare_checkpoints(lhs: Path, rhs: Path) -> CheckpointChange:
    with ExitStack() as opened:
        a = opened.enter_context(_open_checkpoint("A", lhs))
        b = opened.enter_context(_open_checkpoint("B", rhs))
        return compare_checkpoints(a, b)


def _open_checkpoint(side: str, path: Path) -> TensorFile:
    opener = open_safetensors if path.suffix == ".safetensors" else open_torch_file
    try:
        return opener(path)
    except UnreadableArtifact as error:
        raise UnreadableArtifact(f"{side}'s file: {error}") from None
