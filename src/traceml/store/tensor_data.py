"""Tensors in files, read piece by piece as numbers: a file of any size needs a few megabytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model.errors import UnreadableArtifact
from traceml.store.regular_files import open_regular

PIECE_ELEMENTS = 1 << 15
"""Read at once: 128 KiB of single precision, so that all that is computed of it stays in the
processor's cache; eight times as many take half as long again."""
MAX_STRIDED_BYTES = 256 << 20
"""A tensor whose elements are not in order is read whole, up to this size."""

Numbers = npt.NDArray[np.float64]

_NUMPY = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "complex64": "<c8",
    "complex128": "<c16",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "u1",
    "bool": "u1",
}
"""How numpy reads the bytes of each of torch's types."""


def item_bytes(dtype: str) -> int | None:
    """Returns the size of an element; `None` for a type whose numbers are not known here."""
    known = _NUMPY.get(dtype)
    return None if known is None else np.dtype(known).itemsize


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its type by torch's name, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of its first element in the file."""
    end: int
    """Of the bytes that belong to it, or to what it is a part of."""
    stride: tuple[int, ...] | None = None
    """In elements; `None` where they are in order."""

    @property
    def elements(self) -> int:
        """Returns the number of elements."""
        return prod(self.shape)

    @property
    def is_in_order(self) -> bool:
        """Returns whether the elements follow each other in the file."""
        if self.stride is None or self.elements <= 1:
            return True
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True


@dataclass
class TensorFile:
    """An open file with tensors by name; to be closed, best by `with`."""

    path: Path
    descriptor: int
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    values: dict[str, str | int | float | None] = field(default_factory=dict)
    """What else is saved beside the tensors, by name: an epoch, a learning rate."""

    @staticmethod
    def open(path: Path, read_tensors: Callable[[TensorFile], None]) -> TensorFile:
        """Opens a regular file and has its tensors found; raises UnreadableArtifact."""
        try:
            file = TensorFile(path, open_regular(path))
        except OSError as error:
            raise UnreadableArtifact(f"it cannot be opened: {error.strerror}") from None
        try:
            read_tensors(file)
        except BaseException:
            os.close(file.descriptor)
            raise
        return file

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def size_bytes(self) -> int:
        """Returns the file's size."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Returns bytes of the file; raises UnreadableArtifact where it has not so many."""
        try:
            found = os.pread(self.descriptor, size, offset)
            while len(found) < size:  # a signal, or a network's file system
                more = os.pread(self.descriptor, size - len(found), offset + len(found))
                if not more:
                    break
                found += more
        except (OSError, OverflowError) as error:
            raise UnreadableArtifact(f"it cannot be read ({error})") from None
        if len(found) < size:
            raise UnreadableArtifact(
                f"it ends at {self.size_bytes():,} bytes, expected {offset + size:,}: it was cut"
            )
        return found

    def pieces(self, name: str) -> Iterator[Numbers] | None:
        """Returns a tensor's numbers in order, in pieces; `None` where they cannot be read."""
        tensor = self.tensors[name]
        size = item_bytes(tensor.dtype)
        if size is None:
            return None
        if tensor.is_in_order:
            return self._ordered(tensor, size)
        return self._strided(tensor, size)

    def _ordered(self, tensor: StoredTensor, size: int) -> Iterator[Numbers]:
        for start in range(0, tensor.elements, PIECE_ELEMENTS):
            count = min(PIECE_ELEMENTS, tensor.elements - start)
            yield _numbers(self.read(tensor.offset + start * size, count * size), tensor.dtype)

    def _strided(self, tensor: StoredTensor, size: int) -> Iterator[Numbers] | None:
        stride = tensor.stride or ()
        last = sum((each - 1) * step for each, step in zip(tensor.shape, stride, strict=True))
        length = (last + 1) * size
        if max(length, tensor.elements * size) > MAX_STRIDED_BYTES or min(stride) < 0:
            return None
        if tensor.offset + length > tensor.end:
            raise UnreadableArtifact("a tensor reaches beyond its storage: the file is damaged")
        content = np.frombuffer(self.read(tensor.offset, length), _NUMPY[tensor.dtype])
        steps = tuple(step * size for step in stride)
        view = np.lib.stride_tricks.as_strided(content, tensor.shape, steps)
        flat = np.ascontiguousarray(view).reshape(-1)
        return (
            _numbers(flat[start : start + PIECE_ELEMENTS].tobytes(), tensor.dtype)
            for start in range(0, flat.size, PIECE_ELEMENTS)
        )


def _numbers(content: bytes, dtype: str) -> Numbers:
    """Returns bytes as numbers; a complex one as two."""
    if dtype.startswith("float8"):
        return _float8_values(dtype)[np.frombuffer(content, np.uint8)]
    found: npt.NDArray[Any] = np.frombuffer(content, _NUMPY[dtype])
    if dtype == "bfloat16":
        found = (found.astype("<u4") << 16).view("<f4")
    if dtype.startswith("complex"):
        found = found.view("<f4" if dtype == "complex64" else "<f8")
    numbers: Numbers = found.astype(np.float64)
    return numbers


@cache
def _float8_values(dtype: str) -> Numbers:
    """Returns the value of each of the 256 bytes."""
    mantissa_bits, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    values = []
    for byte in range(256):
        sign = -1.0 if byte & 0x80 else 1.0
        exponent = (byte & 0x7F) >> mantissa_bits
        mantissa = byte & ((1 << mantissa_bits) - 1)
        if exponent:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        else:
            value = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
        if dtype == "float8_e4m3fn" and byte & 0x7F == 0x7F:
            value = np.nan
        if dtype == "float8_e5m2" and exponent == 31:
            value = np.nan if mantissa else np.inf
        values.append(sign * value)
    return np.array(values)
