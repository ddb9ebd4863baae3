"""The run folder: its name, its files, and the small JSON files that describe the run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traceml.model.environment import ENDING, MARKS, WANTED_NAME_MARK
from traceml.model.errors import RunNotFound, TraceMLError, UnreadableRecords, UsageError
from traceml.model.launcher_place import read_boot_id
from traceml.model.run import Ending, Manifest
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.regular_files import read_regular, stat_regular

MANIFEST = "run.json"
SUMMARY = "final_summary.json"
TEXT = "final_summary.txt"
AGENT_LOG = "agent.log"
OUTPUT = "output.log"
EARLIER_OUTPUT = "output.earlier.log"
TAGS = "tags.jsonl"
RESERVED = ".reserved"
"""A file that reserves disk space for the summary while the run is in progress."""
RESERVED_BYTES = 96 << 10
"""About twice the size of a summary of one rank."""
RESERVED_PER_RANK_BYTES = 8 << 10
_REQUEST = "summary-request-"
REQUESTS = f"{_REQUEST}*"
"""Files by which training processes ask for a summary; each is removed when it is answered."""
ANSWER = "summary-answer.json"
"""The numbers of the last such summary."""

SHARED_MEMORY = Path("/dev/shm")
_MOVED = ".moved"
MANIFEST_TIMEOUT_S = 5.0
"""How long after it was made the folder of a run may have no manifest yet."""
_RING_FOLDER = re.compile(r"traceml-\d+-[0-9a-f]{8}")

LOOKERS_S = 3.0
"""How long to wait for a process that checks the lock; it holds it for microseconds."""
FRESH_S = 30.0
"""Without locks, a run counts as in progress if it was written to within this time: the agent
writes a sample every second, and every few seconds after some hours."""

YOUNG_S = 900.0
"""How far the machines of one job may be apart in starting it."""

PRIVATE = 0o700
"""The mode of a run's folder: only its owner may read output and parameters."""
_MAX_NAME_BYTES = 200
"""File systems allow 255, and files of comparisons are named after two runs."""


def unique_name(script: str) -> str:
    """Returns a readable new name: the script, the time, and four random characters."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(script).stem).strip("-")[:40] or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def user_name() -> str:
    """Returns the name of the account that this process runs under; empty where it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's number without an account
        return ""


def create_unique(logs_folder: Path, script: str) -> Path:
    """Creates the folder of a new run under a unique name; raises OSError."""
    while True:
        folder = logs_folder.absolute() / unique_name(script)
        with contextlib.suppress(FileExistsError):  # somebody was as lucky: draw again
            folder.mkdir(PRIVATE, parents=True)
            return folder


def boot_id() -> str:
    """Returns the random number that the running system drew when it started; empty where it has
    none."""
    try:
        return read_boot_id()
    except OSError:
        return ""


def create(logs_folder: Path, name: str, overwrite: bool, spared_s: float = 0.0) -> Path:
    """Creates the folder of a new run; one that began less than `spared_s` ago is not overwritten.

    Raises UsageError where the name is invalid or taken, OSError where the folder cannot be
    created.
    """
    if not is_run_name(name):
        raise UsageError(
            f"{name!r} cannot be a run name: a run name is a folder's name under the logs folder, "
            f"1 to {_MAX_NAME_BYTES} printable characters without slashes, not beginning with a "
            "dot, a dash or a blank; choose another --run-name"
        )
    folder = logs_folder.absolute() / name
    if overwrite and _linked_machine_run(folder) is not None and not folder.exists():
        folder.unlink()  # what is left of a run over several machines that somebody removed
    if overwrite and folder.exists():
        of_machines = run_of_machines(folder)
        _remove_run(of_machines or folder, spared_s)
        if of_machines is not None:
            folder.unlink()
    try:
        folder.mkdir(PRIVATE, parents=True)
    except FileExistsError:
        raise UsageError(
            f"a run named {name!r} exists already ({folder}); "
            "choose another --run-name, or pass --overwrite to replace it"
        ) from None
    return folder


