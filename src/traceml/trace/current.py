"""The one session of this process."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from traceml.model.environment import MAX_STEPS, RING_FOLDER, RUN_FOLDER
from traceml.trace.forked import after_fork
from traceml.trace.session import Session

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


def end() -> None:
    """End the session of this process; a later `start` begins another."""
    global _current
    if _current is not None:
        _current.finish()
        atexit.unregister(_current.finish)
        _current = None
