"""The time that the training thread spends on logging: Python's own, and that of known trackers."""

from __future__ import annotations

import functools
import logging
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Any

from traceml.steps.events import LOGGING
from traceml.trace.arrivals import Arrivals
from traceml.trace.session import Session
from traceml.trace.spending import Spending

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


def watch(session: Session, spending: Spending, arrivals: Arrivals) -> None:
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