def is_run_name(name: str) -> bool:
    """Returns whether a run can have this name; such a name cannot leave the logs folder."""
    return (
        name.isprintable()
        and not any(character in name for character in "/\\")
        and not name.startswith((".", "-"))
        and name == name.strip()
        and 1 <= len(name.encode()) <= _MAX_NAME_BYTES
    )


def is_run(folder: Path) -> bool:
    """Returns whether a folder is that of a run."""
    return (folder / MANIFEST).is_file()


def is_right_in(logs_folder: Path, name: str) -> bool:
    """Returns whether the name is that of a folder in the logs folder, and not of a link that
    leaves it."""
    if not is_run_name(name):
        return False
    try:
        return (logs_folder / name).resolve().parent == logs_folder.resolve()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
        return False


def run_of_machines(link: Path) -> Path | None:
    """Returns the run `NAME.HOST` to which a link `NAME` beside it leads: of several machines that
    share a logs folder, another one was first to take the name; `None` for anything else, such as
    a link of the user's."""
    folder = _linked_machine_run(link)
    is_ours = folder is not None and read_mark(folder, WANTED_NAME_MARK) == link.name
    return folder if is_ours else None


def _linked_machine_run(link: Path) -> Path | None:
    """Returns the folder `NAME.HOST` to which a link `NAME` leads, which need not be there."""
    try:
        target = os.readlink(link)  # noqa: PTH115 - as it was written, not as a path
    except OSError:
        return None
    is_named_so = target.startswith(f"{link.name}.") and is_run_name(target)
    return link.with_name(target) if is_named_so else None


def _remove_run(folder: Path, spared_s: float) -> None:
    """Removes an earlier run; anything that is no run, is in progress, or began less than
    `spared_s` ago stays."""
    has_manifest = stat_regular(folder / MANIFEST) is not None
    is_run = folder.is_dir() and not folder.is_symlink() and has_manifest
    if not is_run and not _is_empty(folder):
        raise UsageError(
            f"{folder} holds no {MANIFEST}, so it is not a run that --overwrite may replace; "
            "choose another --run-name"
        )
    if has_manifest and began_within(spared_s, folder):
        raise UsageError(
            f"the run {folder.name!r} has only just begun ({folder}), maybe on another machine of "
            "this job, and --overwrite would destroy it; choose another --run-name"
        )
    if is_going_on(folder) or (not has_manifest and began_within(MANIFEST_TIMEOUT_S, folder)):
        raise UsageError(
            f"the run {folder.name!r} is still going on ({folder}), --overwrite would destroy it; "
            "wait for its end, or choose another --run-name"
        )
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, TraceMLError):
        remove_rings(read_manifest(folder))
    shutil.rmtree(folder)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def discard(folder: Path, manifest: Manifest) -> None:
    """Removes the folder of a run that could not begin."""
    remove_rings(manifest)
    shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> int | None:
    """Locks a run as in progress, for as long as any process keeps the returned descriptor open.

    `None` where it is locked already, or the file system has no such locks: then only its files
    tell.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        _lock(descriptor)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _lock(descriptor: int) -> None:
    """Locks a folder, waiting for processes that only check the lock; raises OSError."""
    patience_until_s = time.monotonic() + LOOKERS_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # somebody holds it: raises
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            if time.monotonic() > patience_until_s:
                raise
            time.sleep(0.001)


def is_going_on(folder: Path) -> bool:
    """Returns whether a run is in progress: by its lock, or without locks by its files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: many may look at once
    except BlockingIOError:
        return True
    except OSError:
        return _is_fresh(folder)  # no locks here
    finally:
        os.close(descriptor)
    return _is_fresh(folder) and _is_elsewhere(folder)


def is_going_on_elsewhere(folder: Path) -> bool:
    """Returns whether another machine runs a job there that has begun within the last minutes."""
    _wait_for_manifest(folder)
    try:
        return began_within(YOUNG_S, folder) and _is_elsewhere(folder) and is_going_on(folder)
    except OSError:
        return False


