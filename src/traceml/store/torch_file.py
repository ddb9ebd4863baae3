"""Reads what `torch.save` writes: a zip archive with a pickle, and one member for each storage.

The members are not compressed, so that tensors are read from where they are in the file, piece by
piece, by the descriptions in the pickle (`pickled_tensors.py`).
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

from traceml.model.errors import UnreadableArtifact
from traceml.store.pickled_tensors import PickledTensor, leaves_in
from traceml.store.tensor_data import StoredTensor, TensorFile, item_bytes

MAX_PICKLE_BYTES = 64 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LEGACY = (b"\x80\x02\x8a\x0al\xfc\x9cF", b"\x80\x02\x8a\nl\xfc\x9c")


def open_torch_file(path: Path) -> TensorFile:
    """Opens a file and reads which tensors it holds; raises UnreadableArtifact with the reason."""
    return TensorFile.open(path, _read_tensors)


def _read_tensors(file: TensorFile) -> None:
    if file.read(0, min(16, file.size_bytes())).startswith(_LEGACY):
        raise UnreadableArtifact(
            "it is in torch's format before 1.6; load it with weights_only=True and save it again"
        )
    for name, found in read_archive(file, 0, file.size_bytes()).items():
        if isinstance(found, StoredTensor):
            file.tensors[name] = found
        else:
            file.values[name] = found


class _PartOfFile(io.RawIOBase):
    """Some bytes of a file, as a file of their own."""

    def __init__(self, file: TensorFile, begin: int, size: int) -> None:
        self._file, self._begin, self._size = file, begin, size
        self._at = 0

    def readable(self) -> bool:
        """Returns that it can be read."""
        return True

    def seekable(self) -> bool:
        """Returns that its place can be chosen."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a place, counted from the beginning, the current place or the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """Returns the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads what follows, as far as there is room; returns how many bytes."""
        count = max(0, min(len(buffer), self._size - self._at))
        buffer[:count] = self._file.read(self._begin + self._at, count)
        self._at += count
        return count


def read_archive(
    file: TensorFile, begin: int, size: int
) -> dict[str, StoredTensor | str | int | float | None]:
    """Returns the tensors and plain values of an archive of `torch.save`, which may be a part of
    the file; raises UnreadableArtifact."""
    try:
        with (
            io.BufferedReader(_PartOfFile(file, begin, size)) as opened,
            zipfile.ZipFile(opened) as archive,
        ):
            members = {member.filename: member for member in archive.infolist()}
            pickled, prefix = _pickle(archive, members)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as error:
        raise UnreadableArtifact(f"it is no file of torch.save ({error}), or damaged") from None
    found: dict[str, StoredTensor | str | int | float | None] = {}
    for name, leaf in leaves_in(pickled).items():
        if isinstance(leaf, PickledTensor):
            member = members.get(f"{prefix}data/{leaf.key}")
            found[name] = _stored(file, leaf, member, begin)
        else:
            found[name] = leaf
    return found


def _pickle(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> tuple[bytes, str]:
    """Returns the pickle, and what the names of all members begin with."""
    names = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(names) != 1:
        raise UnreadableArtifact("it is a zip archive without a data.pkl: no file of torch.save")
    prefix = names[0].removesuffix("data.pkl")
    order = members.get(f"{prefix}byteorder")
    if order is not None and order.file_size < 16 and archive.read(order)[:6] != b"little":
        raise UnreadableArtifact("it was written on a big-endian machine")
    size = members[names[0]].file_size
    if size > MAX_PICKLE_BYTES:
        raise UnreadableArtifact(f"its pickle has {size:,} bytes, too many for a checkpoint")
    return archive.read(names[0]), prefix


def _stored(
    file: TensorFile, tensor: PickledTensor, member: zipfile.ZipInfo | None, archive_at: int
) -> StoredTensor:
    """Returns where a tensor is in the file; checked, since the pickle may claim anything."""
    size = item_bytes(tensor.dtype) or 1
    is_empty = 0 in tensor.shape
    if member is None:
        if is_empty:
            return StoredTensor(tensor.dtype, tensor.shape, 0, 0)
        raise UnreadableArtifact(f"the storage {tensor.key[:40]!r} of a tensor is missing")
    if member.compress_type != zipfile.ZIP_STORED:
        raise UnreadableArtifact("its storages are compressed, which torch.save does not do")
    header = archive_at + member.header_offset
    mark, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(header, 30))
    if mark != b"PK\x03\x04":
        raise UnreadableArtifact("its archive is damaged")
    begin = header + 30 + name_bytes + extra_bytes
    end = begin + member.file_size
    found = StoredTensor(
        tensor.dtype, tensor.shape, begin + tensor.offset * size, end, tensor.stride
    )
    span = sum((each - 1) * step for each, step in zip(tensor.shape, tensor.stride, strict=True))
    if not is_empty and found.offset + (span + 1) * size > end:
        raise UnreadableArtifact("a tensor reaches beyond its storage: the file is damaged")
    return found
