"""Reads what torch's flight recorder wrote down about NCCL's collectives: one file per rank.

torch keeps the last collectives of each process in memory and writes them to a file when one of
them times out, or when somebody writes to a named pipe. The file is a pickle. It is read without
loading any code: it holds dictionaries, lists, tuples, texts and numbers, and whatever else it asks
for is refused.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from traceml.model.errors import UnreadableRecords
from traceml.model.failure import is_users, line_name
from traceml.store.regular_files import read_regular

MAX_DUMP_BYTES = 64 << 20
"""A dump of 2,000 collectives with their stacks takes a few megabytes."""
MAX_NAME_CHARS = 100

_PICKLED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""What a damaged pickle may raise."""
_ITEM_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}
"""By torch's name of a type; those of 8 bits for floating-point numbers begin with `Float8`."""
_RANKS = re.compile(r"\d{1,7}")


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective of a rank."""

    group: str
    """The process group's name …"""
    group_words: str
    """… and what torch calls it: `default_pg`."""
    number: int
    """Its place among the collectives of the group, from 1; the same on every rank."""
    name: str
    """`all_reduce`."""
    size_bytes: int | None
    """Of its inputs; `None` where their type is not known."""
    is_complete: bool
    created_unix_s: float
    where: str | None = None
    """The user's own innermost line."""


@dataclass(frozen=True, slots=True)
class FlightDump:
    """What the flight recorder of one rank wrote down."""

    rank: int
    calls: tuple[CollectiveCall, ...]
    """The last ones, in order."""
    groups: Mapping[str, tuple[int, ...]]
    """The ranks of each process group that the dump names."""


class _PlainUnpickler(pickle.Unpickler):
    """Makes nothing but plain values; torch's own lists of numbers are lists."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.jit._pickle" and name.startswith("build_") and name.endswith("list"):
            return list
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a dump")

    def persistent_load(self, _: Any) -> Any:
        raise pickle.UnpicklingError("an outside object has no place in a dump")


def read_dump(path: Path, rank: int, folder: str = "") -> FlightDump:
    """Returns the dump of one rank; `folder` is the one in which its script was started.

    Raises UnreadableRecords for a file that is no such dump, or that asks for code to be loaded.
    """
    try:
        content = read_regular(path)
        if len(content) > MAX_DUMP_BYTES:
            raise pickle.UnpicklingError(f"it has {len(content)} bytes")
        found = _PlainUnpickler(io.BytesIO(content)).load()
    except OSError as error:
        raise UnreadableRecords(f"{path} cannot be read ({error.strerror})") from None
    except _PICKLED as error:
        raise UnreadableRecords(
            f"{path} is no dump of torch's flight recorder ({error}); expected what torch writes "
            "when a collective of NCCL times out"
        ) from None
    entries = found.get("entries") if isinstance(found, dict) else None
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise UnreadableRecords(
            f"{path} is no dump of torch's flight recorder: it has no list of 'entries'"
        )
    completed = _last_completed(found.get("pg_status"))
    calls = [_call(entry, completed, folder) for entry in entries if isinstance(entry, dict)]
    return FlightDump(
        rank, tuple(call for call in calls if call is not None), _groups(found.get("pg_config"))
    )


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    """Returns the ranks of each process group; torch writes them as a text, `[0, 1]`."""
    if not isinstance(config, dict):
        return {}
    return {
        str(name)[:MAX_NAME_CHARS]: tuple(map(int, _RANKS.findall(str(group.get("ranks", "")))))
        for name, group in config.items()
        if isinstance(group, dict)
    }


def _last_completed(status: Any) -> dict[str, int]:
    """Returns the number of the last complete collective of each process group, by its id.

    It is up to date where the state of single entries is not: those are looked at now and then.
    """
    if not isinstance(status, dict):
        return {}
    return {
        str(group): number
        for group, found in status.items()
        if isinstance(found, dict)
        and (number := _whole(found.get("last_completed_collective"))) is not None
    }


def _call(
    entry: Mapping[str, Any], completed: Mapping[str, int], folder: str
) -> CollectiveCall | None:
    """Returns one entry; `None` for a message between two ranks, which the others do not number,
    and for what lacks its number."""
    number = _whole(entry.get("collective_seq_id", entry.get("seq_id")))
    if entry.get("is_p2p") or not number:
        return None
    group = entry.get("process_group")
    names = group if isinstance(group, Sequence) and not isinstance(group, str) else (group,)
    name, words = str(names[0] if names else ""), str(names[-1] if names else "")
    created_ns = _whole(entry.get("time_created_ns")) or 0
    return CollectiveCall(
        group=name[:MAX_NAME_CHARS],
        group_words=(words or name)[:MAX_NAME_CHARS],
        number=number,
        name=str(entry.get("profiling_name", "")).rpartition(":")[2][:MAX_NAME_CHARS],
        size_bytes=_size_bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
        is_complete=entry.get("state") == "completed"
        or number <= completed.get(str(entry.get("pg_id")), 0),
        created_unix_s=created_ns / 1e9,
        where=_users_line(entry.get("frames"), folder),
    )


def _whole(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1 << 63 else None


def _size_bytes(sizes: Any, kinds: Any) -> int | None:
    if not isinstance(sizes, Sequence) or not isinstance(kinds, Sequence) or not sizes:
        return None
    total = 0
    for size, kind in zip(sizes, kinds, strict=False):
        item = 1 if str(kind).startswith("Float8") else _ITEM_BYTES.get(str(kind))
        if item is None or not isinstance(size, Sequence):
            return None
        lengths = [_whole(length) for length in size]
        if any(length is None for length in lengths):
            return None
        total += item * prod(length or 0 for length in lengths)
    return total


def _users_line(frames: Any, folder: str) -> str | None:
    if not isinstance(frames, Sequence):
        return None
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        file, line = str(frame.get("filename", "")), _whole(frame.get("line"))
        is_python = file.endswith(".py") or file.startswith("<ipython")
        if is_python and line is not None and is_users(file):
            return line_name(file, line, str(frame.get("name", "")), folder or "/")
    return None
