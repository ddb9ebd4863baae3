"""The one session of this process, and how tracing begins in it."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from traceml.model.environment import INTERPRETER_MARK, MAX_STEPS, RING_FOLDER, RUN_FOLDER
from traceml.model.library_versions import version_numbers
from traceml.trace.forked import after_fork
from traceml.trace.interpreter import introduce
from traceml.trace.interruptions import is_interruption
from traceml.trace.place import is_begun_elsewhere
from traceml.trace.session import Session
from traceml.trace.stacks import let_agent_look

OLDEST_TORCH = "2.1"

_current: Session | None = None


def current() -> Session | None:
    """The session of this process: the one that `init` or `traceml run` asked for, if any did."""
    if _current is None and os.environ.get(RUN_FOLDER):
        ring_folder = os.environ.get(RING_FOLDER)
        limit = os.environ.get(MAX_STEPS, "")
        return start(
            Path(os.environ[RUN_FOLDER]),
            Path(ring_folder) if ring_folder else None,
            int(limit) if limit.isdigit() else None,
        )
    return _current


def start(run_folder: Path, ring_folder: Path | None, max_steps: int | None) -> Session:
    """Begin a session in this process; the hooks come when torch does."""
    global _current
    _current = Session(run_folder, ring_folder, max_steps)
    atexit.register(_current.finish)
    after_fork(_current, is_forked=True)
    after_fork(_current.recorder, followed=0)
    return _current


def begin() -> None:
    """Set the hooks in a process that has torch, if it is to be traced; where it cannot be, say so
    and go on."""
    join_from_this_machine()
    session = current()
    if session is None or not session.active or session.steps is not None:
        return
    session.guard(introduce, any_thread=True)(session.run_folder, INTERPRETER_MARK)
    # Now and not later: a library that asks for the same after us (MPI, say) has the last word.
    session.guard(let_agent_look, any_thread=True)(session.run_folder)
    version = getattr(sys.modules["torch"], "__version__", "of no version")
    if version_numbers(version) < version_numbers(OLDEST_TORCH):
        session.disable(f"torch {version} is too old: tracing needs {OLDEST_TORCH} or newer")
        return
    try:
        from traceml.trace import hooks

        hooks.install(session)
        session.end_with_worker()
    except (ImportError, AttributeError, TypeError) as error:
        if is_interruption(error):
            raise
        what = f"{type(error).__name__}: {error}"
        session.disable(f"torch {version} lacks something that tracing needs ({what})")


def join_from_this_machine() -> None:
    """Where the command that began the run runs on another machine, which has no agent here, have
    one started: `traceml run -- srun …` starts ranks everywhere."""
    if _current is None and is_begun_elsewhere():
        from traceml.trace.init import join_run_of_other_machine

        join_run_of_other_machine()


def end() -> None:
    """End the session of this process; a later `start` begins another."""
    global _current
    if _current is not None:
        _current.finish()
        atexit.unregister(_current.finish)
        _current = None
