"""Begins tracing in a process that has torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from traceml.model.environment import MARKS, TROUBLE_MARK
from traceml.trace.current import current
from traceml.trace.session import Session

OLDEST_TORCH = (2, 1)


def begin() -> None:
    """Set the hooks, if this process is to be traced; where it cannot be, say so and go on."""
    session = current()
    if session is None or not session.active or session.steps is not None:
        return
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST_TORCH:
        _give_up(session, f"torch {torch.__version__} is too old: tracing needs 2.1 or newer")
        return
    try:
        from traceml.trace import hooks

        hooks.install(session)
    except (ImportError, AttributeError) as error:
        _give_up(session, f"torch {torch.__version__} has not the hooks we know: {error}")


def _give_up(session: Session, reason: str) -> None:
    session.stop()
    place = session.run_folder / MARKS / TROUBLE_MARK
    try:
        place.parent.mkdir(exist_ok=True)
        with Path(place).open("x") as file:  # the first process to say so is enough
            file.write(reason)
    except OSError:
        return
    session.say(f"tracing is off in process {os.getpid()}: {reason}")
