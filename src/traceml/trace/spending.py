"""Charges time inside a step to its cause: logging, compiling, waiting for the device, and others.

Causes nest: a logged value is read from the device, garbage is collected while a batch is collated.
Each nanosecond is charged once, to the innermost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.session import Session
from traceml.trace.steps import SYNC


class Spending:
    """What the training thread spends on causes; a cause in another thread holds up nobody."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.charged_ns = 0
        """What has been charged so far, to whatever cause."""
        self.charge = session.guard(self._charge, any_thread=True)
        """A cause ends: takes it, when it began, and what had been charged by then."""

    def _charge(self, cause: int, began_ns: int, charged_ns: int) -> None:
        session = self._session
        if session.thread != get_ident() or not session.tracing:
            return
        took = perf_counter_ns() - began_ns
        own = took - (self.charged_ns - charged_ns)
        self.charged_ns = charged_ns + took
        tracer = session.tracer
        event = tracer.spend_waiting if cause == SYNC else tracer.spend
        session.recorder.note_on_host(event, (cause, own))

    def timed(self, cause: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with the time of its calls charged to a cause."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(*arguments, **options)
            charged_ns = self.charged_ns
            began_ns = perf_counter_ns()
            try:
                return function(*arguments, **options)
            finally:
                self.charge(cause, began_ns, charged_ns)

        return left_alone(call)
