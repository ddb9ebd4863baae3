"""Reads what `torch.save` writes: a zip archive with a pickle, and one member for each storage.

The members are not compressed, so that tensors are read from where they are in the file, piece by
piece, by the descriptions in the pickle (`pickled_tensors.py`).
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

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
    try:
        with (
            os.fdopen(os.dup(file.descriptor), "rb") as opened,
            zipfile.ZipFile(opened) as archive,
        ):
            members = {member.filename: member for member in archive.infolist()}
            pickled, prefix = _pickle(archive, members)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as error:
        raise UnreadableArtifact(f"it is no file of torch.save ({error}), or damaged") from None
    for name, leaf in leaves_in(pickled).items():
        if isinstance(leaf, PickledTensor):
            file.tensors[name] = _stored(file, leaf, members.get(f"{prefix}data/{leaf.key}"))
        else:
            file.values[name] = leaf


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
    file: TensorFile, tensor: PickledTensor, member: zipfile.ZipInfo | None
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
    mark, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(member.header_offset, 30))
    if mark != b"PK\x03\x04":
        raise UnreadableArtifact("its archive is damaged")
    begin = member.header_offset + 30 + name_bytes + extra_bytes
    end = begin + member.file_size
    found = StoredTensor(
        tensor.dtype, tensor.shape, begin + tensor.offset * size, end, tensor.stride
    )
    span = sum((each - 1) * step for each, step in zip(tensor.shape, tensor.stride, strict=True))
    if not is_empty and found.offset + (span + 1) * size > end:
        raise UnreadableArtifact("a tensor reaches beyond its storage: the file is damaged")
    return found
