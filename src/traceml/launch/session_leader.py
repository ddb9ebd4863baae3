"""Leads the terminal session of a command, so that the command itself does not have to.

A session leader cannot change its process group, and its background processes get SIGHUP when it
ends. A script that a shell starts is no leader; behind a live view it must not be one either.
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
    """Makes a new session's first process its leader; returns only in its child.

    The child is the foreground of the terminal on standard input; its pid is written to `report`.
    The leader waits for it, and ends as it ends. No other thread may be running.
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
    """Ends with the signal that ended the child; without another core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)
