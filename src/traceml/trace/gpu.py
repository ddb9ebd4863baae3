"""The GPU's own clock: pooled CUDA events, read a few steps later and never waited for."""

from __future__ import annotations

from collections import deque
from enum import Enum
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from traceml.model.layout import NOT_MEASURED
from traceml.trace import steps
from traceml.trace.timeline import Bounds, Span

PENDING_STEPS = 64
"""Steps whose GPU times may be outstanding; a queue deeper than that is not followed."""
SPANS_PER_STEP = 256
"""Phases timed on the GPU in one step: hundreds of micro-batches keep their host times alone."""
RESOLVED_PER_STEP = 2
"""How many outstanding steps are looked at when a step closes: keeps up, never bursts."""
GPU_TIMING_SHARE = 0.003
"""Of the loop's time: what marks, queries and reading them may take of the host."""
MOST_STEPS_BETWEEN = 60
"""However short the steps, one in 61 is timed: a prime, to miss the loop's own rhythms. Early in a
run the gap is no longer than the number of steps timed so far, so that a short run has some too."""
MEMORY_EVERY_NS = 100_000_000
"""Reading the allocator's statistics costs 10 to 30 µs: once per step, but no more often than this.
The allocator's peak covers everything since the last reading, so no new height is missed."""
MEMORY_RETRY_NS = 3_600_000_000_000
"""An allocator of the user's own may keep no statistics: each time it is asked is a failure."""

_PHASES = (
    steps.INPUT,
    steps.H2D,
    steps.FORWARD,
    steps.BACKWARD,
    steps.OPTIMIZER,
    steps.COMMUNICATION,
    steps.GRAPH,
)
_NOT_BODY = (steps.INPUT, steps.EVALUATION, steps.CHECKPOINT)


class GpuSink(Protocol):
    """Where GPU times go: the ring in production."""

    steps_written: int

    def fill_gpu_times(self, number: int, times: list[int]) -> None:
        """Complete a step that was written before."""

    def mark_final(self, count: int) -> None:
        """Say that the first `count` steps will not change any more."""


class _Timing(Enum):
    """What is marked on the GPU's timeline at present."""

    OFF = "nothing"
    ARMED = "the ends of steps"
    ON = "everything"


