"""Sees ranks end and stand still, and writes it down at once: the first to go is the one to ask."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from traceml.agent.alive import is_alive, process_of
from traceml.agent.stalls import StallWatch, Training
from traceml.model.failure import AgentSaw, Death
from traceml.store.failures import keep_stacks, read_seen, write_seen

_ZOMBIE = "Z"


class FailureWatch:
    """What goes wrong in a run, as seen from outside; what an agent before us saw is kept."""

    def __init__(self, folder: Path) -> None:
        seen = read_seen(folder)
        self._folder = folder
        self._ends = list(seen.deaths)
        self._deaths = Deaths()
        self._stalls = StallWatch(partial(keep_stacks, folder), seen=seen.stalls)
        self.follow, self.wakers = self._deaths.follow, self._deaths.wakers

    def look_for_deaths(self, ranks: dict[int, int], unix_s: float) -> None:
        """Write down which processes have ended; `ranks` are theirs, by pid."""
        ended = self._deaths.look(ranks, unix_s)
        if ended:
            self._ends += ended
            self._write()

    def look_for_stalls(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> None:
        """Write down whether the ranks that are at work stand still, or go on again."""
        if self._stalls.look(ranks, now_s, unix_s):
            self._write()

    @property
    def seen(self) -> AgentSaw:
        """Everything that was seen so far."""
        return AgentSaw(tuple(self._ends), tuple(self._stalls.stalls))

    def _write(self) -> None:
        write_seen(self._folder, self.seen)


class Deaths:
    """The ends of the ranks' processes.

    Linux wakes us at a process's end, and until its parent has buried it, says how it ended.
    Elsewhere we look from time to time and learn only that it is gone.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int | None] = {}
        """By pid; `None` where the system has none."""

    def follow(self, pid: int) -> None:
        """Watch one more process; one that is gone already is seen at the next look."""
        if pid in self._descriptors:
            return
        try:
            self._descriptors[pid] = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            self._descriptors[pid] = None

    def wakers(self) -> list[int]:
        """Descriptors that become readable when a process ends."""
        return [each for each in self._descriptors.values() if each is not None]

    def look(self, ranks: dict[int, int], unix_s: float) -> list[Death]:
        """The processes that have ended since the last look; `ranks` are theirs, by pid."""
        wakers = self.wakers()
        readable = set(select.select(wakers, [], [], 0)[0]) if wakers else set()
        ended = [
            pid
            for pid, descriptor in self._descriptors.items()
            if (descriptor in readable if descriptor is not None else _is_gone(pid))
        ]
        return [Death(ranks.get(pid, 0), pid, unix_s, self._bury(pid)) for pid in ended]

    def _bury(self, pid: int) -> int | None:
        status = _exit_status(pid)
        descriptor = self._descriptors.pop(pid)
        if descriptor is not None:
            os.close(descriptor)
        return status


def _is_gone(pid: int) -> bool:
    process = process_of(pid)
    return process is None or not is_alive(process)


def _exit_status(pid: int) -> int | None:
    """How a process ended, as a shell would say it, while its parent has not yet asked."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if values[0] != _ZOMBIE:
            return None
        code = os.waitstatus_to_exitcode(int(values[-1]))
    except (OSError, ValueError, IndexError):
        return None
    return 128 - code if code < 0 else code
