"""Signals on their way to the training command, as it would get them without us.

The command shares our process group, so what a terminal sends (Ctrl-C) reaches it directly and must
not be passed on a second time; what somebody sends to us alone must be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
POLL_S = 0.05
"""How often children are looked at where signals cannot be waited for (macOS)."""


def _sent_by_a_process(code: int) -> bool:
    """SI_USER, SI_QUEUE and SI_TKILL are zero or less; a terminal's signals come from the kernel."""
    return code <= 0


@contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Hold signals back so that none is lost; yields what a child does to be rid of that."""
    if not hasattr(signal, "sigtimedwait"):
        before = {number: signal.getsignal(number) for number in PASSED_ON}
        for number in PASSED_ON:
            signal.signal(number, lambda *_: None)  # a handler, unlike SIG_IGN, is not inherited
        yield lambda: None
        for number, handler in before.items():
            signal.signal(number, handler)
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))
    try:
        yield lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask) and None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def next_signal(timeout_s: float) -> tuple[int, bool] | None:
    """The next signal to us and whether it must be passed on; `None` when the time is up.

    SIGCHLD comes as any other. To be called inside `held`.
    """
    if not hasattr(signal, "sigtimedwait"):
        time.sleep(min(timeout_s, POLL_S))
        return None
    found = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), timeout_s)
    if found is None:
        return None
    return found.si_signo, _sent_by_a_process(found.si_code)


def pass_on(pid: int, number: int) -> None:
    """Send a signal to the training command, if it is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait(process: subprocess.Popen[bytes], on_child: Callable[[], None] = lambda: None) -> int:
    """Wait for a process, passing signals on; its status, as a shell would report it.

    `on_child` is called when any child of ours may have ended.
    """
    while process.poll() is None:
        found = next_signal(1.0)
        if found is None:
            continue
        number, ours_alone = found
        if number == signal.SIGCHLD:
            on_child()
        elif ours_alone:
            pass_on(process.pid, number)
    code = process.returncode
    return 128 - code if code < 0 else code
