"""Begins tracing in a process that has torch."""

from __future__ import annotations

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
    version = getattr(torch, "__version__", "of no version")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        _give_up(session, f"torch {version} is too old: tracing needs 2.1 or newer")
        return
    try:
        from traceml.trace import hooks

        hooks.install(session)
    except (ImportError, AttributeError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        _give_up(session, f"torch {version} has not the hooks we know ({what})")


def _give_up(session: Session, reason: str) -> None:
    session.stop()
    place = session.run_folder / MARKS / TROUBLE_MARK
    try:
        place.parent.mkdir(exist_ok=True)
        with Path(place).open("x") as file:  # the first process to say so is enough
            file.write(reason)
    except FileExistsError:
        return
    except OSError:
        pass  # nowhere to write: then every process says so itself
    session.say(f"tracing is off: {reason}")