def _wait_for_manifest(folder: Path) -> None:
    """Waits for the manifest of a folder that was made this moment: a batch system starts the tasks
    of all machines at once."""
    patience_until_s = time.monotonic() + MANIFEST_TIMEOUT_S
    with contextlib.suppress(OSError):
        while (
            not (folder / MANIFEST).exists()
            and abs(time.time() - folder.stat().st_ctime) < MANIFEST_TIMEOUT_S
            and time.monotonic() < patience_until_s
        ):
            time.sleep(0.02)


def began_within(seconds: float, folder: Path) -> bool:
    """Returns whether a run began less than so many seconds ago: by its manifest, or without one by
    its folder's last change. Clocks of machines differ: one that begins later is as near."""
    try:
        began_s = read_manifest(folder).started_unix_s
    except (OSError, TraceMLError):
        try:
            began_s = folder.stat().st_ctime
        except OSError:
            return False
    return abs(time.time() - began_s) < seconds


def _is_elsewhere(folder: Path) -> bool:
    """Returns whether another machine runs it: network file systems keep locks local."""
    try:
        manifest = read_manifest(folder)
    except (OSError, TraceMLError):
        return False
    own = boot_id()
    if own and manifest.boot_id:
        return own != manifest.boot_id
    return manifest.hostname not in ("", socket.gethostname())


def _is_fresh(folder: Path) -> bool:
    """Returns whether a run has no ending, and some file in it was written very recently.

    By the clock of the file system: where that differs much from ours, no run looks in progress.
    """
    if (folder / ENDING).exists():
        return False
    now_s = time.time()
    return any(abs(now_s - written_s) < FRESH_S for written_s in _written_s(folder))


def _written_s(folder: Path) -> Iterator[float]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == TAGS:
                continue  # people tag runs that are over
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                yield entry.stat(follow_symlinks=False).st_mtime


def make_ring_folder() -> str:
    """Creates a folder on tmpfs for this run's rings; returns an empty text where that is
    impossible."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return ""
    folder = SHARED_MEMORY / f"traceml-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        return ""
    return str(folder)


def remove_rings(manifest: Manifest) -> None:
    """Removes the rings, once everything in them is on disk."""
    folder = ring_folder(manifest)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def ring_folder(manifest: Manifest) -> Path | None:
    """Returns the folder on tmpfs that `make_ring_folder` made for a run; `None` where there is
    none.

    A manifest may come from anywhere: no other folder is searched for rings, or removed.
    """
    folder = Path(manifest.ring_folder)
    is_ours = _RING_FOLDER.fullmatch(folder.name) and folder.parent == SHARED_MEMORY
    return folder if is_ours and not folder.is_symlink() else None


def reserve_room(folder: Path, ranks: int) -> None:
    """Reserves disk space for the ending and the summary, before the records fill the disk.

    At most a third of a small disk; nothing on a full one.
    """
    free = os.statvfs(folder)
    wanted = RESERVED_BYTES + max(0, ranks - 1) * RESERVED_PER_RANK_BYTES
    size = min(wanted, free.f_bavail * free.f_frsize // 3)
    descriptor = os.open(folder / RESERVED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError:
        release_room(folder)
    finally:
        os.close(descriptor)


def release_room(folder: Path) -> None:
    """Frees that space: the ending and the summary are written next."""
    (folder / RESERVED).unlink(missing_ok=True)


def remove_summary(folder: Path) -> None:
    """Removes the summary of a node whose records are in that of the whole run."""
    for name in (SUMMARY, TEXT):
        (folder / name).unlink(missing_ok=True)


def note_move(manifest: Manifest, local: Path) -> None:
    """Leaves a note, in shared memory, that the records of a run are written to another folder from
    now on; raises OSError where there is no shared memory."""
    rings = ring_folder(manifest)
    if rings is None:
        raise OSError(errno.ENOENT, "the rings are in the run folder, too")
    rings.with_suffix(_MOVED).write_text(str(local))


def moved_to(manifest: Manifest) -> Path | None:
    """Returns where such a note says that the records are, and removes it; `None` without one."""
    rings = ring_folder(manifest)
    note = None if rings is None else rings.with_suffix(_MOVED)
    if note is None or stat_regular(note) is None:
        return None
    found = Path(note.read_text())
    note.unlink()
    return found


def summary_requests(folder: Path) -> list[Path]:
    """Returns the requests for a summary that nobody has answered yet; asked ten times a second."""
    names = os.listdir(folder)  # noqa: PTH208 - names alone are quicker
    return [folder / name for name in names if name.startswith(_REQUEST)]


def remove_answer(folder: Path) -> None:
    """Removes the answer file: no process will ask again."""
    (folder / ANSWER).unlink(missing_ok=True)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes what is known about the run."""
    write_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=2).encode())


