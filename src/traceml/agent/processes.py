"""Samples each rank's process and its child processes, which are mostly data workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from traceml.model.sample import ProcessSample

PROC = Path("/proc")
MAJOR_FAULTS = 9  # its place in /proc/PID/stat behind the name, which may hold spaces
DATA_WORKER = "pt_data_worker"  # what torch calls a worker's main thread, since 2.6
MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")
REREAD_EVERY = 60  # refreshes: a pid reused between two listings must not stay wrong for ever


@dataclass(frozen=True, slots=True)
class _Reading:
    """One process at one instant; `None` where the system denied the answer."""

    cpu_s: float | None = None
    rss_bytes: int | None = None
    train_cpu_s: float | None = None
    """CPU time of the training thread since it began; only for ranks."""
    queued_s: float | None = None
    """How long the training thread, or a worker's main thread, waited for a CPU core."""
    major_faults: float | None = None
    """Only for ranks."""


class ProcessSampler:
    """Remembers each process it follows: a rate needs two readings of the same process.

    CPU time that a worker spent after the last sample before it ended is not seen. Resident
    sizes of workers count pages they share with the rank once each, as `top` does.
    """

    def __init__(self, training_thread: Callable[[int], int | None] = lambda pid: None) -> None:
        """`training_thread` gives the system's number of a rank's training thread, by its pid.

        Where it is not known, the main thread's accounts are read.
        """
        self._training_thread = training_thread
        self._tree = _ProcessTree()
        self._followed: dict[int, psutil.Process] = {}
        self._before: dict[int, _Reading] = {}
        self._before_s: float | None = None
        self._rank_processes: dict[int, psutil.Process] = {}

    def sample(self, ranks: Mapping[int, int], now_s: float) -> tuple[ProcessSample, ...]:
        """Returns one sample per living rank; `ranks` maps rank to pid, `now_s` is a monotonic
        clock.

        A rank whose process has ended, or whose pid now belongs to another process, has none.
        """
        self._tree.refresh()
        living = {rank: pid for rank, pid in ranks.items() if self._is_rank_alive(rank, pid)}
        self._forget_all_but(ranks)
        # Ranks started by another rank (mp.spawn) and ourselves are nobody's workers.
        apart = frozenset(living.values()) | {os.getpid()}
        below = {pid: self._tree.below(pid, apart) for pid in set(living.values())}

        wanted = set(below).union(*below.values())
        now = {pid: reading for pid in wanted if (reading := self._read(pid)) is not None}
        for pid in now.keys() - below.keys():  # workers
            now[pid] = replace(now[pid], queued_s=_thread_accounts(pid, None)[1])
        for pid in below.keys() & now.keys():
            cpu_s, queued_s = _thread_accounts(pid, self._training_thread(pid))
            now[pid] = replace(
                now[pid],
                train_cpu_s=cpu_s,
                queued_s=queued_s,
                major_faults=_major_faults(pid),
            )
        interval_s = None if self._before_s is None else now_s - self._before_s
        samples = tuple(
            self._sample(rank, pid, below[pid], now, interval_s)
            for rank, pid in sorted(living.items())
            if pid in now
        )
        self._followed = {pid: self._followed[pid] for pid in now}
        self._before, self._before_s = now, now_s
        return samples

    def pids(self) -> frozenset[int]:
        """Returns the ranks' processes and those below them, as of the last sample."""
        return frozenset(self._followed)

    def _sample(
        self,
        rank: int,
        pid: int,
        below: Iterable[int],
        now: Mapping[int, _Reading],
        interval_s: float | None,
    ) -> ProcessSample:
        processes = [process for process in below if process in now]
        command = _command(pid)
        workers = [process for process in processes if _is_worker(process, command)]
        before = self._before.get(pid)
        faults = None if before is None else _growth(before.major_faults, now[pid].major_faults)
        return ProcessSample(
            rank=rank,
            pid=pid,
            cpu_cores=None if before is None else _per_s(self._cpu_growth_s(pid, now), interval_s),
            rss_bytes=now[pid].rss_bytes,
            threads=_threads(self._followed[pid]),
            runqueue_share=self._runqueue_share(pid, now, interval_s),
            major_faults_per_s=_per_s(faults, interval_s),
            workers=len(workers),
            workers_cpu_cores=(
                None
                if before is None
                else _per_s(_sum(self._cpu_growth_s(each, now) for each in processes), interval_s)
            ),
            workers_runqueue_share=max(
                (
                    share
                    for worker in workers
                    if (share := self._runqueue_share(worker, now, interval_s)) is not None
                ),
                default=None,
            ),
            workers_rss_bytes=_whole(_sum(now[worker].rss_bytes for worker in workers)),
            train_thread_cpu_s=now[pid].train_cpu_s,
            train_thread_wait_s=now[pid].queued_s,
            **_limits(self._followed[pid]),
        )

    def _runqueue_share(
        self, pid: int, now: Mapping[int, _Reading], interval_s: float | None
    ) -> float | None:
        """Returns the share of time spent waiting for a core; `None` for a new process."""
        before = self._before.get(pid)
        queued_s = None if before is None else _growth(before.queued_s, now[pid].queued_s)
        share = _per_s(queued_s, interval_s)
        return None if share is None else min(1.0, share)

    def _cpu_growth_s(self, pid: int, now: Mapping[int, _Reading]) -> float | None:
        """Returns the CPU seconds since the last sample; all of them for a new process."""
        was_s = self._before[pid].cpu_s if pid in self._before else 0.0
        return _growth(was_s, now[pid].cpu_s)

    def _is_rank_alive(self, rank: int, pid: int) -> bool:
        """Returns whether the process first seen under this rank still has the pid."""
        process = self._rank_processes.get(rank)
        if process is None or process.pid != pid:
            try:
                process = self._rank_processes[rank] = psutil.Process(pid)
            except (psutil.NoSuchProcess, ValueError):  # gone, or never a pid
                return False
        return bool(process.is_running())

    def _forget_all_but(self, ranks: Mapping[int, int]) -> None:
        for rank in self._rank_processes.keys() - ranks.keys():
            del self._rank_processes[rank]

    def _read(self, pid: int) -> _Reading | None:
        """Returns a reading; `None` where the process has ended, also as a zombie."""
        process = self._followed.get(pid)
        try:
            if process is None or not process.is_running():
                self._before.pop(pid, None)  # what another process with this pid once used
                process = self._followed[pid] = psutil.Process(pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return None
                times = process.cpu_times()
                return _Reading(
                    cpu_s=times.user + times.system, rss_bytes=int(process.memory_info().rss)
                )
        except psutil.NoSuchProcess:  # ZombieProcess is one of them
            return None
        except psutil.AccessDenied:
            return None if process is None else _Reading()


def kill_run(launcher: int) -> None:
    """Kills a launcher and the training below it, with all that the training has started.

    The launcher's agent, which leads a session of its own, stays: it gives the shared memory back.
    """
    training: list[psutil.Process] = []
    try:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(launcher).children():
                with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ends just now
                    if os.getsid(child.pid) == os.getsid(launcher):
                        training += [child, *child.children(recursive=True)]
        for each in training:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # or is another user's
                each.kill()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher, signal.SIGKILL)


