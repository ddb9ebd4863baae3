"""Looks at a training thread's Python stack from outside, in bursts.

py-spy reads the other process's memory and never pauses it (`--nonblocking`); a look that caught
the stack while it changed is torn, and counted. It runs niced, in a process of its own, for a few
seconds at a time, so that it outlives a killed agent by no more. With the essential profile it
looks while something is wrong: after the first bursts, which a short run needs, they are rarer and
rarer and cost less than half a percent of a core. With the deep profile it always looks, at a rate
that follows what a look costs here, and in some bursts at a worker of the data loader.

Where py-spy is missing or may not attach, the rank is asked for its stacks by the signal that it
answers to in a hang, sparingly: a signal makes waits inside C libraries return early.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from traceml.agent.processes import is_alive, process_of
from traceml.agent.stack_folding import FoldedStacks
from traceml.agent.stack_reading import (
    TimedStack,
    busiest_thread,
    read_chrome_trace,
    read_looks,
    read_other_looks,
    without_torn,
    worker_thread,
)
from traceml.agent.stacks import (
    TrainingThread,
    ask,
    folder_of,
    stacks_bytes,
    training_stack,
    training_thread,
)
from traceml.model.sample import StackBurst
from traceml.store.regular_files import read_regular

RATE_HZ = 25.0
"""py-spy samples at random moments around this rate, so that no rhythm of the steps can hide from
it."""
BURST_S = 2.0
FIRST_BURSTS = 3
"""Without a pause in between, so that a run of some seconds gets samples."""
MAX_SHARE_OF_CORE = 0.005
"""The mean cost of later bursts."""
GROWTH = 1.5
MAX_GAP_S = 600.0
DEEP_BURST_S = 10.0
FIRST_DEEP_BURST_S = 2.0
"""Of the first ones, so that a view of the run soon has something to show."""
DEEP_RATE_HZ = 40.0
"""With the deep profile, until it is known what a look costs; then within these limits."""
MIN_RATE_HZ, MAX_RATE_HZ = 5.0, 100.0
DEEP_SHARE_OF_CORE = 0.01
WORKER_EVERY = 3
"""With the deep profile, every so many bursts one looks at a worker of the data loader."""
NICENESS = 5
"""Lower priority than the training, but not so low that it samples only while the training
waits."""
TIMEOUT_S = 5.0
"""Beyond a burst's length; a py-spy that has not ended by then hangs."""
LAST_S = 1.0
"""How long the end of a run may wait for the current burst."""
MAX_REFUSALS = 2
"""In a row: then py-spy is not allowed to read these processes."""
MAX_IN_VAIN = 3
"""Bursts at a child of a rank in which it was not seen to be a worker."""
SIGNAL_EVERY_S = 2.0
MAX_SIGNALS = 20
MAX_TRACE_BYTES = 64 << 20
"""Of what py-spy writes in a burst: a few MB with deep stacks and many threads. If it is more, none
of it is read."""
MAX_SAID_BYTES = 1 << 20
ANSWER_S = 0.2
"""A rank that could answer has written its stacks by then."""

_COUNTS = re.compile(rb"Samples: (\d+) Errors: (\d+)")


@dataclass(frozen=True, slots=True)
class Target:
    """A rank whose training thread is sampled."""

    rank: int
    pid: int
    stacks: Path
    """The file that the rank writes its stacks to; it says which thread trains."""
    worker: int | None = None
    """The worker of its data loader that is looked at instead."""

    @property
    def sampled_pid(self) -> int:
        """The process that is looked at."""
        return self.pid if self.worker is None else self.worker


