"""How compared runs are named, and where their comparison is written by default."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePath

from traceml.model.printable import printable

FOLDER = PurePath("compare")
_GENERIC = frozenset({"final_summary", "summary"})
_MAX_NAME_BYTES = 100
"""Two names and the rest of the file name stay below the 255 bytes that file systems allow."""
_HASH_CHARS = 6


def run_names(a: PurePath, b: PurePath) -> tuple[str, str]:
    """Returns names for the runs of two summary files, different ones where possible.

    The paths are absolute; for a generic file name the folder's name is used.
    """
    names = _run_name(a), _run_name(b)
    if names[0] == names[1] and a != b:
        names = str(a), str(b)
    return printable(names[0]), printable(names[1])


def group_names(
    a: Sequence[PurePath], b: Sequence[PurePath], words: tuple[Sequence[str], Sequence[str]]
) -> tuple[str, str]:
    """Returns names for two groups: the one word that selected each, else their first run."""
    return _group_name(a, words[0]), _group_name(b, words[1])


def _group_name(paths: Sequence[PurePath], words: Sequence[str]) -> str:
    first = printable(_run_name(paths[0]))
    if len(paths) == 1:
        return first
    if len(words) == 1:
        return printable(words[0])
    return f"{first}+{len(paths) - 1}"


def default_base(names: tuple[str, str], sides: Sequence[Sequence[str]] = ()) -> PurePath:
    """Returns the path of a comparison's files without extension: `compare/<a>_vs_<b>`.

    Where a side has several runs, `sides` are the names of all of them, and their hash keeps
    different comparisons apart.
    """
    base = f"{safe_name(names[0])}_vs_{safe_name(names[1])}"
    has_more = any(len(side) > 1 for side in sides)
    return FOLDER / (f"{base}-{_hash(*map(_joined, sides))}" if has_more else base)


def many_names(paths: Sequence[PurePath]) -> list[str]:
    """Returns names for the runs of several summary files; of two alike, the whole paths."""
    names = [_run_name(path) for path in paths]
    return [
        printable(name if names.count(name) == 1 else str(path))
        for name, path in zip(names, paths, strict=True)
    ]


def many_base(names: Sequence[str]) -> PurePath:
    """Returns the path of the files of three or more runs: `compare/<a>_and_<n>_more-<hash>`, with
    a hash of all their names."""
    return FOLDER / f"{safe_name(names[0])}_and_{len(names) - 1}_more-{_hash(_joined(names))}"


def _joined(names: Sequence[str]) -> str:
    return "\n".join(names)


def _hash(*texts: str) -> str:
    """Returns a few characters that differ where any of the texts does."""
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()[:_HASH_CHARS]


def _run_name(path: PurePath) -> str:
    if path.stem in _GENERIC:
        return path.parent.name or path.stem
    return path.stem


def safe_name(name: str) -> str:
    """Returns a run's name as a file system takes it; names that differ stay different."""
    safe = re.sub(r"[^\w.+=@-]+", "_", name).encode("utf-8", "ignore")
    if len(safe) > _MAX_NAME_BYTES:  # runs whose names differ at the end are kept apart
        safe = safe[: _MAX_NAME_BYTES - _HASH_CHARS - 1] + f"-{_hash(name)}".encode()
    return safe.decode("utf-8", "ignore").strip("._") or "run"
