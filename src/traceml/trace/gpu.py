"""The GPU's own clock: pooled CUDA events, asked a few steps later and never waited for.

A mark gets a number, which the event of what happened there carries. Once the GPU has passed it,
another event tells how long after the mark before: in a chain, because CUDA gives distances in
single precision, which is too coarse for long ones.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from traceml.steps import events
from traceml.trace.recorder import Recorder

MAX_PENDING = 4096
"""Marks that the GPU may not have passed yet; a queue deeper than that is not followed."""
MAX_MARKS_PER_STEP = 2048
"""A step of hundreds of micro-batches keeps its host times alone. FSDP2 with a hundred blocks makes
four marks in each of them, for every micro-batch."""
MIN_RESOLVED = 128
"""How many marks are asked for when a step ends, or twice as many as the last step made: keeps
up, never bursts."""
GPU_TIMING_SHARE = 0.003
"""Of the loop's time: what marks, queries and reading them may take of the host."""
MAX_STEPS_BETWEEN = 60
"""However short the steps, one in 61 is timed: a prime, to miss the loop's own rhythms. Early in a
run the gap is no longer than the number of steps timed so far, so that a short run has some too."""
MEMORY_EVERY_NS = 100_000_000
"""Reading the allocator's statistics costs 10 to 30 µs: once per step, but no more often than this.
The allocator's peak covers everything since the last reading, so no new height is missed."""
MEMORY_RETRY_NS = 3_600_000_000_000
"""An allocator of the user's own may keep no statistics: each time it is asked is a failure."""

