"""Explicit steps: where the script says itself where a step begins and ends."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

from traceml.steps.events import ENTER_STEP, EXIT_STEP, step_ended
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
