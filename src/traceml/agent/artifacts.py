"""Stores the files that training processes staged, in a thread of the agent.

Copying gigabytes must hold up no ring. What is stored is what was logged: a file that was written
to between the call and the copy is recorded as such, and its newer content is not stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, get_native_id
from typing import Any

from msgspec import Struct, convert, to_builtins

from traceml.model.artifact import PART_SUFFIX, STAGED, STAGED_FACTS, ArtifactKind, kind_of_file
from traceml.model.quantities import count, memory
from traceml.store.artifact_store import (
    ArtifactStore,
    ContentChanged,
    KeptFile,
    Stamp,
    remove_staged,
    safe_relative,
)
from traceml.store.folder import write_atomically
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.load import ARTIFACTS, read_artifact_hashes
from traceml.store.regular_files import read_regular

MAX_KEPT_BYTES = 64 << 30
"""Of all contents that one run keeps; of what is logged later only size and hash are recorded."""
MIN_FREE_BYTES = 1 << 30
"""What must stay free on the disk beside room for the same file again: training's next checkpoint
comes first."""
CLOSING_S = 20.0
"""How long the end of a run waits for files that are still being copied."""
NICENESS = 10
"""Of the thread that copies and hashes: the training's threads come first."""
LOOK_S = 5.0
"""How often the thread looks for staged files that no message announced."""


class _StagedFile(Struct):
    """One file of a call, as `trace/artifact_staging.py` writes it."""

    path: str
    how: str
    size_bytes: int
    mtime_ns: int
    source: str = ""


class _StagedCall(Struct):
    """One call of `log_artifact`."""

    name: str
    path: str
    unix_ns: int
    is_folder: bool
    files: list[_StagedFile]
    links_left_out: int = 0


