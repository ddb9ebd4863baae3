"""Which steps are looked at layer by layer: so few that it stays cheap, whatever it costs here.

A burst is a few steps in a row. What it added to their time is measured against the steps before
it, and the next burst waits until that is a small share of the training time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_memory import SavedTensors, can_count_saved, held_bytes
from traceml.trace.deep.layer_names import Layer, layers_of
from traceml.trace.deep.layer_times import OUTSIDE, Mark, OwnTimes, own_times
from traceml.trace.models import KnownOptimizers, Models, outermost, something_is_compiled
from traceml.trace.session import Session

FIRST_BURST = 4
"""Steps before the first burst: the first steps of a run are unlike the others."""
TIMED_STEPS = 2
"""Steps of a burst whose layers are timed."""
MIN_STEPS_BETWEEN = 4
MAX_COST = 0.02
"""Of the training time: what bursts may add. Half of the promised share on a CPU, two thirds of
that on a GPU: what a burst adds is known only when it is over."""
MEMORY_EVERY = 4
"""Every so many bursts one further step is looked at for its memory, which seldom changes."""
MAX_EVALUATED = 8
"""Bursts in a row that were given up because the model was evaluated in each step."""
REMEMBERED_STEPS = 15
"""Steps between bursts whose times are kept, to compare those of a burst with."""
PENDING_STEPS = 50
"""Steps for which the GPU may be behind before the marks of a step are given up."""
LAST_WAIT_S = 0.05

COMPILED = (
    "torch.compile has compiled code of this process: what is inside it cannot be seen by layers"
)
EVALUATED = "the model is evaluated in every step, where no hook may be in: no step could be seen"


class _State(Enum):
    """What the step that runs at present is looked at for."""

    IDLE = "nothing"
    TIMES = "when each layer works"
    MEMORY = "what each layer keeps"


class _Pending(NamedTuple):
    """A step whose marks the GPU may not have passed yet."""

    step: int
    layers: Sequence[Layer]
    marks: list[Mark]
    calls: dict[int, int]


class LayerBursts:
    """Looks at the layers of the models that train, a few steps at a time."""

    def __init__(self, session: Session, models: Models, optimizers: KnownOptimizers) -> None:
        self._session, self._models, self._optimizers = session, models, optimizers
        self._file = LayerFile(session)
        self._events: list[Any] = []
        self._new_event: Any = torch.cuda.Event
        self._guarded_look = session.guard(self._look)
        self._is_on = False
        session.forgets.append(self.forget)
        session.restores.append(self._take_out)
        session.last_looks.append(self._finish)
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child; what the parent had put into torch is out."""
        self._take_out()
        self._file.forget()
        self._wait = FIRST_BURST
        self._bursts = self._evaluated = 0
        self._idle_ns: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._burst_ns: list[int] = []
        self._own_ns = 0
        self._looked_at = 0
        self._layers: list[Layer] = []
        self._pending: deque[_Pending] = deque()

    def begin(self) -> None:
        """Look at layers from here on."""
        if not self._is_on:
            self._is_on = True
            self._session.looks.append(self._guarded_look)

    def _stop(self, why: str | None = None) -> None:
        if why is not None:
            self._file.say(why)
        self._take_out()
        if self._is_on:
            self._is_on = False
            self._session.looks.remove(self._guarded_look)

    def _take_out(self) -> None:
        """Take our hooks out of torch, whatever they have seen so far."""
        self._state = _State.IDLE
        for each in (getattr(self, "_timing", None), getattr(self, "_saving", None)):
            if each is not None:
                each.end()
        self._timing: LayerMarks | None = None
        self._saving: SavedTensors | None = None

    # After each step

    def _look(self) -> None:
        now = perf_counter_ns()
        took, self._looked_at = now - self._looked_at, now
        if self._state is _State.IDLE:
            self._idle_ns.append(took)
            self._wait -= 1
            if self._pending:
                self._tell_passed()
            if self._wait <= 0:
                self._begin_burst()
        else:
            self._burst_ns.append(took)
            self._end_step()
        self._own_ns += perf_counter_ns() - now

    def _begin_burst(self) -> None:
        if something_is_compiled():
            self._stop(COMPILED)
        elif self._file.is_full:
            self._stop()
        else:
            self._burst_ns, self._own_ns = [], 0
            self._layers = layers_of(outermost(self._models.living()))
            if self._layers:
                self._time_next()
            else:
                self._wait = MIN_STEPS_BETWEEN

    def _time_next(self) -> None:
        self._state = _State.TIMES
        record = self._record_event if self._is_on_one_gpu() else None
        self._timing = LayerMarks(self._session, self._layers, record)
        self._timing.begin()

    def _end_step(self) -> None:
        if self._state is _State.TIMES:
            self._end_timed()
        else:
            self._end_memory()

    def _end_timed(self) -> None:
        timing, self._timing = self._timing, None
        assert timing is not None
        timing.end()
        if timing.was_evaluated:
            self._give_up()
            return
        if timing.is_complete:
            self._evaluated = 0
            step = self._session.count_steps()
            self._pending.append(_Pending(step, self._layers, timing.marks, timing.calls))
        if len(self._burst_ns) < TIMED_STEPS:
            self._time_next()
        elif self._bursts % MEMORY_EVERY == 0 and can_count_saved():
            self._state = _State.MEMORY
            self._saving = SavedTensors(self._session, self._layers, self._allocator())
            self._saving.begin()
        else:
            self._end_burst()

    def _end_memory(self) -> None:
        saving = self._saving
        assert saving is not None
        if saving.end():
            line = {
                "step": self._session.count_steps(),
                **held_bytes(self._layers, self._optimizers.living())._asdict(),
                "saved": _by_place(saving.saved_bytes, len(self._layers)),
            }
            if saving.peak_bytes:
                line["peak"] = _by_place(saving.peak_bytes, len(self._layers))
            self._file.write(self._layers, line)
        if saving.is_out:
            self._saving = None
            self._end_burst()

    def _give_up(self) -> None:
        """A model was evaluated in the step: try again with the next one."""
        self._state = _State.IDLE
        self._evaluated += 1
        self._wait = 1
        if self._evaluated == MAX_EVALUATED:
            self._stop(EVALUATED)

    def _end_burst(self) -> None:
        """Wait with the next burst until this one is a small share of the time."""
        self._state = _State.IDLE
        self._bursts += 1
        usual = median(self._idle_ns) if self._idle_ns else 0
        added = sum(self._burst_ns) - usual * len(self._burst_ns)
        cost = max(added, self._own_ns)
        steps = int(cost / (MAX_COST * usual)) + 1 if usual else MIN_STEPS_BETWEEN
        self._wait = max(MIN_STEPS_BETWEEN, steps)

    # The GPU

    def _is_on_one_gpu(self) -> bool:
        """Whether all layers are on the GPU that is followed; over several GPUs, events of one say
        nothing about another."""
        if self._session.recorder.gpu is None:
            return False
        devices = {
            parameter.device
            for layer in self._layers
            for parameter in layer.module._parameters.values()
            if parameter is not None
        }
        return {str(device) for device in devices} == {self._session.device}

    def _record_event(self) -> Any:
        event = self._events.pop() if self._events else self._new_event(enable_timing=True)
        event.record()
        return event

    def _allocator(self) -> Any:
        if self._session.recorder.gpu is None:
            return None
        index = int(self._session.device.rpartition(":")[2])
        read = torch._C._cuda_memoryStats

        def read_allocated() -> tuple[int, int]:
            allocated = read(index)["allocated_bytes"]["all"]
            return allocated["current"], allocated["peak"]

        return read_allocated

    # What has become of the marks

    def _tell_passed(self) -> None:
        """Write the steps whose marks the GPU has passed by now."""
        while self._pending and self._is_passed(self._pending[0]):
            self._tell(self._pending.popleft())

    def _is_passed(self, pending: _Pending) -> bool:
        event = pending.marks[-1].event
        return event is None or bool(event.query())

    def _tell(self, pending: _Pending) -> None:
        marks, count = pending.marks, len(pending.layers)
        line: dict[str, Any] = {"step": pending.step, "calls": _by_place(pending.calls, count)}
        line |= _columns("host", own_times(marks, [mark.ns for mark in marks]), count)
        if marks[0].event is not None:
            line |= _columns("gpu", own_times(marks, _moments(marks)), count)
            self._events += [mark.event for mark in marks]
        self._file.write(pending.layers, line)

    def _finish(self) -> None:
        """The process ends: write what is there."""
        self._take_out()
        deadline = perf_counter_ns() + int(LAST_WAIT_S * 1e9)
        while self._pending and not self._is_passed(self._pending[-1]):
            if perf_counter_ns() > deadline:
                break
            sleep(0.001)
        self._tell_passed()


def _moments(marks: Sequence[Mark]) -> list[int]:
    """When the GPU passed each mark, in nanoseconds since the first; in a chain, because CUDA
    gives distances in single precision."""
    moments = [0]
    for number in range(1, len(marks)):
        distance_ms = marks[number - 1].event.elapsed_time(marks[number].event)
        moments.append(moments[-1] + round(distance_ms * 1e6))
    return moments


def _columns(clock: str, times: OwnTimes, count: int) -> dict[str, Any]:
    """The times as lists by the layer's place; a phase that did not happen has none."""
    found: dict[str, Any] = {}
    for phase, by_place in times._asdict().items():
        if by_place:
            found[f"{clock}_{phase}_ns"] = _by_place(by_place, count)
            found[f"{clock}_{phase}_outside_ns"] = by_place.get(OUTSIDE, 0)
    return found


def _by_place(values: dict[int, int], count: int) -> list[int]:
    return [values.get(place, 0) for place in range(count)]
