"""Keeps a copy of a node's run folder elsewhere: what has changed goes there as pieces of files.

A piece is bytes and the place in a file where they belong, so that a repeated one changes nothing.
The agent of a node makes pieces, the head's writes them into its copy; `traceml recover` does both.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import msgspec

from traceml.model.environment import MARKS, MEMORY_SNAPSHOT
from traceml.model.errors import TraceMLError, UnreadableRecords
from traceml.store import folder as folders
from traceml.store.failures import STACKS
from traceml.store.line_files import LIVE_CHANGES, LIVE_STATE, write_whole
from traceml.store.node_folders import NODE
from traceml.store.regular_files import open_regular
from traceml.store.rings import parse_head

MAX_PIECES_BYTES = 1 << 20
"""How much the pieces of one request hold at most, before they are compressed."""
MAX_FILE_BYTES = 512 << 20
"""A larger file stays on its node; those of records stay far below."""
MAX_FILES = 20_000

_FOLDERS = (MARKS, STACKS)
"""The folders inside a run folder that are copied; logged files stay on their node."""
_NOT_COPIED = (
    folders.SUMMARY,
    folders.TEXT,
    folders.ANSWER,
    folders.REQUESTS,
    folders.TAGS,
    LIVE_STATE,
    LIVE_CHANGES,
    "report.html",
    "head*.json",
    "join.json",
    "*.ring",
    "*.stacks",
)
"""Files that mean something on their node alone."""
_KEPT_ON_NODE = (MEMORY_SNAPSHOT.format(pid="*"),)
_FRONT_BYTES = 1 << 16
"""Where the head of a file of steps is looked for."""
_REMEMBERED = 64
"""Bytes before the end of what was sent that are compared, to notice that they were changed."""
_STEPS = ".steps"
_GROWING = (_STEPS, ".messages", ".jsonl", ".log")
"""Files that are appended to; others are replaced at every change, and so are their copies."""


class FilePiece(msgspec.Struct, array_like=True, frozen=True):
    """Bytes of one file."""

    name: str
    """The file's path inside the run folder."""
    offset: int
    data: bytes
    total: int | None = None
    """The size of the whole file where it replaces the one that is there; `None` where the bytes go
    into that one."""
    is_gone: bool = False
    """The node has no such file any more."""


class ForgedPiece(TraceMLError):
    """A piece names a file that no node sends: its name leaves the node's folder, for example."""


