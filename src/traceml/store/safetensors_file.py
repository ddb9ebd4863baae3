"""Reads safetensors files: the header here, the tensors piece by piece.

The format: eight bytes with the header's length, the header as JSON (`dtype`, `shape` and
`data_offsets` by name), then the tensors. Every length is checked against the file before use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from traceml.model.errors import UnreadableArtifact
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.tensor_data import StoredTensor, TensorFile, item_bytes

MAX_HEADER_BYTES = 100 << 20
"""The limit of the format itself."""
_MAX_INTEGER = (1 << 63) - 1
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_Size = Annotated[int, Meta(ge=0, le=_MAX_INTEGER)]


class _TensorHeader(Struct):
    """One tensor in the header."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


def open_safetensors(path: Path) -> TensorFile:
    """Opens a file and reads its header; raises UnreadableArtifact that says what is wrong."""
    return TensorFile.open(path, _read_tensors)


def _read_tensors(file: TensorFile) -> None:
    header, begin = _header(file)
    for name, found in header.items():
        if name != "__metadata__":
            file.tensors[name] = _tensor(name, found, begin, file.size_bytes())
        elif isinstance(found, dict):
            file.values.update((key, str(value)) for key, value in found.items())


def _header(file: TensorFile) -> tuple[dict[str, Any], int]:
    size = file.size_bytes()
    if size < 8:
        raise UnreadableArtifact(f"it has {size} bytes, too few for a safetensors file")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise UnreadableArtifact(
            f"its header claims {length:,} bytes and the file has {size:,}: it is damaged, or no "
            "safetensors file"
        )
    try:
        header = load_json(file.read(8, length))
    except UNDECODABLE as error:
        raise UnreadableArtifact(f"its header is no JSON ({error}): it is damaged") from None
    if not isinstance(header, dict):
        raise UnreadableArtifact("its header is no JSON object: it is damaged")
    return header, 8 + length


def _tensor(name: str, found: object, begin: int, size: int) -> StoredTensor:
    try:
        tensor = convert(found, _TensorHeader)
    except UNDECODABLE as error:
        raise UnreadableArtifact(f"its header is damaged at {name[:60]!r} ({error})") from None
    dtype = _DTYPES.get(tensor.dtype, tensor.dtype[:20])
    first, end = tensor.data_offsets
    stored = StoredTensor(dtype, tensor.shape, begin + first, begin + end)
    each = item_bytes(dtype)
    if end < first or begin + end > size:
        raise UnreadableArtifact(
            f"{name[:60]!r} reaches to byte {begin + end:,} and the file has {size:,}: it was cut"
        )
    if each is not None and stored.elements * each != end - first:
        raise UnreadableArtifact(
            f"{name[:60]!r} has {end - first:,} bytes, expected {stored.elements * each:,} for its "
            "shape: the header is damaged"
        )
    return stored
