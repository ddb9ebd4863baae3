"""Steps in which each layer is timed, on the host and on the GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE, LayerMark, OwnTimes, own_times
from traceml.trace.deep.loss_graph import LayerSpan
from traceml.trace.session import Session

LAST_WAIT_S = 0.05
"""How long the end of the process may be held up for the GPU."""


class _Pending(NamedTuple):
    """A step whose marks the GPU may not have passed yet."""

    step: int
    layers: Sequence[ModelLayer]
    marks: list[LayerMark]
    calls: dict[int, int]


class TimedSteps:
    """Times layers; a step is written once the GPU has passed all its marks."""

    def __init__(self, session: Session, file: LayerFile) -> None:
        self._session, self._file = session, file
        self._marks: LayerMarks | None = None
        self._layers: Sequence[ModelLayer] = ()
        self._events: list[Any] = []
        self._new_event: Any = torch.cuda.Event
        self._pending: deque[_Pending] = deque()
        self.spans: list[LayerSpan] = []
        """Which operations belong to which layer, from the last step that was timed."""

    def forget(self) -> None:
        """Begin anew in a forked child, which has no CUDA events."""
        self._pending.clear()
        self._events.clear()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Time the layers in the step that begins."""
        self._layers = layers
        is_on_gpu = is_on_one_gpu(self._session, layers)
        self._marks = LayerMarks(self._session, layers, self._record if is_on_gpu else None)
        self._marks.begin()
        return True

    def end(self, step: int) -> bool:
        """The step has ended; whether it was seen to its end."""
        marks = self._marks
        if marks is None:
            return False
        marks.end()
        if marks.is_complete:
            self.spans = marks.spans
            self._pending.append(_Pending(step, self._layers, marks.marks, marks.calls))
        return not marks.was_evaluated

    def take_out(self) -> bool:
        """Take the hooks out."""
        if self._marks is not None:
            self._marks.end()
            self._marks = None
        self._layers = ()
        return True

    def tell_passed(self) -> None:
        """Write the steps whose marks the GPU has passed by now."""
        while self._pending and _is_passed(self._pending[0]):
            self._tell(self._pending.popleft())

    def finish(self) -> None:
        """The process ends: wait a moment for the GPU."""
        deadline = monotonic() + LAST_WAIT_S
        while self._pending and not _is_passed(self._pending[-1]) and monotonic() < deadline:
            sleep(0.001)
        self.tell_passed()

    def _record(self) -> Any:
        event = self._events.pop() if self._events else self._new_event(enable_timing=True)
        event.record()
        return event

    def _tell(self, pending: _Pending) -> None:
        marks, count = pending.marks, len(pending.layers)
        line: dict[str, Any] = {"step": pending.step, "calls": by_place(pending.calls, count)}
        line |= _columns("host", own_times(marks, [mark.ns for mark in marks]), count)
        if marks[0].event is not None:
            line |= _columns("gpu", own_times(marks, _moments(marks)), count)
            self._events += [mark.event for mark in marks]
        self._file.write(pending.layers, line)


def is_on_one_gpu(session: Session, layers: Sequence[ModelLayer]) -> bool:
    """Whether all layers are on the GPU that is followed: over several GPUs, events of one say
    nothing about another."""
    if session.recorder.gpu is None:
        return False
    devices = {
        str(parameter.device)
        for layer in layers
        for parameter in layer.module._parameters.values()
        if parameter is not None
    }
    return devices == {session.device}


def _is_passed(pending: _Pending) -> bool:
    event = pending.marks[-1].event
    return event is None or bool(event.query())


def _moments(marks: Sequence[LayerMark]) -> list[int]:
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
    for phase, values in times._asdict().items():
        if values:
            found[f"{clock}_{phase}_ns"] = by_place(values, count)
            found[f"{clock}_{phase}_outside_ns"] = values.get(OUTSIDE, 0)
    return found
