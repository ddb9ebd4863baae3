"""What is known about a run when it starts, and when it ends."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is known about a run when it starts."""

    run_name: str
    started_unix_s: float
    command: tuple[str, ...] = ()
    """Without secrets."""
    working_folder: str = ""
    traceml_version: str = ""
    mode: str = "summary"
    profile: str = "essential"
    hostname: str = ""
    boot_id: str = ""
    """What tells its machine's running system from every other: containers often have one hostname,
    and those of one machine see each other's locks. Empty where it is not known."""
    user: str = ""
    """Who ran it, by the name of the account; empty where that is not known."""
    ring_folder: str = ""
    expected_world_size: int | None = None
    nodes: int = 1


DISK_FULL = "The disk was full"
"""How a note begins, and the reason why there are no steps, where the records had no room."""
NO_TORCH = "The script never imported torch"
NO_TRACER = "No Python interpreter loaded the tracer"
"""How the reason begins where there are no steps because nothing that trains was seen."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended, as far as anybody saw it."""

    unix_s: float
    exit_status: int | None = None
    """As a shell would report it; `None` when nobody was there to see it."""
    pid: int | None = None
    """The process whose status that is: the script itself, or a program around it (`timeout`)."""
    reason_without_steps: str | None = None
    """Why there is nothing to analyse, in words for people; `None` where there are steps."""


# Exit statuses in words

FIRST_SIGNAL_STATUS = 129
LAST_SIGNAL_STATUS = 192
"""A shell reports signal n as 128 + n."""


def signal_of(status: int | None) -> int | None:
    """Returns the signal that ended a process with this status; `None` where none did."""
    if status is None or not FIRST_SIGNAL_STATUS <= status <= LAST_SIGNAL_STATUS:
        return None
    return status - 128


def signal_name(number: int) -> str:
    """Returns a signal's name: `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def status_words(status: int) -> str:
    """Returns a status as it follows `exit`: `status 3`, `status 137 (SIGKILL)`."""
    number = signal_of(status)
    return f"status {status}" if number is None else f"status {status} ({signal_name(number)})"


def end_words(status: int) -> str:
    """Returns how a process ended, as it follows its name: `was killed by SIGKILL`, `ended with
    exit status 3`."""
    number = signal_of(status)
    return (
        f"ended with exit status {status}"
        if number is None
        else f"was killed by {signal_name(number)}"
    )
