"""Charges time inside a step to its cause: logging, compiling, waiting for the device, and others.

Causes nest: a logged value is read from the device, garbage is collected while a batch is collated.
Each nanosecond is charged once, to the innermost.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase
from time import perf_counter_ns
from types import FunctionType
from typing import Any

from traceml.steps.events import LOGGING, SPEND, SPEND_WAITING, SYNC
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.script_objects import Arrivals
from traceml.trace.session import Session

TRACKERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_*", "flush")),
    ("tensorboardX.writer", "SummaryWriter", ("add_*", "flush")),
    # `wandb.log` is bound to the run when that begins, maybe before we come: it calls `_log`.
    ("wandb.sdk.wandb_run", "Run", ("log", "_log", "log_artifact")),
    # The functions of `mlflow` itself all go through a client.
    ("mlflow.tracking.client", "MlflowClient", ("log_*",)),
)
"""A module, its class, and the methods that log. `print` is not among them: wrapping it would be
seen by the compiler, which knows it by identity."""


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
        now_ns = perf_counter_ns()
        own = now_ns - began_ns - (self.charged_ns + collected_ns - spent_ns)
        self.charged_ns += own
        kind = SPEND_WAITING if cause == SYNC else SPEND
        session.recorder.note_spent(kind, cause, own, now_ns)

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


def watch_logging(session: Session, spending: Spending, arrivals: Arrivals) -> None:
    """Time every log record and every call of a tracker, whenever the script loads it."""
    call = spending.timed(LOGGING, logging.Logger.callHandlers)
    session.replace(logging.Logger, "callHandlers", call)
    for module, kind, methods in TRACKERS:
        watch_tracker = functools.partial(_watch_tracker, session, spending, kind, methods)
        arrivals.wait_for(module, watch_tracker)


def _watch_tracker(
    session: Session, spending: Spending, kind: str, methods: tuple[str, ...], module: Any
) -> None:
    owner = getattr(module, kind, None)
    for name, method in list(vars(owner).items()) if isinstance(owner, type) else ():
        if type(method) is FunctionType and any(fnmatchcase(name, known) for known in methods):
            session.replace(owner, name, spending.timed(LOGGING, method))