class Artifacts:
    """The logged files of one run; `pieces` runs in its own thread, the rest in the agent's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Any] = read_artifact_hashes(folder)
        self._store = ArtifactStore(folder)
        self._kept_bytes = _kept_bytes(self._found.values())
        self._wake = Event()
        self._closing = False

    def note(self, messages: Iterable[bytes]) -> None:
        """Wakes the thread where newly drained messages tell of an artifact."""
        if any(b'"artifact"' in message[:40] for message in messages):
            self._wake.set()

    def close(self) -> None:
        """Ends `pieces` once everything is stored that is staged by now."""
        self._closing = True
        self._wake.set()

    def prune(self) -> None:
        """Removes contents that no run has any more, and the folder of staged files if empty."""
        self._store.prune()
        with suppress(OSError):  # a process that goes on may stage more
            (self._folder / STAGED).rmdir()

    def complete(self) -> None:
        """Stores everything that is staged, in this thread: after an agent died."""
        for part in self._folder.glob(f"{STAGED}/*{PART_SUFFIX}"):
            remove_staged(self._folder, part.name)
        self._store.remove_parts()
        for name in self._staged():
            self._store_one(name)

    def pieces(self) -> Iterator[Callable[[], None]]:
        """Yields what is to be stored; each may fail without the others.

        What is staged already is from before an earlier agent died.
        """
        while True:
            is_last = self._closing
            for name in self._staged():
                yield partial(self._store_one, name)
            if is_last:
                return
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _staged(self) -> list[str]:
        try:
            names = os.listdir(self._folder / STAGED)  # noqa: PTH208 - names, not paths
        except OSError:
            return []
        return sorted(name for name in names if not name.endswith(PART_SUFFIX))

    def _store_one(self, name: str) -> None:
        """Stores what one call staged; whatever prevents that becomes the artifact's note."""
        if name not in self._found:
            call = self._read(name)
            if call is None:
                return
            found = {**self._found, name: self._entry(name, call)}
            write_atomically(self._folder / ARTIFACTS, json.dumps(found).encode())
            self._found = found
        remove_staged(self._folder, name)

    def _read(self, name: str) -> _StagedCall | None:
        path = self._folder / STAGED / name / STAGED_FACTS
        try:
            call = convert(load_json(read_regular(path)), _StagedCall)
        except (OSError, *UNDECODABLE):
            return None
        return call if call.is_folder or len(call.files) == 1 else None

    def _entry(self, name: str, call: _StagedCall) -> dict[str, Any]:
        known = {"name": call.name, "path": call.path, "unix_ns": call.unix_ns}
        name_alone = kind_of_file(Path(call.path).name, b"")
        kind = ArtifactKind.FOLDER if call.is_folder else name_alone
        known |= {"kind": kind.value, "size_bytes": sum(file.size_bytes for file in call.files)}
        try:
            kept = self._keep_all(self._folder / STAGED / name, call)
        except ContentChanged:
            said = "it was written to again before it could be copied"
            remedy = "write to a new file and rename it, or log smaller files"
            return {**known, "note": f"its content was not kept: {said}; {remedy}"}
        except OSError as error:
            return {**known, "note": f"its content could not be kept ({error.strerror})"}
        return {**known, **self._described(call, kept)}

    def _keep_all(self, staged: Path, call: _StagedCall) -> list[KeptFile]:
        folder, kept_before = self._store.new_folder(), self._kept_bytes
        kept = []
        try:
            for number, file in enumerate(call.files):
                inside = safe_relative(file.path)
                place = folder / (inside or f"file-{number}")
                kept.append(self._keep(staged / str(number), file, place))
        finally:
            is_whole = len(kept) == len(call.files) and all(file.place for file in kept)
            if not is_whole or not kept:
                shutil.rmtree(folder, ignore_errors=True)
                self._kept_bytes = kept_before
        return kept

    def _keep(self, staged: Path, file: _StagedFile, place: Path) -> KeptFile:
        source = Path(file.source) if file.how == "path" else staged
        stamp = Stamp(file.size_bytes, file.mtime_ns)
        if file.how == "copy":  # nobody else writes to it
            found = staged.lstat()
            stamp = Stamp(found.st_size, found.st_mtime_ns)
        kept = self._store.keep(source, place, stamp, self._has_room)
        self._kept_bytes += kept.size_bytes if kept.place else 0
        return kept

    def _has_room(self, size_bytes: int) -> bool:
        free = self._store.free_bytes()
        is_allowed = self._kept_bytes + size_bytes <= MAX_KEPT_BYTES
        return is_allowed and free - size_bytes >= size_bytes + MIN_FREE_BYTES

    def _described(self, call: _StagedCall, kept: Sequence[KeptFile]) -> dict[str, Any]:
        """Returns the hash, the kind and the place of what was kept, and what was not, in words."""
        found: dict[str, Any] = {"size_bytes": sum(file.size_bytes for file in kept)}
        if call.is_folder:
            found["files"] = [
                {"path": _inside(file.path), **_plain(each)}
                for file, each in zip(call.files, kept, strict=True)
            ]
            found["sha256"] = _folder_hash(found["files"])
        else:
            found |= _plain(kept[0])
        notes = []
        if all(file.place for file in kept) and kept:
            place = kept[0].place or Path()
            top = place.relative_to(self._folder).parts[:3]
            found["stored"] = str(Path(*top))
        else:
            notes.append(self._why_not_kept(found["size_bytes"]) if kept else "it holds no file")
        if call.links_left_out:
            notes.append(f"{count(call.links_left_out, 'symbolic link')} left out")
        return {**found, "note": "; ".join(notes)} if notes else found

    def _why_not_kept(self, size_bytes: int) -> str:
        if self._kept_bytes + size_bytes > MAX_KEPT_BYTES:
            return f"its content was not kept: a run keeps {memory(MAX_KEPT_BYTES)} at most"
        free = memory(self._store.free_bytes())
        size = memory(size_bytes)
        return f"its content was not kept: it has {size}, and the disk's last {free} are training's"


def yield_to_training() -> None:
    """Gives the calling thread a low priority, where Linux has one for each thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def _plain(file: KeptFile) -> dict[str, Any]:
    known: dict[str, Any] = to_builtins(replace(file, place=None))
    return {name: value for name, value in known.items() if name != "place"}


def _inside(path: str) -> str:
    """Returns the path of a file inside its folder."""
    return str(Path(*Path(path).parts[1:]))


def _folder_hash(files: Iterable[dict[str, Any]]) -> str:
    """Returns one hash for the names and contents of a folder's files."""
    lines = sorted(f"{file['sha256']}  {file['path']}\n" for file in files)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _kept_bytes(entries: Iterable[dict[str, Any]]) -> int:
    sizes = (entry.get("size_bytes") for entry in entries if entry.get("stored"))
    return sum(size for size in sizes if isinstance(size, int))
