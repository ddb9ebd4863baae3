"""The totals of named regions (`trace_time`), kept in the ring."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from traceml.model.rank import REGIONS_OUTSIDE_STEPS
from traceml.model.record_layout import NOT_MEASURED
from traceml.steps.events import LEAVE_EVALUATION

if TYPE_CHECKING:
    from traceml.trace.session import Session


EVALUATIONS = REGIONS_OUTSIDE_STEPS - {"checkpoint"}
"""A region with one of these names is an evaluation up to its end."""
MAX_PENDING = 4096
"""Timed regions that may wait for the GPU; a loop without steps could enter more."""


class Regions:
    """One line of the ring's table per name: no growth, whatever happens inside a region."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget()
        self.add = session.guard(self._add, any_thread=True)
        self.mark = session.guard(self._mark, any_thread=True)

    def forget(self) -> None:
        """Begin anew: in a forked child the parent's lines are not ours."""
        self._lines: dict[str, list[Any]] = {}
        self._pending: list[tuple[list[Any], Any, Any]] = []

    def _mark(self) -> Any:
        gpu = self._session.recorder.gpu
        return None if gpu is None else gpu.record_now()

    def _add(self, name: str, took: int, began: Any) -> None:
        """One more time through a region; `began` is its first mark on the GPU, if it has one."""
        totals = self._lines.get(name)
        if totals is None:
            totals = self._lines[name] = self._open(name)
        totals[2] += 1
        totals[3] += took
        totals[4] = max(totals[4], took)
        if name in EVALUATIONS and self._session.recorder.followed == get_ident():
            self._session.recorder.note_on_host(LEAVE_EVALUATION, 0, 0, 0, perf_counter_ns())
        ended = None if began is None else self._mark()
        if ended is not None and len(self._pending) < MAX_PENDING:
            if not self._pending:
                self._session.looks.append(self.add_completed)
            self._pending.append((totals, began, ended))
        self._write(totals)

    def _open(self, name: str) -> list[Any]:
        ring = self._session.open()
        line = None if ring is None else ring.open_region()
        return [line, name.encode(errors="replace")[:64], 0, 0, 0, NOT_MEASURED]

    def _write(self, totals: list[Any]) -> None:
        if totals[0] is not None and self._session.ring is not None:
            self._session.ring.write_region(*totals)

    def add_completed(self) -> None:
        """After each step, as long as any wait: add the times of regions the GPU has completed."""
        pending = self._pending
        while pending and pending[0][2].query():
            totals, began, ended = pending.pop(0)
            totals[5] = max(totals[5], 0) + int(began.elapsed_time(ended) * 1e6)
            self._write(totals)
        if not pending:
            self._session.looks.remove(self.add_completed)