class _ProcessTree:
    """The tree of processes, from one list of pids and the parents of new ones.

    A process keeps its parent until that ends, so a known child is read again only then. Reading
    every process each second costs 60 ms on a node with a thousand.
    """

    def __init__(self) -> None:
        self._refreshes = 0
        self._parents: dict[int, int] = {}
        self._children: dict[int, list[int]] = {}

    def refresh(self) -> None:
        pids = frozenset(psutil.pids())
        known = self._parents if self._refreshes % REREAD_EVERY else {}
        self._refreshes += 1
        parents: dict[int, int] = {}
        for pid in pids:
            parent = known.get(pid)
            if parent is None or parent not in pids:
                parent = _parent(pid)
            if parent is not None:
                parents[pid] = parent
        self._parents = parents
        self._children = {}
        for pid, parent in parents.items():
            self._children.setdefault(parent, []).append(pid)

    def below(self, pid: int, apart: frozenset[int]) -> list[int]:
        """Returns every process below `pid`, without those in `apart` and below them."""
        found: list[int] = []
        seen = set(apart)
        unvisited = [pid]
        while unvisited:
            for child in self._children.get(unvisited.pop(), ()):
                if child not in seen:  # pids reused while we read could close a circle
                    seen.add(child)
                    found.append(child)
                    unvisited.append(child)
        return found


