"""Records the version of the data: what DVC tracks, and fingerprints of paths."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from traceml.agent.git import Git
from traceml.model.lineage import Fingerprint

MAX_PATHS = 16
"""Arguments and parameters that are checked."""
MAX_FILES = 20_000
MAX_SCAN_S = 0.5
"""Of a larger dataset, or on a slow disk, the part that was read in this time is recorded."""
MAX_HASHED_BYTES = 16 << 20
MAX_DVC_ENTRIES = 1000

_OUTPUT = re.compile(
    r"(^|[-_.])(out|output|save|log|ckpt|checkpoint|result|cache|work|tensorboard|run|dump)s?"
    r"($|[-_.]|dir|path|file|folder)|^-o$"
)
"""Options whose paths the run writes, such as `--output-dir`; they are no data."""
_DATA = "data"
"""A logged parameter with this word in its name and a path as its value names data."""
_DVC_LINE = re.compile(r"(?P<key>md5|etag|checksum|path)\s*:\s*(?P<value>.+)")


def named_in(arguments: Iterable[str]) -> Iterator[str]:
    """Returns the script's arguments that may be a path to read."""
    option = ""
    for word in arguments:
        name, separator, value = word.partition("=")
        if word.startswith("-") and not separator:
            option = word
            continue
        if separator:
            option, word = name, value
        if word and not _OUTPUT.search(option.lower()):
            yield word
        option = ""


def named_by(params: Mapping[str, Any]) -> Iterator[str]:
    """Returns the logged parameters that may be a path to data."""
    for name, value in params.items():
        if _DATA in name.lower() and isinstance(value, str) and value:
            yield value


def fingerprints(
    names: Iterable[str], folder: Path, apart: tuple[Path, ...], left_s: Callable[[], float]
) -> dict[str, Fingerprint]:
    """Returns the fingerprints of the names that are paths; relative ones start in `folder`.

    Paths in `apart`, and folders that contain them, are no data: the script, the run itself.
    """
    found: dict[str, Fingerprint] = {}
    for name in dict.fromkeys(names):
        if len(found) >= MAX_PATHS or left_s() <= 0:
            break
        try:
            path = (folder / name).resolve()
            if any(other == path or path in other.parents for other in apart):
                continue
            looks = _fingerprint(path, min(MAX_SCAN_S, left_s()))
        except (OSError, ValueError, RuntimeError):  # no name a file could have, a loop of links
            continue
        if looks is not None:
            found[name] = looks
    return found


def _fingerprint(path: Path, most_s: float) -> Fingerprint | None:
    if path.is_file():
        found = path.stat()
        return Fingerprint(1, found.st_size, int(found.st_mtime), content_hash(path))
    if not path.is_dir():
        return None
    files = size_bytes = 0
    newest: float | None = None
    until = time.monotonic() + most_s
    for file in _files_below(path):
        if files >= MAX_FILES or time.monotonic() > until:
            return Fingerprint(files, size_bytes, _seconds(newest), complete=False)
        files += 1
        size_bytes += file.st_size
        newest = file.st_mtime if newest is None else max(newest, file.st_mtime)
    return Fingerprint(files, size_bytes, _seconds(newest))


def _seconds(unix_s: float | None) -> int | None:
    return None if unix_s is None else int(unix_s)


def content_hash(path: Path) -> str | None:
    """Returns the SHA-256 of a file's content; `None` where it is no regular file, or too large."""
    if not path.is_file() or path.stat().st_size > MAX_HASHED_BYTES:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files_below(folder: Path) -> Iterator[os.stat_result]:
    """Yields size and time of every file, in a fixed order; unreadable ones are skipped."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                yield os.stat(os.path.join(place, name))  # noqa: PTH116, PTH118 - 20,000 of them
            except OSError:
                continue


def dvc_hashes(root: Path, git: Git) -> dict[str, str]:
    """Returns what DVC tracks in a repository: hash by path."""
    listed = git.ask("ls-files", "-z", "--", "*.dvc", "dvc.lock", "*/dvc.lock")
    found: dict[str, str] = {}
    for name in (listed or "").split("\0"):
        if len(found) >= MAX_DVC_ENTRIES or git.left_s() <= 0:
            break
        if not name:
            continue
        try:
            text = (root / name).read_text(errors="replace")
        except OSError:  # deleted, and not committed yet
            continue
        for path, version in _dvc_entries(text):
            found[(Path(name).parent / path).as_posix()] = version
    return dict(sorted(found.items())[:MAX_DVC_ENTRIES])


def _dvc_entries(text: str) -> Iterator[tuple[str, str]]:
    """Yields path and hash of every entry in a `.dvc` or `dvc.lock` file.

    These are YAML files that DVC writes: lists of entries, one `key: value` per line.
    """
    for entry in re.split(r"^\s*- ", text, flags=re.MULTILINE)[1:]:
        values: dict[str, str] = {}
        for line in entry.splitlines():
            match = _DVC_LINE.fullmatch(line.strip())
            if match is not None:
                values.setdefault(match["key"], match["value"].strip("'\" "))
        path = values.pop("path", None)
        if path and values:
            yield path, next(iter(values.values()))
