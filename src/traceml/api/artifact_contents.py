"""The contents of logged files: found by name, and compared by kind between two runs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from traceml.api.run_files import RunFiles
from traceml.compare.array_changes import compare_arrays
from traceml.compare.artifact_changes import LoggedFile
from traceml.compare.artifact_details import CheckpointChange, Details
from traceml.compare.checkpoints import compare_checkpoints
from traceml.compare.curve_changes import Curve, compare_curves, curve_of_json, curve_of_table
from traceml.compare.image_changes import compare_images, side_by_side
from traceml.compare.sample_changes import compare_samples
from traceml.compare.table_batches import compare_batches
from traceml.compare.text_changes import compare_logs, compare_texts
from traceml.compare.value_changes import compare_json, compare_tables
from traceml.model.artifact import ArtifactKind, kind_of_file
from traceml.model.environment import STEP_TRACE
from traceml.model.errors import RunNotFound, UnreadableArtifact
from traceml.model.quantities import memory
from traceml.store.arrow_file import is_arrow, open_arrow
from traceml.store.artifact_store import safe_relative
from traceml.store.distributed_checkpoint import SUFFIX, open_distributed_checkpoint
from traceml.store.document_files import read_json, read_json_lines, read_table, read_text
from traceml.store.image_and_array_files import Pixels, read_array, read_image, write_image
from traceml.store.npz_file import open_npz
from traceml.store.regular_files import stat_regular
from traceml.store.safetensors_file import open_safetensors
from traceml.store.tensor_data import TensorFile
from traceml.store.torch_file import open_torch_file
from traceml.summaries.record import Summary

_T = TypeVar("_T")

KeepPicture: TypeAlias = Callable[[str, Pixels], str | None]
"""Keeps the picture of an image's difference; returns where it is, `None` where it is not kept."""
TRACE_PREFIX = STEP_TRACE.partition("{")[0]
"""How the name of a step's trace begins."""
MAX_READ_BYTES = 8 << 30
"""Of both files together, about ten seconds of reading; more only where it is asked for."""
MAX_CELLS = 1 << 20
"""Of a Parquet or Arrow table that is held in memory, so that rows can be paired by a key."""


@dataclass(frozen=True, slots=True)
class ArtifactContents:
    """The folders of the two runs whose files are compared."""

    lhs_folder: Path
    rhs_folder: Path
    keep_picture: KeepPicture
    reads_all: bool = False
    """Whether files of any size are read."""

    def compare(
        self, name: str, lhs: LoggedFile, rhs: LoggedFile
    ) -> tuple[Details | None, str | None]:
        """Returns how two files differ; or `None` and why that is not known."""
        kind, other = _kind(lhs), _kind(rhs)
        if kind != other:
            return None, f"A's is of the kind {kind}, B's {other}"
        is_image = kind == ArtifactKind.IMAGE.value
        compare = _COMPARISONS.get(kind)
        if compare is None and not is_image:
            return None, None
        try:
            paths = (
                located("A", self.lhs_folder, lhs.stored, lhs.size_bytes, lhs.note),
                located("B", self.rhs_folder, rhs.stored, rhs.size_bytes, rhs.note),
            )
            size = (lhs.size_bytes or 0) + (rhs.size_bytes or 0)
            if size > MAX_READ_BYTES and not self.reads_all:
                return None, f"{memory(size)} to read; --artifacts does"
            if compare is None:
                return self._compare_images(name, *paths), None
            return compare(*paths), None
        except UnreadableArtifact as error:
            return None, str(error)

    def _compare_images(self, name: str, lhs: Path, rhs: Path) -> Details:
        """Compares two images, and has a picture of them and of their difference kept."""
        a, b = _read(lhs, rhs, read_image)
        found = compare_images(a, b)
        if found.changed_share == 0:
            return found
        place = self.keep_picture(name, side_by_side(a, b))
        return found if place is None else found.with_picture(place)


def pictures_in(folder: Path) -> KeepPicture:
    """Returns what writes pictures into a folder, which is made when there is one."""

    def keep(name: str, pixels: Pixels) -> str | None:
        path = folder / f"{_file_name(name)}.png"
        try:
            write_image(path, pixels)
        except OSError:  # no room, or no right to write here: the numbers are said all the same
            return None
        return str(path)

    return keep


def _kind(file: LoggedFile) -> str:
    """Returns a file's kind; of one that was logged before its kind was known, by its name."""
    if file.kind == ArtifactKind.OTHER.value and file.stored:
        return kind_of_file(file.stored, b"").value
    return file.kind


def _file_name(name: str) -> str:
    """Returns a name that any file system takes, and that no other artifact has."""
    plain = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._")[:60]
    return f"{plain or 'image'}-{zlib.crc32(name.encode(errors='replace')):08x}"


def located(
    side: str, folder: Path, stored: str | None, size_bytes: int | None, note: str | None
) -> Path:
    """Returns the kept copy of a file; raises UnreadableArtifact where it is not there."""
    if stored is None:
        raise UnreadableArtifact(f"{side}'s content was not kept ({note or 'no copy'})")
    inside = safe_relative(stored)
    path = folder / (inside or "")
    if inside is None or not path.resolve().is_relative_to(folder.resolve()):
        raise UnreadableArtifact(f"{side}'s copy is said to be outside of its run's folder")
    found = stat_regular(path)
    if found is None:
        raise UnreadableArtifact(f"{side}'s copy is gone: {path} was removed")
    if size_bytes is not None and found.st_size != size_bytes:
        raise UnreadableArtifact(
            f"{side}'s copy was changed: {path} has {found.st_size:,} bytes, "
            f"expected {size_bytes:,}"
        )
    return path


