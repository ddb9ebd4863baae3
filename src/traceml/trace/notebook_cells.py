"""Notebooks: while no cell runs, no time is any step's."""

from __future__ import annotations

import functools
import sys
from typing import Any

from traceml.steps.events import PAUSE, RESUME
from traceml.trace.session import Session


def watch(session: Session) -> None:
    """Follow the cells of IPython's shell, if this process has one."""
    ipython: Any = sys.modules.get("IPython")
    get_shell = getattr(ipython, "get_ipython", None)
    events = getattr(get_shell() if callable(get_shell) else None, "events", None)
    if events is None:
        return
    recorder = session.recorder
    pause = session.guard(lambda: recorder.note_boundary(PAUSE))
    resume = session.guard(lambda: recorder.note_boundary(RESUME))

    def end_cell(*_: Any) -> None:
        if session.thread is not None:
            pause()

    def begin_cell(*_: Any) -> None:
        if session.thread is not None:
            resume()

    for name, callback in (("post_run_cell", end_cell), ("pre_run_cell", begin_cell)):
        events.register(name, callback)
        session.restores.append(functools.partial(events.unregister, name, callback))
