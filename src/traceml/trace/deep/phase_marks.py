"""Marks of one step that no call of a layer makes: where the model's call begins and ends, as the
forward phase is timed, and where the rank waits for others.

The layers' own times leave out what wrappers and hooks around the model do: this is where the whole
phase is known from, in the very steps whose layers are timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from traceml.trace.compiling import is_compiling
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_times import FORWARD
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.models import Models
from traceml.trace.session import Session


class ForwardCalls:
    """Sees the calls of models as they are timed in every step."""

    def __init__(self, session: Session, models: Models, marks: LayerMarks) -> None:
        self._session, self._models, self._marks = session, models, marks
        self._restores: list[Callable[[], None]] = []
        self._begin_phase = session.guard(marks.begin_phase, failed=marks.fail)
        self._end_phase = session.guard(marks.end_phase, failed=marks.fail)

    def put_in(self) -> None:
        """Mark the calls from here on."""
        for kind, name in self._models.timed_calls():
            self._restores.append(self._session.replace(kind, name, self._marked(kind, name)))

    def take_out(self) -> None:
        """Mark no more of them."""
        while self._restores:
            self._restores.pop()()

    def _marked(self, kind: type, name: str) -> Callable[..., Any]:
        call = getattr(kind, name)

        @functools.wraps(call)
        def marked(model: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return call(model, *arguments, **options)
            is_forward = self._is_forward(model)
            try:
                if is_forward:
                    self._begin_phase(FORWARD)
                result = call(model, *arguments, **options)
                if is_forward:
                    self._end_phase(FORWARD)
                return result
            except BaseException as error:
                if is_forward:
                    self._end_phase(FORWARD)
                drop_our_frames(error)
                raise

        return marked

    def _is_forward(self, model: Any) -> bool:
        """Whether a call is a forward phase: the outermost of a model, and not computed again."""
        return (
            self._marks.is_on
            and get_ident() == self._session.thread
            and not self._session.recorder.forward_of
            and self._models.watches(model)
            and torch.is_grad_enabled()
            and torch._C._current_graph_task_id() < 0
        )


class WaitsForRanks:
    """Sees where this rank waits for others, as communication is timed in every step."""

    def __init__(self, session: Session, marks: LayerMarks) -> None:
        self._told = session.told_of_waiting
        self._note = session.guard(marks.note_wait, any_thread=True, failed=marks.fail)

    def put_in(self) -> None:
        """Mark the waits from here on."""
        self._told.append(self._note)

    def take_out(self) -> None:
        """Mark no more of them."""
        if self._note in self._told:
            self._told.remove(self._note)