class MissingBytes(TraceMLError):
    """A piece begins behind the end of its file; `size` is where to go on."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"{name} has {size} bytes so far; send what follows them")
        self.name = name
        self.size = size


@dataclass(frozen=True, slots=True)
class _CopyState:
    """How much of a file is in the copy."""

    inode: int
    size: int
    mtime_ns: int = 0
    before: bytes = b""
    """The last bytes that were sent."""
    front_bytes: int = 0
    front: int = 0
    """The size and the checksum of the head of a file of steps, which changes with every record."""
    total: int | None = None
    """While the file is replaced in the copy, its whole size."""


class FolderChanges:
    """What has changed in a node's folder since it was last confirmed to be in the copy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, _CopyState] = {}
        self._planned: dict[str, _CopyState | None] = {}
        self.files_left: tuple[str, ...] = ()
        """Files that are not copied, as of the last look."""

    def begin_from(self, there: Mapping[str, tuple[int, int]]) -> None:
        """Compares the folder with the files of the copy: their sizes and checksums by name."""
        here = dict(self._files())
        self._sent = {name: _CopyState(0, 0) for name in there if name not in here}
        for name in here.keys() & there.keys():
            size, checksum = there[name]
            self._sent[name] = self._compared(name, size, checksum)

    def _compared(self, name: str, size: int, checksum: int) -> _CopyState:
        """Returns how much of a file is in the copy: all of it, or nothing that could stay."""
        try:
            with _open(self._folder / name) as file:
                found = os.fstat(file.fileno())
                if _size_and_checksum(file, size) != (size, checksum):
                    return _CopyState(0, 0)
                file.seek(0)
                first = file.read(min(size, _FRONT_BYTES))
                file.seek(max(0, size - _REMEMBERED))
                before = file.read(min(size, _REMEMBERED))
        except OSError:
            return _CopyState(0, 0)
        front_bytes = _front_bytes(name, first)
        front = zlib.crc32(first[:front_bytes])
        mtime_ns = found.st_mtime_ns if size == found.st_size else 0
        return _CopyState(found.st_ino, size, mtime_ns, before, front_bytes, front)

    def next_pieces(self) -> list[FilePiece]:
        """Returns pieces of what has changed, as many as one request may hold; none where nothing
        has. What the node says of itself comes when all else is there."""
        self._planned, pieces, room = {}, [], MAX_PIECES_BYTES
        here = dict(self._files())
        for name in sorted(self._sent.keys() - here.keys() - set(self.files_left)):
            pieces.append(FilePiece(name, 0, b"", is_gone=True))
            self._planned[name] = None
        for name in sorted(here, key=_order):
            found = self._pieces_of(name, here[name], room)
            pieces += found
            room -= sum(len(piece.data) for piece in found)
            if room <= 0:
                break
        if not pieces:
            self.confirm()
        return pieces

    def confirm(self) -> None:
        """Notes that the last pieces are in the copy."""
        for name, sent in self._planned.items():
            if sent is None:
                self._sent.pop(name, None)
            else:
                self._sent[name] = sent
        self._planned = {}

    def send_again(self, name: str) -> None:
        """Notes that the copy of a file is not what it should be: it is replaced next."""
        self._planned = {}
        self._sent[name] = _CopyState(0, 0)

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        left: list[str] = []
        for name, found in _listed(self._folder, left.append):
            if found.st_size > MAX_FILE_BYTES or any(fnmatch(name, each) for each in _KEPT_ON_NODE):
                left.append(name)
            else:
                yield name, found
        self.files_left = tuple(left)

    def _pieces_of(self, name: str, found: os.stat_result, room: int) -> list[FilePiece]:
        sent = self._sent.get(name)
        if sent is not None and sent.total is None and _is_same(sent, found):
            return []
        try:
            with _open(self._folder / name) as file:
                return self._read_pieces(name, file, sent, room)
        except OSError:  # gone meanwhile, or no regular file any more
            return []

    def _read_pieces(
        self, name: str, file: io.BufferedReader, sent: _CopyState | None, room: int
    ) -> list[FilePiece]:
        found = os.fstat(file.fileno())
        if sent is None or not _goes_on(name, file, sent, found):
            sent = _CopyState(found.st_ino, 0, total=found.st_size)
        end = found.st_size if sent.total is None else sent.total
        file.seek(sent.size)
        data = file.read(max(0, min(room, end - sent.size)))
        size = sent.size + len(data)
        pieces = [FilePiece(name, sent.size, data, sent.total)] if data or sent.total == 0 else []
        front_bytes, front = sent.front_bytes, 0
        if name.endswith(_STEPS) and sent.total is None:
            file.seek(0)
            content = file.read(front_bytes or _FRONT_BYTES)
            front_bytes = front_bytes or _front_bytes(name, content)
            front = zlib.crc32(content[:front_bytes])
            if front != sent.front:
                pieces.append(FilePiece(name, 0, content[:front_bytes]))
        self._planned[name] = _CopyState(
            found.st_ino,
            size,
            found.st_mtime_ns if size == found.st_size else 0,
            (sent.before + data)[-_REMEMBERED:],
            front_bytes,
            front,
            None if sent.total is None or size >= sent.total else sent.total,
        )
        return pieces


def _is_same(sent: _CopyState, found: os.stat_result) -> bool:
    return (sent.inode, sent.size, sent.mtime_ns) == (
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
    )


def _goes_on(name: str, file: io.BufferedReader, sent: _CopyState, found: os.stat_result) -> bool:
    """Returns whether a file is the one that was sent, with nothing but new bytes at its end; a
    head of steps that was written again does not count."""
    if sent.inode != found.st_ino or found.st_size < sent.size:
        return False
    if sent.total is not None:
        return True
    if not name.endswith(_GROWING):
        return False
    file.seek(sent.size - len(sent.before))
    return file.read(len(sent.before)) == sent.before or sent.size <= sent.front_bytes


def _front_bytes(name: str, content: bytes) -> int:
    """Returns how long the head of a file of steps is; 0 for other files."""
    if not name.endswith(_STEPS):
        return 0
    try:
        return parse_head(content[:_FRONT_BYTES], Path(name)).size
    except UnreadableRecords:
        return 0


def _order(name: str) -> tuple[int, str]:
    return {folders.MANIFEST: 0, NODE: 2}.get(name, 1), name


