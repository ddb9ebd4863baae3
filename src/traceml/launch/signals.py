"""Signals on their way to the training command, as it would get them without us.

Where there is a terminal, the command shares our process group: what the terminal sends (Ctrl-C)
reaches it directly and is not passed on a second time; what somebody sends to us alone is.
Without a terminal it has a group of its own: what is sent to all of ours reaches it once, by us.
A batch system's daemon signals every process of a task, by its descent or by its group: there the
command stays in our group, and what the daemon sends is not passed on a second time.
Behind a live view it has a terminal of its own: what ours sends is passed on to its whole group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

PASSED_ON = tuple(
    signal.Signals[name]
    for name in (
        *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGXCPU"),
    )
)
_FROM_TERMINALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_WATCHED = (*PASSED_ON, signal.SIGCHLD, signal.SIGWINCH)
POLL_S = 0.05
"""How often to check children where signals cannot be waited for (macOS)."""

_CAN_WAIT = hasattr(signal, "sigtimedwait")
_arrived: list[int] = []
"""Signals noted by handlers, where signals cannot be waited for."""


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Blocks signals so that none is lost; yields a function for a child to unblock them."""
    with _held_in_mask() if _CAN_WAIT else _held_by_handlers() as release:
        yield release


@contextmanager
def _held_in_mask() -> Iterator[Callable[[], None]]:
    children_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if children_ignored:  # inherited: our children's statuses would be thrown away
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)

    def release() -> None:
        if children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def release_in_child() -> None:
        if not shares_group:
            os.setpgid(0, 0)
        release()

    shares_group = _terminal_group() is not None or _is_task_of_batch_daemon()
    try:
        yield release_in_child
    finally:
        discard_pending()  # they were for the command, which has ended
        release()


@contextmanager
def _held_by_handlers() -> Iterator[Callable[[], None]]:
    def note(number: int, frame: FrameType | None) -> None:
        _arrived.append(number)

    # A handler, unlike SIG_IGN, is not inherited.
    before = {number: signal.signal(number, note) for number in (*PASSED_ON, signal.SIGWINCH)}
    try:
        yield lambda: None
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _arrived.clear()


def next_signal(timeout_s: float) -> tuple[int, bool] | None:
    """Returns the next signal and whether it must be forwarded; `None` after the timeout.

    SIGCHLD is returned too, where it can be waited for. To be called inside `held`.
    """
    if not _CAN_WAIT:
        return _next_noted(timeout_s)
    found = signal.sigtimedwait(_WATCHED, timeout_s)
    if found is None:
        return None
    # SI_USER, SI_QUEUE and SI_TKILL are zero or less; a terminal's signals come from the kernel.
    is_ours_alone = found.si_code <= 0 and not _is_batch_daemon(found.si_pid)
    return found.si_signo, is_ours_alone


def _is_task_of_batch_daemon() -> bool:
    """Returns whether our process group is that of a task which a batch system started."""
    try:
        leader = Path(f"/proc/{os.getpgrp()}/stat").read_text()
        return _is_batch_daemon(int(leader.rpartition(")")[2].split()[1]))
    except (OSError, ValueError, IndexError):
        return False


def _is_batch_daemon(pid: int) -> bool:
    """Returns whether a process is the one by which Slurm runs the tasks of a job."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd"
    except OSError:
        return False


def _next_noted(timeout_s: float) -> tuple[int, bool] | None:
    """Returns the next signal noted by a handler; taken as the terminal's where that is
    possible."""
    if not _arrived:
        time.sleep(min(timeout_s, POLL_S))
    if not _arrived:
        return None
    number = _arrived.pop(0)
    return number, number not in _FROM_TERMINALS or not _in_foreground()


def _in_foreground() -> bool:
    """Returns whether the terminal's keys send signals to our process group."""
    return _terminal_group() == os.getpgrp()


def _terminal_group() -> int | None:
    """Returns the foreground process group of our terminal; `None` without a terminal."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:  # noqa: PTH123 - no path of anybody's
            return os.tcgetpgrp(terminal.fileno())
    except OSError:
        return None


def discard_pending() -> None:
    """Drops signals that have arrived already."""
    while next_signal(0) is not None:
        continue


def pass_on(pid: int, number: int, ours_alone: bool) -> None:
    """Forwards a signal to the training command, unless it is gone or has received it."""
    try:
        if ours_alone:
            os.kill(pid, number)
        elif os.getsid(pid) != os.getsid(0):  # it has a terminal of its own
            os.killpg(os.getpgid(pid), number)
        elif os.getpgid(pid) != os.getpgrp():  # signals to our group pass it by
            os.kill(pid, number)
        elif number == signal.SIGHUP and os.getsid(0) == os.getpid():
            os.kill(pid, number)  # a closed terminal tells its session's leader alone
    except ProcessLookupError:
        return


def wait(
    process: subprocess.Popen[bytes],
    pid: int,
    on: Mapping[int, Callable[[], None]] | None = None,
) -> int:
    """Waits for a process, forwarding signals to `pid`; returns its status as a shell reports it.

    `on` is called when a signal has come; for SIGCHLD also now and then.
    """
    actions = on or {}
    while process.poll() is None:
        number, ours_alone = next_signal(1.0) or (signal.SIGCHLD, False)
        if number in PASSED_ON:
            pass_on(pid, number, ours_alone)
        if number in actions:
            actions[number]()
    code = process.returncode
    return 128 - code if code < 0 else code
