"""Observes ranks that end or make no progress, and writes it down at once, in order of time."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from traceml.agent.flight_recorder import FlightRecorder
from traceml.agent.processes import is_alive, process_of
from traceml.agent.stalls import StallWatch, Training
from traceml.model.failure import AgentSaw, Death
from traceml.store.descriptors import wait_until_readable
from traceml.store.failures import keep_stacks, read_seen, write_seen

_ZOMBIE = "Z"

# ioctl(pidfd, PIDFD_GET_INFO) of Linux 6.15 and newer tells anybody who holds the descriptor how a
# process ended, also after its parent has collected it. `struct pidfd_info`: a mask of 8 bytes
# that names what is asked for and what was answered; the wait status is its last 4 of 64.
_INFO_BYTES = 64
_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_INFO_EXIT = 1 << 3


class FailureWatch:
    """What goes wrong in a run, observed from outside; an earlier agent's observations are kept."""

    def __init__(self, folder: Path) -> None:
        seen = read_seen(folder)
        self._folder = folder
        self._ends = list(seen.deaths)
        self._deaths = Deaths()
        self._stalls = StallWatch(
            partial(keep_stacks, folder), seen=seen.stalls, recorder=FlightRecorder()
        )
        self.wakers = self._deaths.wakers

    def follow(self, pid: int) -> None:
        """Watches one more process, unless its end is known already."""
        if all(death.pid != pid for death in self._ends):
            self._deaths.follow(pid)

    def has_ended(self, pid: int) -> bool:
        """Returns whether a process with this number was seen to end, even by an earlier agent."""
        return any(death.pid == pid for death in self._ends)

    def look_for_deaths(self, ranks: dict[int, int], unix_s: float) -> None:
        """Records which processes have ended; `ranks` are their ranks, by pid."""
        ended = self._deaths.poll(ranks, unix_s)
        if ended:
            self._ends += ended
            self._stalls.read_recorder()
            self._write()

    def look_for_stalls(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> None:
        """Records whether the working ranks make no progress, or do again."""
        if self._stalls.update(ranks, now_s, unix_s):
            self._write()

    @property
    def seen(self) -> AgentSaw:
        """Everything that was observed so far."""
        return AgentSaw(tuple(self._ends), tuple(self._stalls.stalls))

    def _write(self) -> None:
        write_seen(self._folder, self.seen)


class Deaths:
    """The ends of the ranks' processes.

    Linux wakes us at a process's end. How it ended it says until its parent has collected it, and
    since Linux 6.15 also afterwards: whatever program stands between the rank and us (`timeout`,
    a shell) does not hide it. Elsewhere we look from time to time and learn only that it is gone.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int | None] = {}
        """By pid; `None` where the system has none."""

    def follow(self, pid: int) -> None:
        """Watches one more process; one that is gone already is reported by the next `poll`."""
        if pid in self._descriptors:
            return
        try:
            self._descriptors[pid] = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            self._descriptors[pid] = None

    def wakers(self) -> list[int]:
        """Returns descriptors that become readable when a process ends."""
        return [each for each in self._descriptors.values() if each is not None]

    def poll(self, ranks: dict[int, int], unix_s: float) -> list[Death]:
        """Returns the processes that have ended since the last call; `ranks` are their ranks, by
        pid."""
        wakers = self.wakers()
        readable = wait_until_readable(wakers, 0) if wakers else set()
        ended = [
            pid
            for pid, descriptor in self._descriptors.items()
            if (descriptor in readable if descriptor is not None else _is_gone(pid))
        ]
        return [Death(ranks.get(pid, 0), pid, unix_s, self._let_go(pid)) for pid in ended]

    def _let_go(self, pid: int) -> int | None:
        status = _status_of_uncollected(pid)
        descriptor = self._descriptors.pop(pid)
        if descriptor is not None:
            if status is None:
                status = _status_of_collected(descriptor)
            os.close(descriptor)
        return status


def _is_gone(pid: int) -> bool:
    process = process_of(pid)
    return process is None or not is_alive(process)


def _status_of_uncollected(pid: int) -> int | None:
    """Returns how a process ended, as a shell reports it, before its parent has collected it."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return _as_in_a_shell(int(values[-1])) if values[0] == _ZOMBIE else None
    except (OSError, ValueError, IndexError):
        return None


def _status_of_collected(descriptor: int) -> int | None:
    """Returns the same after its parent has collected it; `None` where the kernel does not tell."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    (answered,) = struct.unpack_from("=Q", info, 0)
    (status,) = struct.unpack_from("=i", info, _INFO_BYTES - 4)
    return _as_in_a_shell(status) if answered & _INFO_EXIT else None


def _as_in_a_shell(wait_status: int) -> int | None:
    try:
        code = os.waitstatus_to_exitcode(wait_status)
    except ValueError:
        return None
    return 128 - code if code < 0 else code