def _listed(
    folder: Path, left: Callable[[str], object] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files of a run folder that belong into a copy of it, by their paths inside it;
    `left` is called with the names of those that cannot be looked at. Raises OSError."""
    for place in ("", *_FOLDERS):
        try:
            entries = list(os.scandir(folder / place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries[:MAX_FILES]:
            name = f"{place}/{entry.name}" if place else entry.name
            if not _is_listed(name):
                continue
            try:
                if not entry.is_file(follow_symlinks=False):
                    continue
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # replaced meanwhile
            except OSError:  # a file server that forgot it (ESTALE), a disk with errors
                if left is not None:
                    left(name)
                continue
            yield name, found


def is_copied(name: str) -> bool:
    """Returns whether a file of this name belongs into the copy of a node's folder; the name of
    one that does cannot leave that folder."""
    folder, _, last = name.rpartition("/")
    return (
        (not folder or folder in _FOLDERS)
        and folders.is_run_name(last)
        and not any(fnmatch(last, each) for each in _NOT_COPIED)
    )


@lru_cache(MAX_FILES)
def _is_listed(name: str) -> bool:
    """The same for files that are here, which are looked at every second; names that others send
    are not kept."""
    return is_copied(name)


def _open(path: Path) -> io.BufferedReader:
    return os.fdopen(open_regular(path), "rb")


# The copy


class CopyListing:
    """Lists copies of nodes' folders, and reads a file again only where it has changed since: when
    a head comes back, every node asks for the listing of all that it ever sent."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], tuple[int, int]]] = {}
        """By the path: inode, size and time of the last change; size and checksum."""

    def files(
        self, folder: Path, is_wanted: Callable[[], bool] = lambda: True
    ) -> dict[str, tuple[int, int]]:
        """Returns the files of a copy: their sizes and checksums by name. It stops, with those that
        it has, as soon as the listing is no longer wanted."""
        listed = {}
        for name, found in _listed(folder):
            if not is_wanted():
                break
            path, state = folder / name, (found.st_ino, found.st_size, found.st_mtime_ns)
            before = self._known.get(path)
            if before is None or before[0] != state:
                try:
                    with _open(path) as file:
                        before = state, _size_and_checksum(file, MAX_FILE_BYTES)
                except OSError:
                    continue
                self._known[path] = before
            listed[name] = before[1]
        return listed


def _size_and_checksum(file: io.BufferedReader, max_bytes: int) -> tuple[int, int]:
    """Returns how many bytes a file has, up to `max_bytes`, and their checksum; reads them in small
    parts."""
    size = checksum = 0
    while content := file.read(min(max_bytes - size, 1 << 20)):
        size, checksum = size + len(content), zlib.crc32(content, checksum)
    return size, checksum


def list_copy(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns the files of a copy: their sizes and checksums by name."""
    return CopyListing().files(folder)


def apply_piece(folder: Path, piece: FilePiece) -> None:
    """Writes a piece into the copy of a node's folder.

    Raises ForgedPiece for what no node sends, MissingBytes where bytes before it are missing, and
    OSError.
    """
    total = piece.total
    end = piece.offset + len(piece.data)
    is_sound = 0 <= piece.offset <= end <= (MAX_FILE_BYTES if total is None else total)
    if not is_copied(piece.name) or not is_sound or (total or 0) > MAX_FILE_BYTES:
        raise ForgedPiece(
            f"a piece of {piece.name!r:.80} is refused: expected a file of a run folder, of at "
            f"most {MAX_FILE_BYTES:,} bytes"
        )
    path = folder / piece.name
    if piece.is_gone:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=folders.PRIVATE, exist_ok=True)
    if total is None:
        _write_at(path, piece.name, piece.offset, piece.data)
        return
    part = path.with_name(f".{path.name}.part")
    if not piece.offset:
        part.unlink(missing_ok=True)
    _write_at(part, piece.name, piece.offset, piece.data)
    if end == total:
        part.replace(path)


def _write_at(path: Path, name: str, offset: int, data: bytes) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if offset > size:
            raise MissingBytes(name, size)
        write_whole(descriptor, data, offset)
    finally:
        os.close(descriptor)


def copy_folder(source: Path, target: Path) -> None:
    """Makes the target a copy of a node's folder, as the head's would be; raises OSError."""
    target.mkdir(folders.PRIVATE, parents=True, exist_ok=True)
    changes = FolderChanges(source)
    changes.begin_from(list_copy(target))
    while pieces := changes.next_pieces():
        for piece in pieces:
            apply_piece(target, piece)
        changes.confirm()
