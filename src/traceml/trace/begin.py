"""Begins tracing in a process that has torch."""

from __future__ import annotations

import re

import torch

from traceml.model.environment import INTERPRETER_MARK
from traceml.trace.current import current
from traceml.trace.interpreter import introduce
from traceml.trace.interruptions import is_interruption
from traceml.trace.stacks import let_agent_look

OLDEST_TORCH = (2, 1)


def begin() -> None:
    """Set the hooks, if this process is to be traced; where it cannot be, say so and go on."""
    session = current()
    if session is None or not session.active or session.steps is not None:
        return
    session.guard(introduce, any_thread=True)(session.run_folder, INTERPRETER_MARK)
    # Now and not later: a library that asks for the same after us (MPI, say) has the last word.
    session.guard(let_agent_look, any_thread=True)(session.run_folder)
    version = getattr(torch, "__version__", "of no version")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        session.give_up(f"torch {version} is too old: tracing needs 2.1 or newer")
        return
    try:
        from traceml.trace import hooks

        hooks.install(session)
        session.end_with_worker()
    except (ImportError, AttributeError, TypeError) as error:
        if is_interruption(error):
            raise
        what = f"{type(error).__name__}: {error}"
        session.give_up(f"torch {version} lacks something that tracing needs ({what})")