MAX_HISTORY = 50_000
"""Allocations whose stacks torch keeps for a snapshot."""


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

    def __init__(self, recorder: Recorder, device: int) -> None:
        self._recorder = recorder
        self._device = device
        self._pool: list[Any] = []
        self._pending: deque[tuple[int, Any]] = deque()
        """The marks that the GPU is not known to have passed: number and CUDA event."""
        self._previous: Any = None
        """The CUDA event of the last mark that was told."""
        self._number = 0
        self.latest: Any = None
        """The CUDA event of the last mark."""
        self._stream: tuple[int, Any] = -1, None
        """The last stream: its number, as CUDA names it, and torch's object for it."""
        self._unbroken_from = 0
        """All marks from this one on are on the same stream."""
        self._stream_number = torch._C._cuda_getCurrentRawStream
        self._is_captured = torch._C._cuda_isCurrentStreamCapturing
        # Of the class in C: those of `torch.cuda.Event` call them from Python.
        self._record: Any = torch._C._CudaEventBase.record
        self._query: Any = torch._C._CudaEventBase.query
        self._elapsed_ms: Any = torch._C._CudaEventBase.elapsed_time
        self._new_event: Any = torch.cuda.Event
        self._read_memory = torch._C._cuda_memoryStats
        self._memory_read_at = 0
        self._peaks = (0, 0)
        self._timing = _Timing.ARMED
        self._marks_before = 0
        """The number of the last mark before this step."""
        self._max_resolved = MIN_RESOLVED
        self._steps_timed = self._steps_between = 0
        self._planned_at = perf_counter_ns()
        self._spent_ns = 0
        recorder.timed = recorder.step_ends = recorder.has_new_marks = False
        recorder.untimed_steps, recorder.stream, recorder.gpu_index = 0, -1, device

    # The recorder knows what is marked at present, and calls these only where there is something
    # to do: nothing of this runs in a step that is not timed.

    def mark(self) -> int:
        """A moment on the current stream, in a step that is timed on the GPU."""
        event, recorder = self.record_now(), self._recorder
        if event is None:
            return 0
        self._number = number = self._number + 1
        self._pending.append((number, event))
        self.latest = event
        if self._stream[0] != recorder.stream:
            recorder.stream, self._unbroken_from = self._stream[0], number
        if number - self._marks_before > MAX_MARKS_PER_STEP:
            recorder.timed = False
        return number

    def mark_boundary(self) -> int:
        """The same where a step may end: the next one needs it if it is to be timed."""
        recorder = self._recorder
        is_full = self._number - self._marks_before > MAX_MARKS_PER_STEP and not recorder.step_ends
        mark = 0 if self._timing is _Timing.OFF or is_full else self.mark()
        if len(self._pending) > MAX_PENDING:
            self._lose_marks()
        if recorder.step_ends:
            recorder.step_ends = False
            self._plan(mark)
        return mark

    def record_now(self) -> Any:
        """A CUDA event on the current stream in any step: for regions that the user times."""
        began = perf_counter_ns()
        stream = self._stream_number(self._device)
        if stream and self._is_captured():
            return None
        if stream != self._stream[0]:
            self._stream = stream, torch.cuda.current_stream(self._device)
        event = self._pool.pop() if self._pool else self._new_event(enable_timing=True)
        self._record(event, self._stream[1])
        self._spent_ns += perf_counter_ns() - began
        return event

    def is_on_its_stream(self) -> bool:
        """Whether the current stream is the one that the last mark was made on."""
        stream = self._recorder.stream
        return stream < 0 or bool(self._stream_number(self._device) == stream)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: it must see nothing of us.

        The default stream, number 0, cannot be captured: where it is the current one, as nearly
        always, CUDA is asked no more.
        """
        return bool(self._stream_number(self._device) and self._is_captured())

    def queue_is_dry(self, event: Any) -> bool | None:
        """Whether the GPU is already past this CUDA event."""
        return None if self.is_capturing() else bool(self._query(event))

    # When to time

    def _plan(self, mark: int) -> None:
        """A step has ended: plan the next."""
        if self._timing is _Timing.ON:
            self._plan_after_timed()
        elif self._timing is _Timing.OFF:
            self._recorder.untimed_steps = 0
            self._set(_Timing.ARMED)
        elif mark:
            self._set(_Timing.ON)

    def _plan_after_timed(self) -> None:
        """Time the next step too, or leave so many out that timing stays below its share."""
        now = perf_counter_ns()
        steps_since = self._steps_between + 1
        step_ns = max(1, (now - self._planned_at) // steps_since)
        between = self._spent_ns / (GPU_TIMING_SHARE * step_ns)
        self._planned_at, self._spent_ns = now, 0
        self._steps_between = min(MAX_STEPS_BETWEEN, self._steps_timed, int(between))
        self._steps_timed += 1
        if not self._steps_between:
            self._set(_Timing.ON)
            return
        self._set(_Timing.ARMED if self._steps_between == 1 else _Timing.OFF)
        self._recorder.untimed_steps = self._steps_between - 1

    def _set(self, timing: _Timing) -> None:
        self._timing = timing
        self._recorder.timed = timing is _Timing.ON
        self._max_resolved = max(MIN_RESOLVED, 2 * (self._number - self._marks_before))
        self._marks_before = self._number

    # What has become of the marks

    def resolve(self) -> None:
        """Tell of the marks that the GPU has passed.

        The GPU is asked once per timed step, as that ends. Marks that it has not passed by then are
        told when the next timed step ends: typically less than a tenth of a second later, since
        only short steps are not all timed.
        """
        began, pending = perf_counter_ns(), self._pending
        self._recorder.has_new_marks = False
        if pending and not self.is_capturing():
            for _ in range(self._count_passed(min(self._max_resolved, len(pending)))):
                self._tell(*pending.popleft())
        self._spent_ns += perf_counter_ns() - began

    def _count_passed(self, count: int) -> int:
        """How many of the first so many pending marks the GPU has passed; it passes those on one
        stream in order, so few have to be asked for."""
        pending, query = self._pending, self._query
        if pending[0][0] >= self._unbroken_from:
            return bisect_left(range(count), True, key=lambda place: not query(pending[place][1]))
        return next((place for place in range(count) if not query(pending[place][1])), count)

    def _tell(self, number: int, event: Any) -> None:
        previous, self._previous = self._previous, event
        after_ns = 0
        if previous is not None:
            after_ns = round(self._elapsed_ms(previous, event) * 1e6)
            self._pool.append(previous)
        self._recorder.note_on_host(events.REACH_MARK, after_ns, 0, number)

    def _lose_marks(self) -> None:
        """Wait no longer for half of the marks: the GPU is too far behind."""
        number = 0
        for _ in range(MAX_PENDING // 2):
            number, _ = self._pending.popleft()
        self._previous = None
        self._recorder.note_on_host(events.LOSE_MARKS, 0, 0, number)

    @property
    def outstanding(self) -> int:
        """Marks that the GPU is not known to have passed."""
        return len(self._pending)

    # Memory

    def look_at_memory(self) -> tuple[int, int] | None:
        """Read how much is allocated and reserved, if it is time to; best between forward and
        backward, when activations are alive.

        The allocator's peak is never reset: that number is the user's to read.
        """
        now = perf_counter_ns()
        if now - self._memory_read_at < MEMORY_EVERY_NS or self.is_capturing():
            return None
        self._memory_read_at = now + MEMORY_RETRY_NS  # where this fails
        statistics = self._read_memory(self._device)
        allocated, reserved = (
            statistics[name]["all"] for name in ("allocated_bytes", "reserved_bytes")
        )
        peaks = allocated["peak"], reserved["peak"]
        risen = peaks[0] > self._peaks[0] or peaks[1] > self._peaks[1]
        self._peaks = peaks
        self._memory_read_at = now
        return peaks if risen else (allocated["current"], reserved["current"])

    def note_memory(self, memory: tuple[int, int] | None) -> None:
        """Note what was read."""
        if memory is not None:
            self._recorder.note_on_host(events.SEE_ALLOCATED, memory[0])
            self._recorder.note_on_host(events.SEE_RESERVED, memory[1])

    def look_at_last_memory(self) -> None:
        """The process ends: note what it holds by now."""
        self.note_memory(self.look_at_memory())


def record_memory_history() -> None:
    """Have torch record the stack of every allocation, unless the script has it do so already."""
    is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
    if not is_recording():
        torch.cuda.memory._record_memory_history(max_entries=MAX_HISTORY)


def save_memory_snapshot(place: Path) -> None:
    """Save what the allocator of every device holds; nothing waits for a device."""
    temporary = place.with_name(f".{place.name}")
    with temporary.open("wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    temporary.replace(place)


# Streams, also of a device that is not the current one


def current_stream(numbers: torch.Tensor) -> Any:
    """The stream on which a tensor's device computes at present; `None` for the host."""
    return torch.cuda.current_stream(numbers.device) if numbers.is_cuda else None


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Makes a stream the current one within the `with` block; does nothing for `None`, the host.

    The stream's device becomes the current one first. Otherwise, on leaving a stream of another
    device, torch would allocate memory on the device that was current, even if the script never
    uses it.
    """
    if stream is None:
        yield
        return
    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
