"""Reads a file of a checkpoint of `torch.distributed.checkpoint` (`__0_0.distcp`).

Such a checkpoint is a folder. Its file `.metadata`, a pickle, says which part of which file holds
which tensor, or which piece of one; each part is an archive of `torch.save`. The pickles are read
as those of other checkpoints (`pickled_tensors.py`): nothing of them runs, and whatever is not part
of a checkpoint is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceml.model.errors import UnreadableArtifact
from traceml.store.pickled_tensors import PickledRecord, record_in
from traceml.store.regular_files import read_regular
from traceml.store.tensor_data import StoredTensor, TensorFile
from traceml.store.torch_file import MAX_PICKLE_BYTES, read_archive

METADATA = ".metadata"
SUFFIX = ".distcp"
_MODULE = "torch.distributed.checkpoint"
_CLASSES = (
    *(f"{_MODULE}.metadata.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *(f"{_MODULE}.metadata.{name}" for name in ("TensorProperties", "TensorStorageMetadata")),
    *(f"{_MODULE}.metadata.{name}" for name in ("BytesStorageMetadata", "ChunkStorageMetadata")),
    f"{_MODULE}.metadata._MEM_FORMAT_ENCODING",
    f"{_MODULE}.filesystem._StorageInfo",
)


@dataclass(frozen=True, slots=True)
class _StoredPart:
    """Where a tensor, a piece of one, or another value is in the file."""

    name: str
    """With the place of its first element, if it is a piece that does not begin the tensor."""
    begin: int
    size: int


def open_distributed_checkpoint(path: Path) -> TensorFile:
    """Opens a file and reads which tensors it holds; raises UnreadableArtifact with the reason."""
    parts = list(_parts_of(path))
    return TensorFile.open(path, lambda file: _read_parts(file, parts))


def _parts_of(path: Path) -> Iterator[_StoredPart]:
    """Yields what the metadata says about one file of the checkpoint."""
    try:
        content = read_regular(path.parent / METADATA, max_bytes=MAX_PICKLE_BYTES)
    except OSError as error:
        raise UnreadableArtifact(
            f"the file {METADATA} beside it, which says what it holds, cannot be read "
            f"({error.strerror}); log the whole folder of the checkpoint"
        ) from None
    stored = record_in(content, _CLASSES).fields.get("storage_data")
    if not isinstance(stored, dict):
        raise UnreadableArtifact(f"the file {METADATA} beside it says nothing of where tensors are")
    for index, info in stored.items():
        if not isinstance(index, PickledRecord) or not isinstance(info, PickledRecord):
            raise UnreadableArtifact(f"the file {METADATA} beside it is damaged")
        if info.fields.get("relative_path") == path.name:
            yield _part(index.fields, info.fields)


def _part(index: dict[str, Any], info: dict[str, Any]) -> _StoredPart:
    if info.get("transform_descriptors"):
        raise UnreadableArtifact("its parts are compressed or encrypted, which is not read")
    name, offset = index.get("fqn"), index.get("offset")
    begin, size = info.get("offset"), info.get("length")
    if not isinstance(name, str) or type(begin) is not int or type(size) is not int:
        raise UnreadableArtifact(f"the file {METADATA} beside it is damaged")
    if isinstance(offset, tuple) and any(offset):
        name = f"{name} [{', '.join(map(str, offset))}]"
    return _StoredPart(name, begin, size)


def _read_parts(file: TensorFile, parts: list[_StoredPart]) -> None:
    whole = file.size_bytes()
    for part in parts:
        if not 0 <= part.begin <= part.begin + part.size <= whole:
            raise UnreadableArtifact("a part reaches beyond its end: it was cut, or is of another")
        found = read_archive(file, part.begin, part.size)
        for inner, value in found.items():
            name = part.name if len(found) == 1 else f"{part.name}.{inner}"
            if isinstance(value, StoredTensor):
                file.tensors[name] = value
            else:
                file.values[name] = value
