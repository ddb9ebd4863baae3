"""What TraceML itself has to say: on stderr, and never an error of its own."""

from __future__ import annotations

import os
import sys

_unsaid: list[str] | None = None
"""What waits until the screen is free again; `None` where it is."""


def say(text: str) -> None:
    """One line for people."""
    write(f"traceml: {text}\n")


def write(text: str) -> None:
    """Write to stderr; where nobody listens any more, nothing is said from then on."""
    if _unsaid is not None:
        _unsaid.append(text)
        return
    if sys.stderr is None:  # closed before we came
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # What is stuck in the broken stream's buffer would change our exit status at the end.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as we do


def hold_back() -> None:
    """A live view has the screen: say nothing before `speak_again`."""
    global _unsaid
    _unsaid = [] if _unsaid is None else _unsaid


def speak_again() -> None:
    """The screen is free: say what has waited, and everything else at once."""
    global _unsaid
    waiting, _unsaid = _unsaid or [], None
    for text in waiting:
        write(text)
