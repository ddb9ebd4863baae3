"""Marks: small files in the run's folder by which a training process, its agent and the processes
of trackers know of each other. `store/folder.py` has the agent's side of them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from traceml.model.environment import AGENT_MARK, MARKS
from traceml.trace.interruptions import is_interruption

MAX_READ_BYTES = 1 << 20
"""Of a mark; the largest ones hold some hundred logged values."""


def write_mark(run_folder: Path, name: str, content: bytes) -> None:
    """Write a mark so that its reader sees the old or the new one as a whole; raises OSError."""
    place = run_folder / MARKS / name
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_name(f".{name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(place)


def write_first_mark(run_folder: Path, name: str, text: str) -> None:
    """Write a mark that the first process to do so decides; raises FileExistsError in any other,
    and OSError where it cannot be written."""
    place = run_folder / MARKS / name
    place.parent.mkdir(exist_ok=True)
    with place.open("x") as file:
        file.write(text)


def read_mark(run_folder: Path, name: str) -> bytes | None:
    """The content of a mark; `None` where there is none."""
    try:
        with (run_folder / MARKS / name).open("rb") as file:
            return file.read(MAX_READ_BYTES)
    except OSError as error:
        if is_interruption(error):
            raise
        return None


def read_agent_mark(run_folder: Path) -> tuple[int, str]:
    """The process number of the run's agent, and the host that it runs on.

    Raises OSError where no agent has said so yet, and ValueError where the mark is damaged.
    """
    number, host = (run_folder / MARKS / AGENT_MARK).read_text().split()
    return int(number), host


def agent_is_gone(run_folder: Path) -> bool:
    """Whether the run's agent is known to have ended; one on another machine is not seen."""
    try:
        number, host = read_agent_mark(run_folder)
        if host == socket.gethostname():
            os.kill(number, 0)
    except ProcessLookupError as error:
        if is_interruption(error):
            raise
        return True
    except (OSError, ValueError) as error:
        if is_interruption(error):
            raise
    return False
