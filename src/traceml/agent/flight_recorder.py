"""Finds what torch's flight recorder wrote about NCCL's collectives, and asks for it in a hang.

torch has it on by default (since 2.7): the last 2,000 collectives of each process are in memory and
are written to a file when one of them times out. Where the job has set a named pipe for it
(`TORCH_NCCL_DEBUG_INFO_PIPE_FILE`), writing to that has the file written at once. We set none of
these: a pipe that cannot be made would end the job.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from traceml.agent.processes import process_of
from traceml.agent.stacks import folder_of
from traceml.facts.missing_arrivals import stuck_collectives
from traceml.model.errors import UnreadableRecords
from traceml.model.failure import StuckCollective
from traceml.store.flight_recorder import MAX_DUMP_BYTES, FlightDump, read_dump
from traceml.store.regular_files import stat_regular

FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What the name of a rank's file begins with; its rank follows."""
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILE_NAMES = ("torch/comm_lib_trace_rank_", "torch/nccl_trace_rank_")
"""Where torch writes by default, in the user's cache; before 2.7 it was the next one."""
OLD_FILE = "/tmp/nccl_trace_rank_"
MAX_ENVIRONMENT_BYTES = 1 << 20


class FlightRecorder:
    """The flight recorders of one node's ranks."""

    def __init__(
        self, proc: Path = Path("/proc"), started: Callable[[int], float] | None = None
    ) -> None:
        self._proc = proc
        self._started_unix_s = _started_unix_s if started is None else started
        self._pids: dict[int, int] = {}
        self._since_unix_s: dict[int, float] = {}
        """By rank: since when its process runs; a file that is older is another one's."""
        self._files: dict[int, tuple[Path, ...]] = {}
        """By rank: where its file may be."""
        self._folders: dict[int, str] = {}
        self._read: dict[int, tuple[int, FlightDump]] = {}
        """By rank: what was read last, and when that file was written."""

    def ask(self, ranks: Mapping[int, int]) -> None:
        """Has the ranks' collectives written down, where the job has a pipe for it; `ranks` are
        their pids, by rank."""
        for rank, pid in ranks.items():
            if self._pids.get(rank) != pid:  # it was started again
                self._pids[rank], self._since_unix_s[rank] = pid, self._started_unix_s(pid)
                self._read.pop(rank, None)
            environment = self._environment(pid)
            self._files[rank] = tuple(_places(environment, rank))
            self._folders[rank] = folder_of(pid)
            if PIPE_VARIABLE in environment:
                _write_to_pipe(Path(f"{environment[PIPE_VARIABLE]}{rank}.pipe"))

    def stuck(self) -> tuple[StuckCollective, ...]:
        """Returns the collectives that ranks wait in, by what their processes have written."""
        for rank, places in self._files.items():
            for place in places:
                self._read_if_new(rank, place)
        return stuck_collectives([dump for _, dump in self._read.values()])

    def _read_if_new(self, rank: int, place: Path) -> None:
        """Reads a file that is new; one of an earlier run, of another user or no dump is left."""
        found = stat_regular(place)
        if found is None or found.st_uid != os.getuid() or found.st_size > MAX_DUMP_BYTES:
            return
        before = self._read.get(rank)
        is_known = before is not None and before[0] >= found.st_mtime_ns
        if is_known or found.st_mtime < self._since_unix_s[rank]:
            return
        try:
            dump = read_dump(place, rank, self._folders.get(rank, ""))
        except UnreadableRecords:
            return  # it may be half written: the next look finds it whole
        self._read[rank] = (found.st_mtime_ns, dump)

    def _environment(self, pid: int) -> dict[str, str]:
        """Returns the variables that a process was started with; empty where nobody may know."""
        try:
            with (self._proc / str(pid) / "environ").open("rb") as file:
                content = file.read(MAX_ENVIRONMENT_BYTES)
        except OSError:
            return {}
        pairs = (each.partition("=") for each in content.decode(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs if name}


def _started_unix_s(pid: int) -> float:
    """Returns when a process was started; now where nobody can tell."""
    process = process_of(pid)
    return time.time() if process is None else process.create_time()


def _places(environment: Mapping[str, str], rank: int) -> Iterator[Path]:
    """Yields where torch may write the file of a rank."""
    named = [environment[name] for name in FILE_VARIABLES if environment.get(name)]
    if named:
        yield from (Path(f"{stem}{rank}") for stem in named)
        return
    home = environment.get("HOME", "")
    cache = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    if cache:
        yield from (Path(cache) / f"{name}{rank}" for name in FILE_NAMES)
    yield Path(f"{OLD_FILE}{rank}")


def _write_to_pipe(pipe: Path) -> bool:
    """Asks for a dump; returns whether somebody listens. Never waits, and writes to nothing else
    than a pipe."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # nobody has it open for reading, or it is not there
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        os.write(descriptor, b"1")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
