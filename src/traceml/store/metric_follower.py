"""Follows the metrics that a script logs: every metric's history step by step, or in a few
numbers."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator
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


MAX_TOLD = 64
_TOLD = (b'"resumed"', b'"failure"')

_decoder = msgspec.json.Decoder(_Message)


class MetricFollower:
    """The metrics of one process, and what it says of its beginning and its failures."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFollower(path)
        self.metrics: dict[str, Logged] = {}
        self.told: list[bytes] = []
        """Its first messages on how it began and what it raised, undecoded."""

    def refresh(self, known_elsewhere: Container[str] = ()) -> None:
        """Reads what is new; a file that was thinned is read again.

        Metrics that are known from elsewhere are not kept: of a thousand ranks that log the same
        ones, one is enough.
        """
        lines, is_anew = self._lines.read_new()
        if is_anew:
            self.metrics, self.told = {}, []
        self.told += [line for line in lines if any(kind in line[:64] for kind in _TOLD)]
        del self.told[MAX_TOLD:]
        for message in _decoded(lines):
            for name, value in message.values.items():
                number = value_of(value)
                if number is None or message.step is None or name in known_elsewhere:
                    continue
                logged = self.metrics.setdefault(name, Logged())
                logged.steps.append(message.step)
                logged.values.append(number)


def _decoded(lines: Iterable[bytes]) -> Iterator[_Message]:
    logged = (line for line in lines if b'"metrics"' in line[:64])
    for message in decode_lines(logged, _decoder):
        if message.kind == "metrics":
            yield message


def value_of(value: Any) -> float | None:
    """Returns a logged value as a number, which was written as text where JSON has none for it;
    `None` for what is no number."""
    try:
        return None if value is None else float(value)
    except (ValueError, TypeError, OverflowError):
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