class StackSampler:
    """At most one burst at a time; waits only at the end."""

    def __init__(
        self,
        py_spy: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_deep: bool = False,
    ) -> None:
        self._py_spy = find_py_spy() if py_spy is None else py_spy
        self._clock = clock
        self._is_deep = is_deep
        self._burst: _PySpy | _Signal | None = None
        self._bursts = 0
        self._refusals = 0
        self._worker_refusals = 0
        self._signals = 0
        self._gap_s = 0.0
        self._due_s = 0.0
        self._first_s = 0.0
        """When the first burst began …"""
        self._spent_s = 0.0
        """… and the CPU time of all bursts since."""
        self._rate_hz = DEEP_RATE_HZ if is_deep else RATE_HZ
        self._sampled: dict[int, int] = {}
        """How often each process was looked at."""
        self._not_at_work: Counter[int] = Counter()
        """How often a child of a rank was looked at and not seen to be a worker: it may be
        starting, or be something else."""

    def poll(self, wanted: Sequence[Target], every: int = 1) -> StackBurst | None:
        """Begins a burst if one is due, at the rank that had the fewest; returns one that has
        ended.

        With the deep profile there is time between bursts for all but one of `every`.
        """
        if self._burst is not None:
            return self._finished(every)
        if wanted and self._clock() >= self._due_s:
            self._due_s = self._clock() + MAX_GAP_S  # if it cannot even be begun
            self._first_s = self._first_s or self._clock()
            rank = min(wanted, key=lambda target: self._sampled.get(target.pid, 0))
            self._begin(self._worker_of(rank) or rank)
        return None

    def finish(self) -> StackBurst | None:
        """Returns what the current burst has seen so far; called at the end of the run."""
        if self._burst is None:
            return None
        self._burst.stop()
        return self._finished(at_once=True)

    def _worker_of(self, target: Target) -> Target | None:
        """Returns a worker of the rank's data loader, where it is the turn of one."""
        is_turn = self._is_deep and self._bursts % WORKER_EVERY == 1
        if not is_turn or not self._py_spy or self._worker_refusals >= MAX_REFUSALS:
            return None
        workers = [pid for pid in children_of(target.pid) if self._not_at_work[pid] < MAX_IN_VAIN]
        if not workers:
            return None
        least = min(workers, key=lambda pid: self._sampled.get(pid, 0))
        return replace(target, worker=least)

    def _begin(self, target: Target) -> None:
        thread = training_thread(target.stacks) if target.worker is None else None
        number = self._sampled.get(target.sampled_pid, 0)
        self._sampled[target.sampled_pid] = number + 1
        if self._py_spy:
            self._burst = _PySpy(self._py_spy, target, thread, self._rate_hz, self._length_s())
            return
        question = _Signal(target, self._clock)
        if self._signals < MAX_SIGNALS and thread is not None and ask(target.pid):
            self._signals += 1
            self._burst = question

    def _length_s(self) -> float:
        if not self._is_deep:
            return BURST_S
        return FIRST_DEEP_BURST_S if self._bursts < FIRST_BURSTS else DEEP_BURST_S

    def _finished(self, every: int = 1, at_once: bool = False) -> StackBurst | None:
        burst = self._burst
        if burst is None or not (burst.is_over() or at_once):
            return None
        self._burst = None
        if isinstance(burst, _Signal):
            self._due_s = self._clock() + SIGNAL_EVERY_S
            return burst.read()
        began_s = time.thread_time()
        found = burst.read()
        burst.cpu_s += time.thread_time() - began_s  # reading it is a cost of it, too
        found = None if found is None else replace(found, cpu_s=burst.cpu_s)
        self._bursts += 1
        if self._is_deep:
            self._plan_deep(burst, found, every)
        else:
            self._plan(burst.cpu_s)
        self._count_refusals(burst)
        if found is not None and found.is_of_worker and not found.samples:
            self._not_at_work[burst.pid] += 1
            return None
        return found

    def _count_refusals(self, burst: _PySpy) -> None:
        if burst.is_of_worker:
            self._worker_refusals = self._worker_refusals + 1 if burst.was_refused else 0
            return
        self._refusals = self._refusals + 1 if burst.was_refused else 0
        if self._refusals >= MAX_REFUSALS:
            self._py_spy, self._due_s = "", 0.0

    def _plan(self, cpu_s: float) -> None:
        if self._bursts < FIRST_BURSTS:
            self._due_s = self._clock()
            return
        self._gap_s = min(MAX_GAP_S, max(GROWTH * self._gap_s, cpu_s / MAX_SHARE_OF_CORE))
        self._due_s = self._clock() + self._gap_s

    def _plan_deep(self, burst: _PySpy, found: StackBurst | None, every: int) -> None:
        """Chooses the next rate by what this burst cost, its start included.

        The first bursts have the usual rate and no pause, for short runs. The next one then waits
        until all of them have cost no more than they may since the first one began.
        """
        self._spent_s += burst.cpu_s
        if self._bursts < FIRST_BURSTS:
            self._due_s = self._clock()
            return
        if found is not None and found.looks and burst.cpu_s:
            affordable_hz = DEEP_SHARE_OF_CORE * found.looks / burst.cpu_s
            self._rate_hz = min(MAX_RATE_HZ, max(MIN_RATE_HZ, affordable_hz))
        rested_s = self._clock() + (every - 1) * self._length_s()
        paid_s = self._first_s + self._spent_s / DEEP_SHARE_OF_CORE
        self._due_s = min(self._clock() + MAX_GAP_S, max(rested_s, paid_s))


