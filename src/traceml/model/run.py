"""What is known about a run when it starts, and when it ends."""

from __future__ import annotations

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
