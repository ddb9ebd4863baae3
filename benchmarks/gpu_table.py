"""The table of `make gpu`: written anew after each line, so that none is lost if time runs out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.faults.report import grid

HEAD = ["part", "what", "said", "step", "what-if", "seconds", "right"]
NOT_FINISHED = "not finished"
MAX_COMPLAINT = 160


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `None` is not measured."""

    part: str
    what: str
    said: str = "–"
    step_ms: float | None = None
    what_if_error: float | None = None
    complaint: str = ""
    """What is wrong; empty where all is right."""
    seconds: float | None = None
    """Wall time, the wait for a turn at the GPU included."""
    waited_s: float = 0.0
    """How much of it was that wait, where it is known."""
    details: str = ""
    """Printed with the line, and no part of the table."""
    not_predicted: str = ""
    """Why no step time was predicted where one could be checked."""

    def cells(self) -> list[str]:
        """The line's words."""
        step = "–" if self.step_ms is None else f"{self.step_ms:.1f} ms"
        error = "none made" if self.not_predicted else "–"
        if self.what_if_error is not None:
            error = f"{self.what_if_error:.1%}"
        right = self.complaint[:MAX_COMPLAINT] or "yes"
        return [self.part, self.what, self.said, step, error, self._seconds(), right]

    def _seconds(self) -> str:
        if self.seconds is None:
            return "–"
        waited = f" ({self.waited_s:.0f} of them waiting)" if self.waited_s >= 1 else ""
        return f"{self.seconds:.0f}{waited}"


class Table:
    """The lines that are planned, each with what has come of it so far; threads may add to it."""

    def __init__(self, machine: str, planned: Sequence[Line], file: Path | None = None) -> None:
        self._machine = machine
        self._lines = {(line.part, line.what): line for line in planned}
        self._file = file
        self._began_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def lines(self) -> list[Line]:
        """All of them, in the order of the plan."""
        return list(self._lines.values())

    def add(self, line: Line) -> None:
        """Print a line that is finished, and write the table with it."""
        with self._lock:
            self._lines[line.part, line.what] = line
            print(*line.cells(), line.complaint[MAX_COMPLAINT:], sep="  ")
            print(line.details, end="\n" if line.details else "", flush=True)
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.write_text(self.text() + "\n")

    def text(self) -> str:
        """The machine, the table and the totals, as markdown."""
        lines = self.lines
        right = sum(not line.complaint for line in lines)
        errors = [line.what_if_error for line in lines if line.what_if_error is not None]
        minutes = (time.monotonic() - self._began_s) / 60
        totals = [f"{right} of {len(lines)} lines right", f"{minutes:.1f} minutes"]
        if errors:
            not_made = sum(bool(line.not_predicted) for line in lines)
            worst = f"{max(errors):.1%} worst of {len(errors)}"
            left_out = f", {not_made} not made" if not_made else ""
            totals.append(f"what-if error {median(errors):.1%} median, {worst}{left_out}")
        rows = [HEAD, *(line.cells() for line in lines)]
        notes = [
            f"No step time was predicted for {line.what}: {line.not_predicted}."
            for line in lines
            if line.not_predicted
        ]
        return "\n\n".join([self._machine, grid(rows), " · ".join(totals), *notes])
