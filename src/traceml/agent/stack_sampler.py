"""Looks at a training thread's Python stack from outside, in bursts, while something is wrong.

py-spy reads the other process's memory and never pauses it (`--nonblocking`); a look that caught
the stack while it changed is torn, and counted. It runs niced, in a process of its own, for two
seconds at a time, so that it outlives a killed agent by no more. After the first bursts, which a
short run needs, the bursts are rarer and rarer and cost less than half a percent of a core.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from traceml.agent.processes import is_alive, process_of
from traceml.agent.stack_reading import TimedStack, read_chrome_trace, read_looks, without_torn
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
NICENESS = 5
"""Lower priority than the training, but not so low that it samples only while the training
waits."""
TIMEOUT_S = 5.0
"""Beyond a burst's length; a py-spy that has not ended by then hangs."""
LAST_S = 1.0
"""How long the end of a run may wait for the current burst."""
MAX_REFUSALS = 2
"""In a row: then py-spy is not allowed to read these processes."""
SIGNAL_EVERY_S = 2.0
MAX_SIGNALS = 20
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


class StackSampler:
    """At most one burst at a time; waits only at the end."""

    def __init__(
        self, py_spy: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._py_spy = find_py_spy() if py_spy is None else py_spy
        self._clock = clock
        self._burst: _PySpy | _Signal | None = None
        self._bursts = 0
        self._refusals = 0
        self._signals = 0
        self._gap_s = 0.0
        self._due_s = 0.0
        self._sampled: dict[int, int] = {}
        """How often each process was looked at."""

    def poll(self, wanted: Sequence[Target]) -> StackBurst | None:
        """Begins a burst if one is due, at the rank that had the fewest; returns one that has
        ended."""
        if self._burst is not None:
            return self._finished()
        if wanted and self._clock() >= self._due_s:
            self._due_s = self._clock() + MAX_GAP_S  # if it cannot even be begun
            self._begin(min(wanted, key=lambda target: self._sampled.get(target.pid, 0)))
        return None

    def finish(self) -> StackBurst | None:
        """Returns what the current burst has seen so far; called at the end of the run."""
        if self._burst is None:
            return None
        self._burst.stop()
        return self._finished(at_once=True)

    def _begin(self, target: Target) -> None:
        thread = training_thread(target.stacks)
        self._sampled[target.pid] = self._sampled.get(target.pid, 0) + 1
        if self._py_spy:
            self._burst = _PySpy(self._py_spy, target, thread)
            return
        question = _Signal(target, self._clock)
        if self._signals < MAX_SIGNALS and thread is not None and ask(target.pid):
            self._signals += 1
            self._burst = question

    def _finished(self, at_once: bool = False) -> StackBurst | None:
        burst = self._burst
        if burst is None or not (burst.is_over() or at_once):
            return None
        self._burst = None
        if isinstance(burst, _Signal):
            self._due_s = self._clock() + SIGNAL_EVERY_S
            return burst.read()
        self._plan(burst.cpu_s)
        found = burst.read()
        self._refusals = self._refusals + 1 if burst.was_refused else 0
        if self._refusals >= MAX_REFUSALS:
            self._py_spy, self._due_s = "", 0.0
        return found

    def _plan(self, cpu_s: float) -> None:
        self._bursts += 1
        if self._bursts < FIRST_BURSTS:
            self._due_s = self._clock()
            return
        self._gap_s = min(MAX_GAP_S, max(GROWTH * self._gap_s, cpu_s / MAX_SHARE_OF_CORE))
        self._due_s = self._clock() + self._gap_s


class _PySpy:
    """One run of py-spy."""

    def __init__(self, program: str, target: Target, thread: TrainingThread | None) -> None:
        self._target = target
        self._folder = folder_of(target.pid)  # now: the process may end before this is read
        self._thread = thread
        self._trace: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is read
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._ends_by_s = time.monotonic() + BURST_S + TIMEOUT_S
        self.cpu_s = 0.0
        self.was_refused = False
        """Whether it could not look into a process that is there."""
        file = self._trace.fileno()
        words = (
            "record --format chrometrace --full-filenames --idle --nonblocking "
            f"--rate {RATE_HZ:.0f} --duration {BURST_S:.0f} --pid {target.pid} "
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
            content, counts = trace.read(), _COUNTS.search(said.read())
            written_unix_s = os.fstat(trace.fileno()).st_mtime
        events = _decoded(content)
        if counts is None:
            self.was_refused = self._process is None or self._process.returncode > 0
            self.was_refused = self.was_refused and _is_there(self._target.pid)
        if not events or counts is None:
            return None
        ident = None if self._thread is None else self._thread.ident
        moments_s = [float(event.get("ts", 0)) * 1e-6 for event in events]
        # A machine without a free core lets it look less often than it was asked to.
        lasted_s = max(max(moments_s) - min(moments_s), 1 / RATE_HZ)
        rate = min(RATE_HZ, int(counts[1]) / lasted_s)
        looks, torn = without_torn(read_chrome_trace(events, ident, rate))
        began_unix_s = written_unix_s - max(moments_s)  # the last ones bear the time of writing
        torn += int(counts[2])
        return _burst(self._target, self._folder, "py-spy", looks, torn, began_unix_s)


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
        return _burst(self._target, self._folder, "signal", looks, 0, self._asked_unix_s)


def _burst(
    target: Target,
    folder: str,
    way: str,
    looks: Sequence[TimedStack],
    torn: int,
    began_unix_s: float,
) -> StackBurst:
    return StackBurst(
        rank=target.rank,
        pid=target.pid,
        way=way,
        looks=sum(look.looks for look in looks) + torn,
        torn=torn,
        samples=tuple(read_looks(looks, began_unix_s, folder)),
    )


def find_py_spy() -> str:
    """Returns the path of py-spy beside this interpreter or on the PATH; empty without one."""
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return shutil.which("py-spy", path=os.pathsep.join(places)) or shutil.which("py-spy") or ""


def _is_there(pid: int) -> bool:
    process = process_of(pid)
    return process is not None and is_alive(process)


def _decoded(content: bytes) -> list[dict[str, Any]]:
    try:
        events = json.loads(content)
    except (ValueError, RecursionError):
        return []
    return [each for each in events if isinstance(each, dict)] if isinstance(events, list) else []