class CudaTimeline:
    """Marks on one CUDA device's current stream.

    Long steps are all timed. A mark costs the host about ten microseconds amid a step, so of short
    steps only every so many is: timing takes at most its share of the loop's time.
    """

    def __init__(self, sink: GpuSink, device: int) -> None:
        self._sink = sink
        self._device = device
        self._pool: list[Any] = []
        self._pending: deque[tuple[int, Bounds, list[Span]]] = deque()
        self._stream_key: Any = None
        self._stream: Any = None
        self._current_stream = torch._C._cuda_getCurrentStream
        self._capturing = torch._C._cuda_isCurrentStreamCapturing
        self._record: Any = torch._C._CudaEventBase.record  # with the stream: no look-up
        self._new_event: Any = torch.cuda.Event
        self._read_memory = torch._C._cuda_memoryStats
        self._memory_read_at = 0
        self._peaks = (0, 0)
        self._seen = (NOT_MEASURED, NOT_MEASURED)
        self._timing = _Timing.ARMED
        self._steps_timed = self._steps_off = self._steps_between = 0
        self._planned_at = perf_counter_ns()
        self._spent_ns = 0

    def mark(self) -> Any:
        """A moment on the current stream; `None` in a step that is not timed on the GPU."""
        return self.record_now() if self._timing is _Timing.ON else None

    def mark_boundary(self) -> Any:
        """The same where a step may end: the next one needs it if it is to be timed."""
        return None if self._timing is _Timing.OFF else self.record_now()

    def is_timing(self) -> bool:
        """Whether every phase of the step that is running is marked."""
        return self._timing is _Timing.ON

    def record_now(self) -> Any:
        """A moment on the current stream in any step: for regions that the user asked to time."""
        began = perf_counter_ns()
        if self._capturing():
            return None  # a CUDA graph is being captured: it must see nothing of us
        key = self._current_stream(self._device)
        if key != self._stream_key:
            self._stream_key = key
            self._stream = torch.cuda.current_stream(self._device)
        event = self._pool.pop() if self._pool else self._new_event(enable_timing=True)
        self._record(event, self._stream)
        self._spent_ns += perf_counter_ns() - began
        return event

    def is_on_its_stream(self) -> bool:
        """Whether the current stream is the one that the last mark was made on."""
        key = self._stream_key
        return key is None or self._current_stream(self._device) == key

    def queue_is_dry(self, mark: Any) -> bool | None:
        """Whether the GPU is already past this mark."""
        return None if self._capturing() else bool(mark.query())

    def measure_later(self, number: int, step: Bounds, spans: list[Span]) -> None:
        """A step has ended: remember it if it is timed, finish older ones, plan the next."""
        if step.start is not None and step.end is not None:
            if len(spans) > SPANS_PER_STEP:
                step, spans = step._replace(start=None), []
            self._pending.append((number, step, spans))
            if len(self._pending) > PENDING_STEPS:
                self._sink.mark_final(self._pending.popleft()[0] + 1)
            self._plan_after_timed()
        elif self._timing is _Timing.OFF:
            self._steps_off -= 1
            if self._steps_off <= 0:
                self._timing = _Timing.ARMED
        elif step.end is not None:
            self._timing = _Timing.ON
        if self._pending:
            self.resolve(RESOLVED_PER_STEP)

    def _plan_after_timed(self) -> None:
        """Time the next step too, or leave so many out that timing stays below its share."""
        now = perf_counter_ns()
        steps_since = self._steps_between + 1
        step_ns = max(1, (now - self._planned_at) // steps_since)
        between = self._spent_ns / (GPU_TIMING_SHARE * step_ns)
        self._planned_at, self._spent_ns = now, 0
        self._steps_between = min(MOST_STEPS_BETWEEN, self._steps_timed, int(between))
        self._steps_timed += 1
        if self._steps_between:
            self._timing = _Timing.ARMED if self._steps_between == 1 else _Timing.OFF
            self._steps_off = self._steps_between - 1

    def resolve(self, most: int) -> None:
        """Fill in the GPU times of outstanding steps that the GPU has completed."""
        pending = self._pending
        began = perf_counter_ns()
        for _ in range(min(most, len(pending))):
            number, step, spans = pending[0]
            if self._capturing() or not step.end.query():
                break
            if step.start is not None:
                self._sink.fill_gpu_times(number, _gpu_times(step, spans))
            pending.popleft()
            self._sink.mark_final(number + 1)
            self._recycle(step, spans)
        self._spent_ns += perf_counter_ns() - began

    @property
    def outstanding(self) -> int:
        """Steps that still wait for the GPU."""
        return len(self._pending)

    def look_at_memory(self) -> None:
        """Read the allocator; best between forward and backward, when activations are alive.

        Its peak is never reset: that number is the user's to read.
        """
        now = perf_counter_ns()
        if now - self._memory_read_at < MEMORY_EVERY_NS or self._capturing():
            return
        self._memory_read_at = now + MEMORY_RETRY_NS  # where this fails
        statistics = self._read_memory(self._device)
        allocated, reserved = (
            statistics[name]["all"] for name in ("allocated_bytes", "reserved_bytes")
        )
        peaks = allocated["peak"], reserved["peak"]
        risen = peaks[0] > self._peaks[0] or peaks[1] > self._peaks[1]
        self._seen = peaks if risen else (allocated["current"], reserved["current"])
        self._peaks = peaks
        self._memory_read_at = now

    def memory(self) -> tuple[int, int]:
        """The most bytes allocated and reserved that were seen since last asked."""
        seen, self._seen = self._seen, (NOT_MEASURED, NOT_MEASURED)
        return seen

    def _recycle(self, step: Bounds, spans: list[Span]) -> None:
        """Return a step's marks to the pool, but for the last: the next step begins there."""
        marks = {id(mark): mark for span in spans for mark in span[1:3]}
        marks.update((id(mark), mark) for mark in (step.first, step.start) if mark is not None)
        marks.pop(id(step.end), None)
        self._pool.extend(marks.values())


def _gpu_times(step: Bounds, spans: list[Span]) -> list[int]:
    """The GPU fields of the layout, in nanoseconds; a phase inside another is charged once."""
    sums: dict[int, int] = {}
    body = int(step.start.elapsed_time(step.end) * 1e6)
    for index, (phase, began, ended, outer) in enumerate(spans):
        took = int(began.elapsed_time(ended) * 1e6)
        sums[phase] = sums.get(phase, 0) + took
        if outer is not None:
            sums[outer] = sums.get(outer, 0) - took
        if index >= step.spans_before and phase in _NOT_BODY:
            body -= took
    if step.fetches:
        sums.setdefault(steps.INPUT, 0)
    waited, *phases = (sums.get(phase, NOT_MEASURED) for phase in _PHASES)
    return [waited, body, *phases]
