"""Charges time inside a step to its cause: logging, compiling, waiting for the device, and others.

Causes nest: a logged value is read from the device, garbage is collected while a batch is collated.
Each nanosecond is charged once, to the innermost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from traceml.steps.events import SPEND, SPEND_WAITING, SYNC
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session


class Spending:
    """What the training thread spends on causes; a cause in another thread holds up nobody."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.charged_ns = 0
        """What has been charged so far, to whatever cause but garbage collection."""
        self.collected_ns = session.collections.total_ns
        """What garbage collection has taken so far, as the only item."""
        self.charge = session.guard(self._charge, decides=False)
        """A cause ends: takes it, when it began, and what had been charged and collected then."""

    def _charge(self, cause: int, began_ns: int, spent_ns: int) -> None:
        session, collected_ns = self._session, self.collected_ns[0]
        if collected_ns < session.recorder.noted_ns:
            return  # inside a collection, which is charged as a whole
        own = perf_counter_ns() - began_ns - (self.charged_ns + collected_ns - spent_ns)
        self.charged_ns += own
        kind = SPEND_WAITING if cause == SYNC else SPEND
        session.recorder.note_spent(kind, cause, own)

    def timed(self, cause: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with the time of its calls charged to a cause."""

        collected_ns = self.collected_ns

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(*arguments, **options)
            spent_ns = self.charged_ns + collected_ns[0]
            began_ns = perf_counter_ns()
            try:
                try:
                    return function(*arguments, **options)
                finally:
                    self.charge(cause, began_ns, spent_ns)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(call)