class _PySpy:
    """One run of py-spy."""

    def __init__(
        self,
        program: str,
        target: Target,
        thread: TrainingThread | None,
        rate_hz: float,
        length_s: float,
    ) -> None:
        self._target = target
        self._folder = folder_of(target.sampled_pid)  # now: it may end before this is read
        self._thread = thread
        self._rate_hz = rate_hz
        self._trace: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is read
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._ends_by_s = time.monotonic() + length_s + TIMEOUT_S
        self.cpu_s = 0.0
        self.was_refused = False
        """Whether it could not look into a process that is there."""
        file = self._trace.fileno()
        words = (
            "record --format chrometrace --full-filenames --idle --nonblocking "
            f"--rate {rate_hz:.0f} --duration {length_s:.0f} --pid {target.sampled_pid} "
            f"--output /dev/fd/{file}"
        )
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [program, *words.split()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(file,),
                start_new_session=True,
            )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        except ProcessLookupError:  # it has ended already
            pass
        except OSError:  # no such program, or no room for another process
            self._process = None

    @property
    def pid(self) -> int:
        """The process that it looks at."""
        return self._target.sampled_pid

    @property
    def is_of_worker(self) -> bool:
        """Whether it looks at a worker of a data loader."""
        return self._target.worker is not None

    def is_over(self) -> bool:
        if self._process is None:
            return True
        if time.monotonic() > self._ends_by_s:
            self._process.kill()
        return self._is_reaped(os.WNOHANG)

    def _is_reaped(self, options: int) -> bool:
        """Returns whether it has ended; then its cost is known."""
        if self._process is None or self._process.returncode is not None:
            return True
        try:
            found, status, usage = os.wait4(self._process.pid, options)
        except ChildProcessError:
            self._process.returncode = -1
            return True
        if not found:
            return False
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return True

    def stop(self) -> None:
        """Makes it write what it has; kills it where that takes too long."""
        if self._process is None or self._is_reaped(os.WNOHANG):
            return
        self._process.send_signal(signal.SIGINT)
        if not self._ends_within(LAST_S):
            self._process.kill()
            self._ends_within(LAST_S)  # one that hangs in the kernel is left behind

    def _ends_within(self, patience_s: float) -> bool:
        deadline_s = time.monotonic() + patience_s
        while not (is_over := self._is_reaped(os.WNOHANG)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return is_over

    def read(self) -> StackBurst | None:
        """Returns what it saw; `None` where that is nothing."""
        with self._trace as trace, self._said as said:
            trace.seek(0)
            said.seek(0)
            content, counts = _read_limited(trace), _COUNTS.search(said.read(MAX_SAID_BYTES))
            written_unix_s = os.fstat(trace.fileno()).st_mtime
        events = _decoded(content)
        if counts is None:
            self.was_refused = self._process is None or self._process.returncode > 0
            self.was_refused = self.was_refused and _is_there(self._target.sampled_pid)
        if not events or counts is None:
            return None
        moments_s = [float(event.get("ts", 0)) * 1e-6 for event in events]
        # A machine without a free core lets it look less often than it was asked to.
        lasted_s = max(max(moments_s) - min(moments_s), 1 / self._rate_hz)
        rate = min(self._rate_hz, int(counts[1]) / lasted_s)
        by_thread = read_chrome_trace(events, rate)
        ident = self._ident(by_thread)
        looks, torn = without_torn(by_thread.pop(ident, []) if ident is not None else [])
        began_unix_s = written_unix_s - max(moments_s)  # the last ones bear the time of writing
        folded = FoldedStacks(self._folder)
        if self.is_of_worker:
            samples = read_other_looks(looks, began_unix_s, folded, True)
        else:
            samples = read_looks(looks, began_unix_s, self._folder, folded)
            for others in by_thread.values():
                samples += read_other_looks(others, began_unix_s, folded, False)
        return StackBurst(
            rank=self._target.rank,
            pid=self._target.pid,
            way="py-spy",
            looks=sum(look.looks for look in looks) + torn + int(counts[2]),
            torn=torn + int(counts[2]),
            samples=tuple(samples),
            frames=folded.frames,
            stacks=folded.stacks,
            lasted_s=lasted_s,
            is_of_worker=self.is_of_worker,
        )

    def _ident(self, by_thread: Mapping[int, Sequence[TimedStack]]) -> int | None:
        """Returns the thread that does the work; `None` where none is known to."""
        if self.is_of_worker:
            return worker_thread(by_thread)
        return busiest_thread(by_thread) if self._thread is None else self._thread.ident


class _Signal:
    """One request by the signal for stacks."""

    def __init__(self, target: Target, clock: Callable[[], float]) -> None:
        self._target = target
        self._folder = folder_of(target.pid)
        self._clock = clock
        self._asked_s, self._asked_unix_s = clock(), time.time()
        self._offset = stacks_bytes(target.stacks)

    def is_over(self) -> bool:
        return self._clock() >= self._asked_s + ANSWER_S

    def stop(self) -> None:
        """Does nothing."""

    def read(self) -> StackBurst | None:
        try:
            content = read_regular(self._target.stacks)
        except OSError:
            return None
        stack = training_stack(
            content[:64].decode(errors="replace"), content[self._offset :].decode(errors="replace")
        )
        looks = [TimedStack(0.0, 1, stack)] if stack else []
        if not looks:
            return None
        folded = FoldedStacks(self._folder)
        samples = read_looks(looks, self._asked_unix_s, self._folder, folded)
        return StackBurst(
            rank=self._target.rank,
            pid=self._target.pid,
            way="signal",
            looks=1,
            torn=0,
            samples=tuple(samples),
            frames=folded.frames,
            stacks=folded.stacks,
        )


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process has started; empty where the system does not say."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:  # the thread has ended
            continue
    return sorted(found)


def find_py_spy() -> str:
    """Returns the path of py-spy beside this interpreter or on the PATH; empty without one."""
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return shutil.which("py-spy", path=os.pathsep.join(places)) or shutil.which("py-spy") or ""


def _is_there(pid: int) -> bool:
    process = process_of(pid)
    return process is not None and is_alive(process)


def _read_limited(trace: IO[bytes]) -> bytes:
    """Returns what is in the file; nothing where that is too much to hold."""
    content = trace.read(MAX_TRACE_BYTES + 1)
    return content if len(content) <= MAX_TRACE_BYTES else b""


def _decoded(content: bytes) -> list[dict[str, Any]]:
    try:
        events = json.loads(content.decode(errors="replace"))  # of a path that is no UTF-8
    except (ValueError, RecursionError):
        return []
    return [each for each in events if isinstance(each, dict)] if isinstance(events, list) else []
