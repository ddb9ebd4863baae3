"""A training loop on a simulated host and GPU, told to the real step machine event by event.

The GPU works through its queue in order; a kernel begins when the one before it has ended, and not
before it is launched. So the idle time of the simulated GPU is known exactly, moment by moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from factories import count_gpus, make_rank, make_run
from traceml.model import record_layout
from traceml.steps import events
from traceml.steps.events import CAUSE_SHIFT, TIMED, optimizer_ended, step_ended
from traceml.steps.step_machine import StepMachine
from traceml.store.records import STEP_DTYPE, RunRecords

FIELDS = [name for name, _ in record_layout.STEP]
LATENCY_NS = 8_000
"""From launching something until an idle GPU begins it."""
MS = 1_000_000


class SimulatedLoop:
    """A training loop told in words; times are milliseconds."""

    def __init__(
        self,
        clock_offset_ns: int = 123_456_789_000,
        drift: float = 0.0,
        max_ahead_ms: float = 1e6,
    ) -> None:
        self.now = 50 * MS
        self._max_ahead_ns = round(max_ahead_ms * MS)
        """How much work the queue holds; who launches more waits."""
        self._free_at = 0
        """When the GPU has done everything in its queue."""
        self.busy: list[tuple[int, int]] = []
        """When the GPU worked, on the host's clock."""
        self.machine = StepMachine()
        self.rows: list[dict[str, Any]] = []
        self._marks: list[tuple[int, int]] = []
        self._number = self._ends = 0
        self._offset_ns, self._drift = clock_offset_ns, drift
        self._told_at: int | None = None
        self.is_timed = True

    # What the host does

    def runs(self, ms: float) -> SimulatedLoop:
        """The host runs code that launches nothing."""
        self.now += round(ms * MS)
        return self

    def launches(self, count: int, gpu_ms: float, host_ms: float = 0.01) -> SimulatedLoop:
        """The host launches so many kernels."""
        for _ in range(count):
            self.runs(host_ms)
            self.now = max(self.now, self._free_at - self._max_ahead_ns)
            begin = max(self._free_at, self.now + LATENCY_NS)
            self._free_at = begin + round(gpu_ms * MS)
            self.busy.append((begin, self._free_at))
        return self

    def reads(self) -> SimulatedLoop:
        """The host reads a value from the device, for which it waits until that has done all."""
        began = self.now
        self.now = max(self.now, self._free_at) + LATENCY_NS
        return self._tell(events.SPEND_WAITING, self.now - began, events.SYNC << CAUSE_SHIFT)

    def spends(self, cause: int, ms: float) -> SimulatedLoop:
        """The host compiles, logs or collects garbage."""
        self.runs(ms)
        return self._tell(events.SPEND, round(ms * MS), cause << CAUSE_SHIFT)

    # Phases: begin with these, do something, and end them

    def begin(self, kind: int, argument: int = 0) -> SimulatedLoop:
        """Something begins that is marked on the GPU."""
        return self._tell(kind, argument, mark=self._mark())

    end = begin

    def fetch(self, ms: float) -> SimulatedLoop:
        """A batch comes after so long."""
        return self.begin(events.BEGIN_FETCH, 1).runs(ms).end(events.END_FETCH, 8)

    def copy(self, ms: float) -> SimulatedLoop:
        """A batch is copied while the host waits."""
        self.begin(events.BEGIN, events.H2D)
        begin = max(self._free_at, self.now)
        self.now = self._free_at = begin + round(ms * MS)
        return self.end(events.END, events.H2D)

    def forward(self, *launched: tuple[int, float, float]) -> SimulatedLoop:
        """The model is called: numbers of kernels, their GPU times, their launch times."""
        return self._phase(events.BEGIN_FORWARD, events.END_FORWARD, 3, launched)

    def backward(self, *launched: tuple[int, float, float]) -> SimulatedLoop:
        """Gradients are computed."""
        return self._phase(events.BEGIN_BACKWARD, events.END_BACKWARD, 0, launched)

    def optimizer(
        self,
        *launched: tuple[int, float, float],
        closure: Callable[[SimulatedLoop], object] | None = None,
    ) -> SimulatedLoop:
        """The optimizer calls its closure and steps; then the tracer tells which marks the GPU has
        passed."""
        self.begin(events.BEGIN_OPTIMIZER, 1)
        if closure is not None:
            self.begin(events.BEGIN, events.CLOSURE)
            closure(self)
            self.end(events.END, events.CLOSURE)
        reached_at = self._free_at
        for kernels in launched:
            self.launches(*kernels)
        self._ends += 1
        queue = events.QUEUE_WATCHED
        queue |= events.QUEUE_DRY if reached_at <= self.now else 0
        ended = optimizer_ended(self._ends, 1)
        self._tell(events.END_OPTIMIZER, ended, queue * self.is_timed, self._mark())
        return self.resolves() if self.is_timed else self  # nobody asks in other steps

    def replayed(self, graph: int) -> SimulatedLoop:
        """A CUDA graph that holds a whole step has been launched."""
        self._ends += 1
        self.end(events.END_REPLAY, optimizer_ended(self._ends, graph))
        return self.resolves() if self.is_timed else self

    def told(self, kind: int, argument: int, mark: int) -> SimulatedLoop:
        """Something is told that does not happen on the GPU."""
        return self._tell(kind, argument, 0, mark)

    def enters(self) -> SimulatedLoop:
        """`with trace_step(model)` begins."""
        return self.begin(events.ENTER_STEP)

    def exits(self) -> SimulatedLoop:
        """It ends."""
        self._ends += 1
        self.end(events.EXIT_STEP, step_ended(self._ends, False))
        return self.resolves()

    def _phase(
        self, begin: int, end: int, argument: int, launched: tuple[tuple[int, float, float], ...]
    ) -> SimulatedLoop:
        self.begin(begin, argument)
        for kernels in launched:
            self.launches(*kernels)
        return self.end(end, argument)

    # The tracer

    def _mark(self) -> int:
        if not self.is_timed:
            return 0
        self._number += 1
        self._free_at = max(self._free_at, self.now + LATENCY_NS)
        self._marks.append((self._number, self._free_at))
        return self._number

    def resolves(self) -> SimulatedLoop:
        """The tracer tells of the marks that the GPU has passed by now."""
        while self._marks and self._marks[0][1] <= self.now:
            number, passed_at = self._marks.pop(0)
            on_gpu = round((passed_at - self._offset_ns) * (1 + self._drift))
            after = 0 if self._told_at is None else on_gpu - self._told_at
            self._told_at = on_gpu
            self._tell(events.REACH_MARK, after, 0, number)
        return self

    def ends(self) -> SimulatedLoop:
        """The process ends when the GPU is done."""
        self._tell(events.FINISH)
        self.now = max(self.now, self._free_at)
        return self.resolves()

    def _tell(self, kind: int, argument: int = 0, flags: int = 0, mark: int = 0) -> SimulatedLoop:
        machine = self.machine
        flags |= TIMED * self.is_timed
        machine.event += 1
        machine.is_timed = flags & TIMED
        machine.handlers[kind](argument, self.now, mark, flags)
        self.rows += [dict(zip(FIELDS, row, strict=True)) for row in machine.rows.done]
        machine.rows.done.clear()
        return self

    def records(self) -> RunRecords:
        """The run that the agent would have written, with the GPU's counters."""
        rows = [tuple(row.values()) for row in self.rows]
        rank = replace(make_rank(np.array(rows, STEP_DTYPE), gpu=True), loader_workers=2)
        run = replace(make_run(steps=1, gpu=True), ranks=(rank,), samples=())
        first, last = self.steps[0], self.steps[-1]
        length_s = (last["start_ns"] + last["wall_ns"] - first["start_ns"]) / 1e9
        busy = 1 - self.true_idle_ms() * len(self.steps) / 1e3 / length_s
        return count_gpus(
            run,
            from_s=first["start_ns"] / 1e9,
            every_s=length_s / 8,
            busy_share=busy,
            sm_share=0.9 * busy,
        )

    # The truth

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The complete steps without the first two and the last one, which ends early."""
        return [row for row in self.rows if not row["flags"] & record_layout.NO_STEP][2:-1]

    def mean_idle_ms(self) -> dict[str, float]:
        """What the step machine says of a mean step, by cause."""
        return {
            cause: sum(row[f"gpu_idle_{cause}_ns"] for row in self.steps) / len(self.steps) / MS
            for cause in record_layout.IDLE_CAUSES
        }

    def mean_ms(self, field: str) -> float:
        """The mean of one field of the steps."""
        return sum(row[field] for row in self.steps) / len(self.steps) / MS

    def true_idle_ms(self) -> float:
        """How long the GPU had no kernel in a mean step, for whatever reason."""
        first, last = self.steps[0], self.steps[-1]
        begin, end = first["start_ns"], last["start_ns"] + last["wall_ns"]
        worked = sum(max(0, min(b, end) - max(a, begin)) for a, b in self.busy)
        return (end - begin - worked) / len(self.steps) / MS
