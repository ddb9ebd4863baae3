"""What is known of a run besides its numbers: whether it goes on, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from traceml.figures.page import RunState
from traceml.model.run import Manifest

_BY_A_PERSON = {130: "interrupted", 143: "asked to end"}
"""Statuses by which a shell says that a signal ended it, not a fault."""


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run, apart from what it measured."""

    manifest: Manifest
    state: RunState
    exit_status: int | None
    now_unix_s: float
    output: tuple[str, ...] | None
    """The last lines that the training printed; `None`: they were not kept."""
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def is_live(self) -> bool:
        """Whether somebody holds the run."""
        return self.state == "live"

    @property
    def state_words(self) -> str:
        """The state as people say it."""
        if self.state == "failed" and self.exit_status is not None:
            verb = _BY_A_PERSON.get(self.exit_status, "failed")
            return f"{verb} with status {self.exit_status}"
        return "lost: its end was not recorded" if self.state == "lost" else self.state


def moment(unix_s: float) -> str:
    """A date and time that means the same to everybody."""
    try:
        when = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):  # beyond any calendar
        return "n/a"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
