"""Explicit steps and the cells of a notebook: who says where a step begins, ends and pauses."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from traceml.steps.events import ENTER_STEP, EXIT_STEP, PAUSE, RESUME, step_ended
from traceml.trace.models import Models
from traceml.trace.session import Session


class ExplicitSteps:
    """What `trace_step` and `trace_model_instance` do in a traced process."""

    def __init__(self, session: Session, models: Models) -> None:
        self._session = session
        self._models = models
        self._latest: Callable[[], Any] = lambda: None
        """The model of the last step, if it is still there."""
        self.enter = session.guard(self._enter, any_thread=True)
        self.exit = session.guard(self._exit)
        self.watch = session.guard(models.watch_one, any_thread=True)

    def _enter(self, model: Any) -> None:
        session = self._session
        if session.thread != get_ident():
            session.follow_this_thread()
            if session.thread != get_ident():
                return  # another thread trains already
        if model is not None and self._latest() is not model:
            self._meet(model)
        if not session.identified:
            session.identify()
        if not session.is_explicit:
            session.is_explicit, session.recorder.optimizers = True, 1
        session.explicit_depth += 1
        session.recorder.note_boundary(ENTER_STEP)

    def _meet(self, model: Any) -> None:
        if not self._models.watches(model):
            self._models.watch_one(model)
        self._latest = weakref.ref(model)

    def _exit(self, aborted: bool) -> None:
        session = self._session
        if aborted:
            session.failures.note()
        recorder = session.recorder
        session.explicit_depth = max(0, session.explicit_depth - 1)
        if session.explicit_depth:
            recorder.note_boundary(EXIT_STEP, step_ended(recorder.ends, aborted))
            return
        recorder.ends += 1
        recorder.end_explicit_step(step_ended(recorder.ends, aborted))
        session.after_step()


def watch_cells(session: Session) -> None:
    """Follow the cells of IPython's shell, if this process has one.

    While no cell runs, no time is any step's.
    """
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
