"""TraceML's own messages to the user: on stderr, without ever raising."""

from __future__ import annotations

import os
import sys

_paused: list[str] | None = None
"""Messages that wait while a live view has the screen; `None` where none has."""


def say(text: str) -> None:
    """Prints one line."""
    write(f"traceml: {text}\n")


def write(text: str) -> None:
    """Writes to stderr; where stderr is closed, nothing is written from then on."""
    if _paused is not None:
        _paused.append(text)
        return
    if sys.stderr is None:  # closed before we came
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # What is stuck in the broken stream's buffer would change our exit status at the end.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as we do


def pause_messages() -> None:
    """Keeps messages back while a live view has the screen, until `resume_messages`."""
    global _paused
    _paused = [] if _paused is None else _paused


def resume_messages() -> None:
    """Prints the messages that were kept back, and later ones at once."""
    global _paused
    waiting, _paused = _paused or [], None
    for text in waiting:
        write(text)
