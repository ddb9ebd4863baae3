"""How the ranks that one launcher started on a machine agree on one run, where each of them calls
`traceml.init()`: the first one makes it, the others find it in a file."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
import zlib
from pathlib import Path
from typing import Any

from traceml.model.launcher_place import (
    has_rank,
    is_elastic,
    launch_id,
    place_in_environment,
)
from traceml.trace.interruptions import is_interruption
from traceml.trace.marks import read_agent_mark

_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.02
_MAKING = "is_in_the_making"
"""A key that is in the file until the run exists, or is known to fail."""


class RankMeeting:
    """A small file in shared memory, named after the launcher; only this user can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_launcher(cls) -> RankMeeting | None:
        """The meeting of the ranks of one launch; `None` for a process that is alone.

        Ranks that torch's launcher starts again find the run of those before them.
        """
        is_alone = place_in_environment()[1] < 2 and not is_elastic()
        if not has_rank() or is_alone or not _SHARED_MEMORY.is_dir():
            return None
        parent = os.getppid()
        return cls._named(launch_id() or f"{parent}-{_started(parent)}")

    @classmethod
    def of_run(cls, run_folder: Path, ring_folder: str) -> RankMeeting | None:
        """The meeting of the ranks of a run that was begun on another machine: named after its
        folder in shared memory, which is random, or after the run where it has none."""
        if not _SHARED_MEMORY.is_dir():
            return None
        of_run = f"{run_folder.name}-{zlib.crc32(bytes(run_folder)):08x}"
        return cls._named(Path(ring_folder).name or of_run)

    @property
    def path(self) -> str:
        """Where the file is, for the agent to remove where no rank does."""
        return str(self._path)

    @classmethod
    def _named(cls, name: str) -> RankMeeting:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        return cls(_SHARED_MEMORY / f"traceml-init-{os.getuid()}-{plain}.json")

    def is_first(self) -> bool:
        """Whether this rank is the first: no other has a run that goes on. Then it has to `tell`
        the others of its own.

        A rank that was killed leaves a file that names a run which is over, or was never made. If a
        long-lived parent starts the rank again, as Ray does, it finds this file.
        """
        part = self._path.with_suffix(
            f".{os.getpid()}-{os.urandom(4).hex()}"
        )  # unique among threads, too
        try:
            self._write(part, _content_while_making())
            os.link(part, self._path)  # with its content: nobody sees an empty file
        except FileExistsError:
            return self._take_over()
        except OSError as error:
            if is_interruption(error):
                raise
            # shared memory is full: then each rank has a run of its own
        finally:
            _remove(part)
        return True

    def _take_over(self) -> bool:
        """Claim the file for a new run, where the run in it is over. Returns whether we were the
        ones to claim it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if is_interruption(error):
                raise
            return False  # it was removed this moment: the run is about to be closed
        with os.fdopen(descriptor, "r+") as file:
            try:
                # Not waited for: whoever has it does the same.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = os.fstat(descriptor).st_uid == os.getuid()
                if not is_ours or not _is_over(file.read()):
                    return False
                file.seek(0)
                json.dump(_content_while_making(), file)
                file.truncate()
            except OSError as error:
                if is_interruption(error):
                    raise
                return False
        return True

    def tell(self, run: dict[str, Any]) -> None:
        """Say where the run is; nothing in it says that there is none."""
        part = self._path.with_suffix(".part")
        try:
            self._write(part, run)
            part.replace(self._path)
        except OSError as error:
            if is_interruption(error):
                raise
            # the others give up after a while

    @staticmethod
    def _write(path: Path, run: dict[str, Any]) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            json.dump(run, file)

    def wait_for_run(self, patience_s: float) -> dict[str, Any] | None:
        """Where the run of the first rank is; `None` where it has none, or does not say in time."""
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            try:
                owner, text = self._path.stat().st_uid, self._path.read_text()
            except OSError as error:
                if is_interruption(error):
                    raise
                return None  # the first rank has ended already
            if text and owner != os.getuid():
                return None
            if text and not _is_over(text):
                run: dict[str, Any] = json.loads(text)
                if not run.get(_MAKING):
                    return run if "folder" in run else None
            time.sleep(_POLL_S)
        return None

    def end(self) -> None:
        """Remove the file: the run is about to be closed."""
        _remove(self._path)


def _content_while_making() -> dict[str, Any]:
    """The content of a meeting's file while its first rank makes the run."""
    return {_MAKING: True, "maker": os.getpid()}


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if is_interruption(error):
            raise
        # it is as small as files get


def _is_over(text: str) -> bool:
    """Whether the run in a meeting's file has ended, or is about to: its agent is dead, or the rank
    that had it made was killed, with which the agent ends where no launcher starts that one again.

    Of an agent that has not said yet who it is nothing is known, nor of one in another container.
    """
    if not text:
        return False
    try:
        run: dict[str, Any] = json.loads(text)
    except ValueError as error:
        if is_interruption(error):
            raise
        return True  # damaged: nobody can find a run in it
    goes_on_without = is_elastic() and not run.get(_MAKING)
    if not goes_on_without and "maker" in run and not is_alive(run["maker"]):
        return True
    if "folder" not in run:
        return False
    try:
        agent, host = read_agent_mark(Path(run["folder"]))
    except (OSError, ValueError) as error:
        if is_interruption(error):
            raise
        return False
    return host == socket.gethostname() and not is_alive(agent)


def is_alive(pid: int | None) -> bool:
    """Whether a process of this machine still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError) as error:
        if is_interruption(error):
            raise
        return False


def _started(pid: int) -> str:
    """When a process was started, in the system's own count: numbers of processes are reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError) as error:
        if is_interruption(error):
            raise
        return "0"