def _parent(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).ppid())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _is_worker(pid: int, rank_command: str) -> bool:
    """Returns whether a process below a rank is a worker that the script made, for a loader or
    itself.

    That is a copy of the rank, or what Python's multiprocessing starts. Others are compilers (torch
    keeps a pool of processes), experiment trackers, and programs that the script runs.
    """
    if not rank_command or (command := _command(pid)) in ("", rank_command):
        return True  # one that does not say is counted, as long as it is there
    if any(module in command for module in MULTIPROCESSING):
        return True
    return _text(PROC / str(pid) / "comm").strip() == DATA_WORKER


def _command(pid: int) -> str:
    return _text(PROC / str(pid) / "cmdline")


def _text(path: Path) -> str:
    """Returns a file's text; empty where there is none or the process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _threads(process: psutil.Process) -> int | None:
    try:
        return int(process.num_threads())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _limits(process: psutil.Process) -> dict[str, int]:
    """Returns the limits on a process's address space and data, each with how much of it is in use;
    without those that are not set."""
    if not hasattr(psutil, "RLIMIT_AS"):  # only Linux shows another process's limits
        return {}
    try:
        address_space, _ = process.rlimit(psutil.RLIMIT_AS)
        data, _ = process.rlimit(psutil.RLIMIT_DATA)
        if address_space == data == psutil.RLIM_INFINITY:
            return {}
        held = process.memory_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
    found: dict[str, int] = {}
    if address_space != psutil.RLIM_INFINITY:
        found |= {"address_space_bytes": held.vms, "address_space_limit_bytes": address_space}
    if data != psutil.RLIM_INFINITY:
        found |= {"data_bytes": held.data, "data_limit_bytes": data}
    return found


def _thread_accounts(pid: int, thread: int | None) -> tuple[float | None, float | None]:
    """Returns how long a thread has run, and how long it has waited for a core, in seconds.

    These are the first two numbers of its schedstat, in nanoseconds; that of a process is its main
    thread's.
    """
    process = PROC / str(pid)
    own = thread is not None and thread != pid
    fields = _fields((process / "task" / str(thread) if own else process) / "schedstat")
    return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) == 3 else (None, None)


def _major_faults(pid: int) -> float | None:
    fields = _fields(PROC / str(pid) / "stat", after=")")
    return float(fields[MAJOR_FAULTS]) if len(fields) > MAJOR_FAULTS else None


def _fields(path: Path, after: str = "") -> list[str]:
    """Returns the file's fields; empty where there is none or the process has ended."""
    text = _text(path)
    return text.rpartition(after)[2].split() if after else text.split()


def _growth(before: float | None, now: float | None) -> float | None:
    """Returns the increase; `None` where either value is unknown or the counter decreased."""
    return None if before is None or now is None or now < before else now - before


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum; `None` where one value is unknown, because a partial sum would look
    complete."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _per_s(value: float | None, interval_s: float | None) -> float | None:
    return None if value is None or interval_s is None or interval_s <= 0 else value / interval_s


def process_of(pid: int) -> psutil.Process | None:
    """Returns the process that has this pid now; `None` where there is none."""
    try:
        return psutil.Process(pid)
    except (psutil.NoSuchProcess, ValueError):  # ended already, or never a pid
        return None


def is_alive(process: psutil.Process) -> bool:
    """Returns whether this process still runs; a zombie does not, nor another process with its
    pid."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
