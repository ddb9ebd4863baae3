"""What was told of a run, and to whom, so that it outlives the process that told it: an agent that
takes over tells nothing twice, and neither do the processes that it starts for trackers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from traceml.model.environment import MARKS
from traceml.store.folder import write_mark
from traceml.store.json_lines import UNDECODABLE, holds_huge_number
from traceml.store.regular_files import read_regular

TOLD_MARK = "told-"
"""Before the receiver: the mark that says what it was told."""
NOTIFIED, COLLECTOR = "notified", "otlp"
"""The receivers beside trackers, which have their own names: who `--notify` names, and the
OpenTelemetry collector."""
END = "end"
"""Stands among the kinds of findings for the end of the run."""


class _ToldContent(Struct, omit_defaults=True):
    findings: dict[str, list[str]] = field(default_factory=dict)
    step: int | None = None


class ToldRecord:
    """What one receiver was told of one run, by us and by processes before us."""

    def __init__(self, folder: Path, receiver: str) -> None:
        self._folder, self._mark = folder, f"{TOLD_MARK}{receiver}"
        self._told = _read(folder / MARKS / self._mark)

    @property
    def findings(self) -> dict[str, list[str]]:
        """The severities that were told of each kind of finding."""
        return self._told.findings

    @property
    def step(self) -> int | None:
        """The step of the last live values that were sent."""
        return self._told.step

    def add(self, kind: str, severity: str) -> None:
        """Writes down that a finding was told."""
        severities = self._told.findings.setdefault(kind, [])
        if severity not in severities:
            severities.append(severity)
            self._write()

    def set_step(self, step: int) -> None:
        """Writes down that the values of a step were sent."""
        self._told.step = step
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk: at worst something is told twice
            write_mark(self._folder, self._mark, msgspec.json.encode(self._told).decode())


def _read(path: Path) -> _ToldContent:
    """Returns what the mark says; nothing where there is none, or it is damaged."""
    try:
        content = read_regular(path)
        return (
            _ToldContent()
            if holds_huge_number(content)
            else msgspec.json.decode(content, type=_ToldContent)
        )
    except (OSError, *UNDECODABLE):
        return _ToldContent()
