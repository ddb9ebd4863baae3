"""The time that torch.compile takes, out of the phase that it happens in.

Dynamo tells when it begins and ends; nothing is polled, and nothing of ours is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from traceml.steps.events import COMPILE, SPEND
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.script_objects import Arrivals
from traceml.trace.session import Session

DYNAMO_CALLBACKS = "torch._dynamo.callback"
"""Never imported by us: it takes more than a second. Torch before 2.3 has none: silence there."""


class CompileTime:
    """Charges compiling to itself, whichever thread of a backward pass does it."""

    def __init__(self, session: Session, arrivals: Arrivals) -> None:
        self._session = session
        self._depth = 0
        self._began_ns = 0
        self.before_compiling: Callable[[], None] = lambda: None
        """Called before anything is compiled for the loop, be it in a thread of backward."""
        self.after_compiling: Callable[[], None] = lambda: None
        """Called where something was compiled for the loop."""
        self._start = session.guard(self._begin, any_thread=True)
        self._stop = session.guard(self._end, any_thread=True)
        session.forgets.append(self._forget)
        arrivals.wait_for(DYNAMO_CALLBACKS, self._watch)

    def _forget(self) -> None:
        """In a forked child nothing of what the parent compiled will end."""
        self._depth = 0

    def _watch(self, module: Any) -> None:
        handler = getattr(module, "callback_handler", None)
        if handler is None:
            return
        clear = handler.clear

        @functools.wraps(clear)
        def clear_and_return() -> None:
            try:
                try:
                    clear()
                finally:
                    self._register(handler)
            except BaseException as error:
                drop_our_frames(error)
                raise

        self._session.replace(handler, "clear", clear_and_return)  # `torch._dynamo.reset()` does so
        self._session.restores.append(lambda: self._unregister(handler))
        self._register(handler)

    def _register(self, handler: Any) -> None:
        if self._start not in handler.start_callbacks:
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._stop)

    def _unregister(self, handler: Any) -> None:
        if self._start in handler.start_callbacks:
            handler.remove_start_callback(self._start)
            handler.remove_end_callback(self._stop)

    def _begin(self, *_: Any) -> None:
        session = self._session
        if not self._depth:
            mine = session.thread == get_ident() or session.recorder.backwards_open
            if not mine or not session.tracing:
                return
            self.before_compiling()
            if session.thread == get_ident():
                session.recorder.note_collections()
            # Compilers run the model and its gradients on tensors without values: no phases.
            session.tracing = False
            self._began_ns = perf_counter_ns()
        self._depth += 1

    def _end(self, *_: Any) -> None:
        if not self._depth:
            return  # began where nobody trains
        self._depth -= 1
        if self._depth:
            return
        session = self._session
        session.tracing = bool(session.restores)  # unless the hooks went out meanwhile
        self.after_compiling()
        took = perf_counter_ns() - self._began_ns
        if session.thread == get_ident():
            session.recorder.skip_collections()  # the compiler's garbage is part of compiling
            session.recorder.note_spent(SPEND, COMPILE, took)
        else:
            session.recorder.elsewhere_ns += took

    def note_elsewhere(self) -> None:
        """As that backward pass ends, and in the thread that trains: charge it."""
        recorder = self._session.recorder
        took, recorder.elsewhere_ns = recorder.elsewhere_ns, 0
        recorder.note_spent(SPEND, COMPILE, took)
