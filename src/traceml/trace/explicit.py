"""Explicit steps and the cells of a notebook: who says where a step begins, ends and pauses."""

from __future__ import annotations

import functools
import sys
import weakref
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
        shortcut = session.recorder.shortcut
        self.enter = shortcut("enter_step", session.guard(self._enter, any_thread=True))
        self.exit = shortcut("exit_step", session.guard(self._exit))
        self.watch = session.guard(models.watch_one, any_thread=True)

    def _enter(self, model: Any) -> None:
        session, recorder = self._session, self._session.recorder
        if session.thread != get_ident():
            session.follow_this_thread()
            if session.thread != get_ident():
                return  # another thread trains already
        if model is not None and recorder.step_model() is not model:
            self._meet(model)
        if not recorder.identified:
            session.identify()
        if not recorder.is_explicit:
            recorder.is_explicit, recorder.optimizers = True, 1
        session.find_new_modules()
        recorder.explicit_depth += 1
        recorder.note_boundary(ENTER_STEP)

    def _meet(self, model: Any) -> None:
        if not self._models.watches(model):
            self._models.watch_one(model)
        self._session.recorder.step_model = weakref.ref(model)

    def _exit(self, aborted: bool) -> None:
        session = self._session
        if aborted:
            session.failures.note()
        recorder = session.recorder
        recorder.explicit_depth = max(0, recorder.explicit_depth - 1)
        if recorder.explicit_depth:
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
