"""What TraceML itself has to say: on stderr, and never an error of its own."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """One line for people."""
    write(f"traceml: {text}\n")


def write(text: str) -> None:
    """Write to stderr; where nobody listens any more, nothing is said from then on."""
    if sys.stderr is None:  # closed before we came
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # What is stuck in the broken stream's buffer would change our exit status at the end.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as we do