def _compare_checkpoints(lhs: Path, rhs: Path) -> CheckpointChange:
    with ExitStack() as opened:
        return compare_checkpoints(*_entered(opened, lhs, rhs, _open_checkpoint))


def _open_checkpoint(path: Path) -> TensorFile:
    openers = {".safetensors": open_safetensors, SUFFIX: open_distributed_checkpoint}
    return openers.get(path.suffix, open_torch_file)(path)


def _compare_texts(lhs: Path, rhs: Path) -> Details:
    return compare_texts(*_read(lhs, rhs, read_text))


def _compare_logs(lhs: Path, rhs: Path) -> Details:
    return compare_logs(*_read(lhs, rhs, read_text))


def _compare_json(lhs: Path, rhs: Path) -> Details:
    a, b = _read(lhs, rhs, read_json)
    found = _compare_curves(curve_of_json(a), curve_of_json(b))
    if found is None and _are_records(a) and _are_records(b):
        found = compare_samples(a, b)
    return found or compare_json(a, b)


def _are_records(document: object) -> bool:
    """Returns whether a document is a list of objects, as generated samples are."""
    if not isinstance(document, list) or not document:
        return False
    return all(isinstance(each, dict) for each in document)


def _compare_tables(lhs: Path, rhs: Path) -> Details:
    if is_arrow(lhs) and is_arrow(rhs):
        return _compare_arrow(lhs, rhs)
    a, b = _read(lhs, rhs, read_table)
    return _compare_curves(curve_of_table(a), curve_of_table(b)) or compare_tables(a, b)


def _compare_arrow(lhs: Path, rhs: Path) -> Details:
    """Compares small tables as all others, and large ones as they are read."""
    with ExitStack() as opened:
        a, b = _entered(opened, lhs, rhs, open_arrow)
        if max(a.cells, b.cells) > MAX_CELLS:
            return compare_batches((a.names, b.names), a.batches, b.batches)
        left, right = a.as_text(), b.as_text()
    return _compare_curves(curve_of_table(left), curve_of_table(right)) or compare_tables(
        left, right
    )


def _entered(
    opened: ExitStack, lhs: Path, rhs: Path, opener: Callable[[Path], AbstractContextManager[_T]]
) -> tuple[_T, _T]:
    """Opens both files; an error says whose it is."""
    return _read(lhs, rhs, lambda path: opened.enter_context(opener(path)))


def _compare_curves(a: Curve | None, b: Curve | None) -> Details | None:
    return None if a is None or b is None else compare_curves(a, b)


def _compare_samples(lhs: Path, rhs: Path) -> Details:
    a, b = _read(lhs, rhs, read_json_lines)
    return compare_samples(a, b) or compare_json(a, b)


def _compare_arrays(lhs: Path, rhs: Path) -> Details:
    if lhs.suffix.lower() != ".npz" and rhs.suffix.lower() != ".npz":
        return compare_arrays(*_read(lhs, rhs, read_array))
    with ExitStack() as opened:
        return compare_checkpoints(*_entered(opened, lhs, rhs, open_npz))


def _read(lhs: Path, rhs: Path, read: Callable[[Path], _T]) -> tuple[_T, _T]:
    """Reads both files; an error says whose it is."""
    found = []
    for side, path in (("A", lhs), ("B", rhs)):
        try:
            found.append(read(path))
        except UnreadableArtifact as error:
            raise UnreadableArtifact(f"{side}'s file: {error}") from None
    return found[0], found[1]


_COMPARISONS: dict[str, Callable[[Path, Path], Details]] = {
    ArtifactKind.CHECKPOINT.value: _compare_checkpoints,
    ArtifactKind.TEXT.value: _compare_texts,
    ArtifactKind.LOG.value: _compare_logs,
    ArtifactKind.JSON.value: _compare_json,
    ArtifactKind.TABLE.value: _compare_tables,
    ArtifactKind.SAMPLES.value: _compare_samples,
    ArtifactKind.ARRAY.value: _compare_arrays,
}


def _is_step_trace(summary: Summary, name: str) -> bool:
    """Returns whether a file right in the run folder holds a step that `--kineto` recorded."""
    traces = () if summary.kineto is None else summary.kineto.traces
    return any(each.file == name == Path(name).name for each in traces)


def _replaced_trace(name: str) -> str:
    return (
        f"the trace {name[:120]!r} is no longer there: while a run goes on, the trace of a worse "
        "step takes the place of an earlier one; reload the run's page, which lists those kept now"
    )


def find_logged_file(folder: Path, name: str) -> Path:
    """Returns the kept copy of a logged file, of a file in a logged folder (`FOLDER/PATH`), or the
    trace of a step.

    Raises RunNotFound where the run logged no such file, or nothing was kept of it.
    """
    summary = RunFiles(folder).summary
    artifacts = {} if summary is None else summary.artifacts
    found = artifacts.get(name)
    if found is None and summary is not None and _is_step_trace(summary, name):
        if (folder / name).exists():
            return folder / name
        raise RunNotFound(_replaced_trace(name))
    if found is None and name.startswith(TRACE_PREFIX):
        raise RunNotFound(_replaced_trace(name))
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
