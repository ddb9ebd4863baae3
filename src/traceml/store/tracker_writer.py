"""What is logged to a tracker, whichever it is, and the interface of the classes that log it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FINDING_PREFIX = "traceml/finding/"
"""Before a finding's kind."""
OWN_PROJECT = "traceml"
"""The project of runs of our own, where the user's settings name none."""
REPORT_TYPE = "traceml-report"
"""The kind of artifact that holds the report."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """The run that is logged."""

    name: str
    traceml_id: str
    """Tells it from all others, wherever its folder goes."""
    folder: Path
    started_unix_s: float
    working_folder: str
    """Where the training command was started."""
    script_run: Mapping[str, str] = field(default_factory=dict)
    """The run that the script has open in the tracker, as `trace/open_trackers.py` describes it;
    empty where it has none."""

    def enter_home(self) -> str:
        """Makes the folder the current one from which the script's relative names are meant, and
        returns it: that of the script, or of the command; where both are gone, that of the run."""
        for folder in (self.script_run.get("folder"), self.working_folder, str(self.folder)):
            try:
                os.chdir(folder or "")
            except OSError:
                continue  # gone by now, as temporary folders are, or somebody else's
            return folder or ""
        return str(self.folder)


@dataclass(frozen=True, slots=True)
class LoggedFinding:
    """A finding that has just become the leading one of its section."""

    kind: str
    severity: str
    text: str
    step: int


@dataclass(frozen=True, slots=True)
class LoggedEnd:
    """What is known when the run is over."""

    step: int
    numbers: Mapping[str, float]
    """Those of `traceml.summary()`, by the same names."""
    texts: Mapping[str, str]
    """Verdict, diagnosis and what to do next."""
    summary_text: str
    files: tuple[Path, ...]
    """The report, if it could be written, and the summary."""
    has_failed: bool


class SwitchedOffWriter:
    """Stands for a tracker that the user has switched off: nothing is logged."""

    def __init__(self, where: str) -> None:
        self.where = where

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs nothing."""

    def log_finding(self, finding: LoggedFinding) -> None:
        """Logs nothing."""

    def finish(self, end: LoggedEnd) -> None:
        """Logs nothing."""

    def close(self) -> None:
        """Has nothing to close."""


class TrackerWriter(Protocol):
    """Logs one run to one tracker. Every method may raise whatever the tracker's package raises,
    and may take as long as that does: nobody waits."""

    @property
    def where(self) -> str:
        """The place that was logged to, in words for people."""

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs live values at a step of the training."""

    def log_finding(self, finding: LoggedFinding) -> None:
        """Logs a finding as it appears."""

    def finish(self, end: LoggedEnd) -> None:
        """Logs the final summary, attaches files, and closes what was opened."""

    def close(self) -> None:
        """Closes what was opened; the run goes on, or its end is unknown."""
