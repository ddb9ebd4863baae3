"""Finished steps as rows of the record layout, held back until the GPU's times for them are known.

The training process tells, mark by mark, when its GPU has passed it. A step that was marked waits
for its last mark, and the steps after it wait with it, so that rows come out in order and complete.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from traceml.model.record_layout import GPU_FIELDS, NOT_MEASURED, STEP
from traceml.steps.events import BODY, CHECKPOINT, EVALUATION, GRAPH, INPUT
from traceml.steps.gpu_idle_marks import IdleAccount
from traceml.steps.open_step import Span

MAX_HELD = 4096
"""Rows that may wait for the GPU; of more, the oldest go out without its times."""

MAX_MOMENTS = 16_384
"""Marks that are remembered: far more than those of the steps that may be outstanding."""

_GPU_PLACE = [name for name, _ in STEP].index(GPU_FIELDS[0])
_PHASES = (INPUT, *BODY, GRAPH)
_NOT_BODY = (INPUT, EVALUATION, CHECKPOINT)

Row = list[Any]
"""The values of a step in the order of the layout, its number plus one at the end."""


class Bounds(NamedTuple):
    """A step on the GPU's timeline, by the numbers of its marks."""

    start: int
    """Where the body begins."""
    end: int
    spans_before: int
    """How many of the step's spans lie before its body."""
    fetches: bool
    """Whether a step without a fetch is one that waited for none."""


class HeldRow(NamedTuple):
    """A row that waits for the GPU, or for one before it that does."""

    row: Row
    bounds: Bounds | None
    spans: list[Span]


class Rows:
    """The rows of one rank, on their way out."""

    def __init__(self) -> None:
        self.done: list[Row] = []
        """What nothing is missing from; whoever takes these empties the list."""
        self._held: deque[HeldRow] = deque()
        self._reached = 0
        """The last mark that the GPU is known to have passed, or that is lost."""
        self._moment = 0
        """When the GPU passed that mark: nanoseconds after the first one."""
        self._moments: dict[int, int] = {}
        """When each mark was passed that a step may still need."""
        self.idle = IdleAccount()

    @property
    def held(self) -> int:
        """How many rows wait for the GPU, or for one that does."""
        return len(self._held)

    def add(self, row: Row, bounds: Bounds | None, spans: list[Span], end_mark: int = 0) -> None:
        """A step has ended, at this mark; without bounds it waits for nothing but those before."""
        if bounds is None and not self._held:
            self.done.append(row)
            self._forget_before(end_mark)
            return
        self._held.append(HeldRow(row, bounds, spans if bounds is not None else []))
        if len(self._held) > MAX_HELD:
            self.done.append(self._held.popleft().row)
        self._release()

    def reach(self, mark: int, after: int, since: int = 0) -> None:
        """The GPU has passed a mark, so long after the one before; it was asked after a moment."""
        self.idle.reach(mark, since)
        self._moment += after
        self._reached = mark
        self._moments[mark] = self._moment
        if len(self._moments) > MAX_MOMENTS:
            self._moments = dict(list(self._moments.items())[MAX_MOMENTS // 2 :])
        if self._held:
            self._release()

    def lose(self, mark: int) -> None:
        """Of the marks up to this one nothing will be heard."""
        self._reached = max(self._reached, mark)
        self._release()
        self.idle.lose_clock()

    def flush(self) -> None:
        """No further mark will come: let everything out as it is."""
        while self._held:
            self._finish(self._held.popleft())

    def _release(self) -> None:
        held = self._held
        while held and (held[0].bounds is None or held[0].bounds.end <= self._reached):
            self._finish(held.popleft())

    def _finish(self, held: HeldRow) -> None:
        if held.bounds is not None:
            start, end, *_ = held.bounds
            times = gpu_times(held.bounds, held.spans, self._moments)
            if times is not None:
                times += self.idle.account(start, end, held.spans, self._moments)
                held.row[_GPU_PLACE : _GPU_PLACE + len(times)] = times
            self._forget_before(end)  # the next step begins there
        self.done.append(held.row)

    def _forget_before(self, first: int) -> None:
        """Drop the moments of marks that no later step needs."""
        if self._moments and next(iter(self._moments)) < first:
            self._moments = {mark: at for mark, at in self._moments.items() if mark >= first}
        self.idle.forget_before(first)

    def as_plain(self) -> dict[str, Any]:
        """What JSON can hold; not what is done."""
        return {
            "held": [tuple(each) for each in self._held],
            "reached": self._reached,
            "moment": self._moment,
            "moments": list(self._moments.items()),
            "idle": self.idle.as_plain(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Rows:
        """The rows that `as_plain` was made of."""
        rows = cls()
        for row, bounds, spans in plain["held"]:
            known = None if bounds is None else Bounds(*bounds)
            rows._held.append(HeldRow(row, known, [tuple(span) for span in spans]))
        rows._reached, rows._moment = plain["reached"], plain["moment"]
        rows._moments = dict(plain["moments"])
        rows.idle = IdleAccount.from_plain(plain["idle"])
        return rows


def gpu_times(bounds: Bounds, spans: list[Span], moments: dict[int, int]) -> list[int] | None:
    """The GPU's times of the layout, in nanoseconds; a phase inside another is charged once.

    `None` where a mark of the step is not known.
    """
    needed = {bounds.start, bounds.end, *(mark for span in spans for mark in span[1:3])}
    if not needed <= moments.keys():
        return None
    sums: dict[int, int] = {}
    body = moments[bounds.end] - moments[bounds.start]
    for index, (phase, began, ended, outer) in enumerate(spans):
        took = moments[ended] - moments[began]
        sums[phase] = sums.get(phase, 0) + took
        if outer is not None:
            sums[outer] = sums.get(outer, 0) - took
        if index >= bounds.spans_before and phase in _NOT_BODY:
            body -= took
    if bounds.fetches:
        sums.setdefault(INPUT, 0)
    waited, *phases = (sums.get(phase, NOT_MEASURED) for phase in _PHASES)
    return [waited, body, *phases]
