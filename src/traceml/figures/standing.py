"""What is known about a run besides its numbers: its state, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from traceml.figures.page import RunState
from traceml.model.run import Manifest

_BY_A_PERSON = {130: "interrupted", 143: "asked to end"}
"""Exit statuses of a shell for signals that a person sends, which are no failure."""


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run, apart from its measurements."""

    manifest: Manifest
    state: RunState
    exit_status: int | None
    now_unix_s: float
    output: tuple[str, ...] | None
    """The last lines that the training printed; `None` where they were not kept."""
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def is_live(self) -> bool:
        """Whether the run is in progress."""
        return self.state == "live"

    @property
    def state_words(self) -> str:
        """The state in words."""
        if self.state == "failed" and self.exit_status is not None:
            verb = _BY_A_PERSON.get(self.exit_status, "failed")
            return f"{verb} with status {self.exit_status}"
        return "lost: its end was not recorded" if self.state == "lost" else self.state


def moment(unix_s: float) -> str:
    """Returns a date and time with its time zone."""
    try:
        when = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):  # beyond any calendar
        return "n/a"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
