"""A run as another tool has it, and what each such place can be asked for.

MLflow, TensorBoard and Weights & Biases know parameters and metrics; what TraceML measures they
know only of runs that were sent there (`traceml push`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from traceml.model.run_values import RunValue, number_of

MAX_UNIX_S = 9.2e9
"""The year 2261, from which on 64 bits cannot count nanoseconds."""


class MetricPoint(NamedTuple):
    """One logged value."""

    value: float
    step: int | None = None
    unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """One run; what the other tool does not know is `None` or empty."""

    source: str
    """The tool: `mlflow`, `tensorboard` or `wandb`."""
    run_id: str
    """What the tool finds the run by."""
    name: str
    status: str | None = None
    """`live`, `finished`, `failed` or `lost`, as for runs of TraceML."""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    params: Mapping[str, RunValue] = field(default_factory=dict)
    last_values: Mapping[str, float] = field(default_factory=dict)
    """The last value of each metric."""
    histories: Mapping[str, Sequence[MetricPoint]] = field(default_factory=dict)
    """All values of each metric; empty where only the last ones were asked for."""
    facts: Mapping[str, RunValue] = field(default_factory=dict)
    """What else is known, by the names of facts in lists of runs: `user`, `host`, `commit` …"""
    statistics: Mapping[str, RunValue] = field(default_factory=dict)
    """Extremes and directions of metrics by key of the run index (`min.loss`), where TraceML sent
    them."""
    was_pushed: bool = False
    """Whether `traceml push` sent it, so that its own files are there."""
    notes: tuple[str, ...] = ()
    """What of it could not be read."""

    @property
    def duration_s(self) -> float | None:
        """How long the run took; `None` where its start or end is not known."""
        if self.started_unix_s is None or self.ended_unix_s is None:
            return None
        return max(0.0, self.ended_unix_s - self.started_unix_s)


class TrackedSource(Protocol):
    """A place where runs come from, other than a logs folder."""

    @property
    def address(self) -> str:
        """Returns the place as users write it."""

    def list_runs(self) -> Iterator[TrackedRun]:
        """Yields every run, with the last values of its metrics. Raises UsageError where the place
        cannot be read."""

    def find_runs(self) -> list[TrackedRun]:
        """Returns the runs that the address names, with histories. Raises RunNotFound."""

    def fetch_files(self, run: TrackedRun, folder: Path) -> bool:
        """Writes the files of a run that `traceml push` sent into a folder; returns whether there
        were such."""


def moment_of(unix_s: float) -> float | None:
    """Returns a moment as a file or a server says it; `None` for what can be none."""
    return unix_s if 0 <= unix_s < MAX_UNIX_S else None


def typed_value(text: str) -> RunValue:
    """Returns the number or truth value that a parameter's text says, or else the text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text) if len(text) < 20 and "_" not in text else text
    except ValueError:
        number = number_of(text)
        return text if number is None else number
