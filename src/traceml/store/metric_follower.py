"""Follows the metrics that a script logs: every metric's history step by step, or in a few
numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from traceml.store.json_lines import MAX_INTEGER, decode_lines
from traceml.store.line_files import LineFollower
from traceml.store.logged import MESSAGE_FILES, decode, fold, reduce_metrics
from traceml.store.records import LoggedMetric


@dataclass(slots=True)
class Logged:
    """One metric of one process, in the order of logging."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class _Message(msgspec.Struct):
    kind: str
    step: Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None
    values: dict[str, float | str | None] = {}


_decoder = msgspec.json.Decoder(_Message)


class MetricFollower:
    """The metrics of one process."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFollower(path)
        self.metrics: dict[str, Logged] = {}

    def refresh(self) -> None:
        """Reads what is new; a file that was thinned is read again."""
        lines, is_anew = self._lines.read_new()
        if is_anew:
            self.metrics = {}
        for message in _decoded(lines):
            for name, value in message.values.items():
                number = _number(value)
                if number is not None and message.step is not None:
                    logged = self.metrics.setdefault(name, Logged())
                    logged.steps.append(message.step)
                    logged.values.append(number)


def _decoded(lines: Iterable[bytes]) -> Iterator[_Message]:
    logged = (line for line in lines if b'"metrics"' in line[:64])
    for message in decode_lines(logged, _decoder):
        if message.kind == "metrics":
            yield message


def _number(value: float | str | None) -> float | None:
    """Returns a number; one that JSON cannot express was written as text."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


class LiveMetrics:
    """What all processes of a run have logged so far, in a few numbers per metric.

    Of a file that was read before, only what is new is read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _FileTotals] = {}
        self._found: tuple[LoggedMetric, ...] = ()

    def refresh(self) -> tuple[LoggedMetric, ...]:
        """Returns every metric's history in a few numbers, as the final summary would have it."""
        for path in sorted(self._folder.glob(MESSAGE_FILES)):
            self._files.setdefault(path, _FileTotals(path))
        changed = [each.refresh() for each in self._files.values()]
        if any(changed):
            known = [message for each in self._files.values() for message in each.messages]
            self._found = reduce_metrics(known)
        return self._found


class _FileTotals:
    """The totals of one process's messages."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFollower(path)
        self.messages: list[dict[str, Any]] = []
        """What the file says of metrics, in two messages at most."""

    def refresh(self) -> bool:
        """Reads what is new; a file that was thinned is read again. Returns whether anything is."""
        lines, is_anew = self._lines.read_new()
        if not lines and not is_anew:
            return False
        earlier = [] if is_anew else self.messages
        self.messages = fold([*earlier, *decode(b"\n".join(lines))])
        return True
