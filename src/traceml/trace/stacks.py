"""Lets the agent ask for this process's Python stacks, by a signal and without a thread of ours."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import socket
from pathlib import Path
from threading import get_ident, get_native_id
from typing import BinaryIO

from traceml.model.failure import STACKS_SIGNAL_ABOVE_FIRST
from traceml.trace.interruptions import is_interruption
from traceml.trace.marks import read_agent_mark

_STATUS = Path("/proc/self/status")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_DESCENDANTS_ONLY = "1"
"""Yama's usual setting: only whoever started a process may look into it, or whom it allows to."""
_PR_SET_PTRACER = 0x59616D61
_HANDLED = re.compile(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)", re.MULTILINE)

_is_ours = False
"""Whether the signal is handled because we asked for it, here or in the process forked from."""


def answer_with_stacks(path: Path) -> BinaryIO | None:
    """Write the stacks of all threads to this file whenever the signal comes.

    The file begins with the thread that trains, by Python's number and by the system's. It is kept
    open: the answer must need nothing but a `write`. `None` where the system has no such signals,
    or somebody else uses this one.
    """
    global _is_ours
    first = getattr(signal, "SIGRTMIN", None)
    if first is None or not hasattr(faulthandler, "register"):
        return None
    number = first + STACKS_SIGNAL_ABOVE_FIRST
    if signal.getsignal(number) is not signal.SIG_DFL or (not _is_ours and _is_handled(number)):
        return None
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
    file.write(f"training thread 0x{get_ident():016x} native {get_native_id()}\n".encode())
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    _is_ours = True
    return file


def let_agent_look(run_folder: Path) -> bool:
    """Where the system asks for it, allow the run's agent to read this process's stacks.

    Once per process; whether it was allowed. What the agent starts may look as well.
    """
    try:
        if _YAMA.read_text().strip() != _DESCENDANTS_ONLY:
            return False
        agent, host = read_agent_mark(run_folder)
        if host != socket.gethostname():
            return False
    except (OSError, ValueError) as error:  # no Yama, or no agent that said who it is
        if is_interruption(error):
            raise
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_PTRACER, agent, 0, 0, 0) == 0)


def _is_handled(number: int) -> bool:
    """Whether a signal is caught or ignored: a library in C may do so, and Python not know it."""
    try:
        status = _STATUS.read_text()
    except OSError as error:  # not Linux: what Python knows must do
        if is_interruption(error):
            raise
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in _HANDLED.findall(status))
