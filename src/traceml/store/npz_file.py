"""Reads the arrays of a `.npz` file piece by piece, also where they are compressed.

An array of objects is a pickle, and is not read.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from traceml.model.errors import UnreadableArtifact
from traceml.store.regular_files import open_regular
from traceml.store.tensor_data import MAX_STRIDED_BYTES, PIECE_ELEMENTS, Numbers

MAX_UNPACKED_BYTES = 64 << 30
"""Of all arrays together: a small file may claim any number."""
MAX_ARRAYS = 100_000
MAX_HEAD_BYTES = 10_000
"""Of the description of one array; what numpy takes, too."""
_HEADS: dict[tuple[int, int], tuple[int, Callable[..., Any]]] = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}
"""By version: how many bytes say how long the description is, and what reads it."""
_NUMBERS = "biufc"
"""The kinds of types whose elements are numbers, by numpy's letters."""
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError),
    *(SyntaxError, KeyError, NotImplementedError, RuntimeError),
)
"""What zipfile and numpy raise on damaged, encrypted or foreign files."""


@dataclass(frozen=True, slots=True)
class NpzArray:
    """An array in the file."""

    dtype: str
    shape: tuple[int, ...]
    member: str
    """Of the archive."""
    numpy_dtype: np.dtype[Any]
    is_fortran: bool
    """Whether the first dimension varies fastest, so that the elements are not in order."""


@dataclass
class NpzFile:
    """An open file with arrays by name; to be closed, best by `with`."""

    file: IO[bytes]
    archive: zipfile.ZipFile
    tensors: dict[str, NpzArray] = field(default_factory=dict)
    values: dict[str, str | int | float | None] = field(default_factory=dict)
    """None: all that is saved is an array."""

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def pieces(self, name: str) -> Iterator[Numbers] | None:
        """Returns an array's numbers in order, in pieces; `None` where they cannot be read."""
        array = self.tensors[name]
        if array.numpy_dtype.kind not in _NUMBERS:
            return None
        if array.is_fortran:
            size = prod(array.shape) * array.numpy_dtype.itemsize
            return self._reordered(array) if size <= MAX_STRIDED_BYTES else None
        return self._stored(array)

    def _stored(self, array: NpzArray) -> Iterator[Numbers]:
        """Yields the elements in the order of the file."""
        left, size = prod(array.shape), array.numpy_dtype.itemsize
        try:
            with self.archive.open(array.member) as member:
                _read_head(member)
                while left:
                    wanted = min(left, PIECE_ELEMENTS)
                    content = _read_whole(member, wanted * size)
                    yield _numbers(np.frombuffer(content, array.numpy_dtype))
                    left -= wanted
        except _DAMAGE as error:
            raise _damaged(error) from None

    def _reordered(self, array: NpzArray) -> Iterator[Numbers]:
        found = np.concatenate(list(self._stored(array)) or [np.empty(0)])
        if array.numpy_dtype.kind == "c":  # two numbers each
            pairs = found.reshape(-1, 2)
            flat = pairs.reshape((*array.shape[::-1], 2)).transpose(
                (*range(len(array.shape) - 1, -1, -1), len(array.shape))
            )
        else:
            flat = found.reshape(array.shape[::-1]).transpose()
        ordered: Numbers = np.ascontiguousarray(flat).reshape(-1)
        for start in range(0, ordered.size, PIECE_ELEMENTS):
            yield ordered[start : start + PIECE_ELEMENTS]


def open_npz(path: Path) -> NpzFile:
    """Opens a file and reads which arrays it holds; raises UnreadableArtifact with the reason."""
    try:
        file = os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise UnreadableArtifact(f"it cannot be opened: {error.strerror}") from None
    try:
        opened = NpzFile(file, zipfile.ZipFile(file))
        _find_arrays(opened)
    except BaseException as error:
        file.close()
        if isinstance(error, _DAMAGE):
            raise _damaged(error) from None
        raise
    return opened


def _find_arrays(opened: NpzFile) -> None:
    members = [each for each in opened.archive.infolist() if each.filename.endswith(".npy")]
    unpacked = sum(each.file_size for each in members)
    if unpacked > MAX_UNPACKED_BYTES:
        raise UnreadableArtifact(f"it unpacks to {unpacked:,} bytes")
    if not members or len(members) > MAX_ARRAYS:
        raise UnreadableArtifact(f"it holds {len(members):,} arrays, expected 1 to {MAX_ARRAYS:,}")
    for each in members:
        with opened.archive.open(each) as member:
            shape, is_fortran, dtype = _read_head(member)
        opened.tensors[each.filename.removesuffix(".npy")] = NpzArray(
            dtype=dtype.name,
            shape=shape,
            member=each.filename,
            numpy_dtype=dtype,
            is_fortran=is_fortran and len(shape) > 1,
        )


def _read_head(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns shape, order and type of an array, and leaves the member at its first element."""
    version = np.lib.format.read_magic(member)
    if version not in _HEADS:
        raise ValueError(f"arrays of version {version} are not known")
    length_bytes, read = _HEADS[version]
    said = _read_whole(member, length_bytes)
    length = int.from_bytes(said, "little")
    if length > MAX_HEAD_BYTES:  # numpy reads any length before it refuses one
        raise ValueError(f"the description of an array has {length:,} bytes")
    shape, is_fortran, dtype = read(io.BytesIO(said + _read_whole(member, length)))
    if any(size < 0 for size in shape):
        raise ValueError(f"an array has the shape {shape}")
    return shape, is_fortran, dtype


def _read_whole(member: IO[bytes], size: int) -> bytes:
    content = member.read(size)
    if len(content) < size:
        raise EOFError("an array ends before its last element")
    return content


def _numbers(found: npt.NDArray[Any]) -> Numbers:
    """Returns elements as numbers; a complex one as two."""
    if found.dtype.kind == "c":
        found = found.astype(np.complex128).view(np.float64)
    numbers: Numbers = found.astype(np.float64)
    return numbers


def _damaged(error: BaseException) -> UnreadableArtifact:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UnreadableArtifact(f"it is no .npz file, or damaged ({text})")
