"""Leads the session of a command that has a terminal of its own, so that the command need not.

A leader may not change its process group, and what it leaves in the background is hung up on when
it ends. Started by an interactive shell, a script is none; behind a live view it is none either.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import termios
from contextlib import suppress
from typing import NoReturn

_KEYBOARD = 0


def begin_below_leader(report: int) -> None:
    """Make a process that has just begun a session its leader; returns in its child alone.

    The child has standard input as its terminal's foreground; its pid is written to `report`.
    The leader waits for it, and ends as it ends. To be called while no thread runs.
    """
    with suppress(OSError):
        fcntl.ioctl(_KEYBOARD, termios.TIOCSCTTY, 0)
    child = os.fork()
    if child:
        _lead(child, report)
    os.setpgid(0, 0)
    _take_foreground()


def _take_foreground() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))  # or it would stop us
    with suppress(OSError):
        os.tcsetpgrp(_KEYBOARD, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _lead(child: int, report: int) -> NoReturn:
    code = 1
    try:
        os.write(report, str(child).encode())
        os.closerange(_KEYBOARD + 1, os.sysconf("SC_OPEN_MAX"))  # all of them are others' to close
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _take_foreground()  # our end hangs up on the foreground: on nobody but us
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if code < 0:
            _die_of(-code)
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _die_of(number: int) -> None:
    """End as the child did; it has dumped its core already, if anybody wanted one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
