"""How the tasks that a batch system started on one machine, each with a `traceml run` of its own
(`srun traceml run train.py`), make one run with one agent.

The first of them makes it. The others find it in a small file in shared memory, and run their
command as a part of it. Locks on that file say who is still there, also after a SIGKILL.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from traceml.model.launcher_place import has_rank, launch_id, place_in_environment

SHARED_MEMORY = Path("/dev/shm")
FINDING_TIMEOUT_S = 60.0
"""How long a task waits for the run of the first one before it runs its command untraced."""
OTHERS_TIMEOUT_S = 600.0
"""How long the task that made the run may stay for the others, which share its agent …"""
OTHERS_AFTER_FAILURE_S = 5.0
"""… and where its own command failed: batch systems wait for that to end the other tasks."""
POLL_S = 0.05
_OWNER, _MEMBERS = 0, 1
"""The bytes of the file that are locked: by the task that made the run, by all others."""


class TaskRun(NamedTuple):
    """The run that the first task of this machine made."""

    folder: Path
    ring_folder: str


class TasksOnMachine:
    """This task's part among those on its machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        """Open until the process ends, and its locks with it."""
        self._makes_run = False

    @classmethod
    def of_launcher(cls) -> TasksOnMachine | None:
        """Returns the meeting of the tasks of one launch; `None` for a task that is alone here."""
        if not has_rank() or place_in_environment().local_world < 2 or not SHARED_MEMORY.is_dir():
            return None
        launch = launch_id() or f"{os.getppid()}-{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
        name = hashlib.sha256(launch.encode()).hexdigest()[:16]
        return cls(SHARED_MEMORY / f"traceml-tasks-{os.getuid()}-{name}")

    def find_run(self) -> TaskRun | None:
        """Returns the run that another task made; `None` where this task has to make it, and then
        `tell` the others.

        Raises OSError where the others cannot be reached, or none made a run in time.
        """
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._file).st_uid != os.getuid():
            raise PermissionError(f"{self._path} belongs to somebody else")
        if self._lock(_OWNER, fcntl.LOCK_EX):
            os.ftruncate(self._file, 0)
            self._makes_run = True
            return None
        self._lock(_MEMBERS, fcntl.LOCK_SH)
        deadline_s = time.monotonic() + FINDING_TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = os.pread(self._file, 1 << 16, 0)
            if found.endswith(b"\n"):
                run = json.loads(found)
                if not run:
                    break
                return TaskRun(Path(run["folder"]), run["ring_folder"])
            if self._lock(_OWNER, fcntl.LOCK_EX):  # the first one is gone without a run
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _MEMBERS)
                self._makes_run = True
                return None
            time.sleep(POLL_S)
        raise TimeoutError("the first task of this machine made no run")

    def tell(self, run: TaskRun | None) -> None:
        """Says where the run is; `None` says that there is none. Only the task that has to make it
        is heard."""
        if self._file is None or not self._makes_run:
            return
        words = {} if run is None else {"folder": str(run.folder), "ring_folder": run.ring_folder}
        with suppress(OSError):  # no room in shared memory: the others run untraced
            os.pwrite(self._file, json.dumps(words).encode() + b"\n", 0)

    def wait_for_others(self, exit_status: int, pause: Callable[[float], object]) -> None:
        """At the end of the task that made the run: waits until the others have ended too.

        `pause` waits for so many seconds.
        """
        patience_s = OTHERS_AFTER_FAILURE_S if exit_status else OTHERS_TIMEOUT_S
        deadline_s = time.monotonic() + patience_s
        while not self._lock(_MEMBERS, fcntl.LOCK_EX) and time.monotonic() < deadline_s:
            pause(POLL_S)
        self._path.unlink(missing_ok=True)

    def _lock(self, byte: int, kind: int) -> bool:
        assert self._file is not None
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # somebody holds it
            return False
        return True