def read_manifest(folder: Path) -> Manifest:
    """Returns what was known about the run when it started."""
    try:
        fields = load_json(read_regular(folder / MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(
            f"{folder} is not a run folder: it has no {MANIFEST}; "
            "pass a folder that `traceml run` made, or its name"
        ) from None
    except OSError as error:
        raise _damaged(folder, error.strerror or error) from None
    except UNDECODABLE as error:
        raise _damaged(folder, error) from None
    try:
        fields = _known(Manifest, fields)
        return Manifest(**{**fields, "command": tuple(fields.get("command", ()))})
    except (AttributeError, TypeError) as error:
        raise _damaged(folder, error) from None


MAX_UNIX_S = 253_402_300_799
"""The end of the year 9999, the limit of Python's calendar."""
_MAX_WHOLE = (1 << 31) - 1
"""For an exit status, a pid, or a number of ranks or nodes."""
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "float": (int, float),
    "int": (int,),
    "int | None": (int, type(None)),
    "tuple[str, ...]": (list,),
}
"""The JSON types for the annotations of fields."""


def _known(record: type[Manifest] | type[Ending], found: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that the record has; raises TypeError where one has a wrong type."""
    known = record.__dataclass_fields__
    fields = {name: value for name, value in found.items() if name in known}
    for name, value in fields.items():
        items = value if isinstance(value, list) else []
        kind = str(known[name].type)
        if not isinstance(value, _KINDS[kind]) or not all(isinstance(each, str) for each in items):
            raise TypeError(f"{name} is {value!r:.40}, not {kind}")
        most = MAX_UNIX_S if kind == "float" else _MAX_WHOLE
        least = 0 if kind == "float" else -most
        if isinstance(value, (int, float)) and not least <= value <= most:
            raise TypeError(f"{name} is {value!r:.40}, expected {least} to {most}")
    return fields


def _damaged(folder: Path, found: object) -> UnreadableRecords:
    return UnreadableRecords(
        f"{folder / MANIFEST} is damaged ({found}); expected what `traceml run` wrote there: "
        "restore it from a copy, or leave the run out"
    )


def write_ending(folder: Path, ending: Ending) -> None:
    """Write how the run ended."""
    write_atomically(folder / ENDING, json.dumps(asdict(ending), indent=2).encode())


def read_ending(folder: Path) -> Ending | None:
    """Returns how the run ended; `None` while it is in progress, or where nobody observed it."""
    try:
        return Ending(**_known(Ending, load_json(read_regular(folder / ENDING))))
    except (OSError, *UNDECODABLE, AttributeError, TypeError):
        return None  # none, or a damaged one: nobody can say


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old or the new content, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_mark(folder: Path, name: str, text: str) -> None:
    """Writes a mark (a small file with one line); raises OSError."""
    (folder / MARKS).mkdir(exist_ok=True)
    write_atomically(folder / MARKS / name, text.encode())


def read_mark(folder: Path, name: str) -> str | None:
    """Returns the text of a mark; `None` where there is none."""
    try:
        return read_regular(folder / MARKS / name).decode(errors="replace")
    except OSError:
        return None
