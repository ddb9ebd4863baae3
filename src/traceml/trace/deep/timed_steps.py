"""Steps in which each layer is timed, on the host and on the GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic, perf_counter_ns, sleep
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.layer_file import LayerFile, MergedSteps, by_place
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import (
    ALL_PHASES,
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    NOTHING_UNSEEN,
    OUTSIDE,
    LayerMark,
    UnseenTime,
    gpu_durations,
    has_phase,
    host_durations,
    own_times,
)
from traceml.trace.deep.loss_graph import LayerSpan
from traceml.trace.deep.phase_marks import ForwardCalls, WaitsForRanks
from traceml.trace.deep.unseen_time import UnseenTimes
from traceml.trace.failure import ended_by_device_error
from traceml.trace.forked import keep_for_ever
from traceml.trace.models import Models
from traceml.trace.session import Session

LATEST_STEPS = 4
"""Timed steps, those of two bursts, that tell how much the model is given lately."""
MAX_PENDING = 2
"""Steps whose marks the GPU has not passed yet: with more, none is timed."""
LAST_WAIT_S = 0.05
"""How long the end of the process may be held up for the GPU."""
SEVERAL_DEVICES = (
    "The parameters of the layers are on several devices ({}): layers are timed on the host, which "
    "does not wait for a GPU, and kernels are not recorded"
)
HIDDEN = (
    "a compiled function calls the model: no layer can be seen; run once with "
    "TORCH_COMPILE_DISABLE=1 to see them uncompiled"
)


class _Pending(NamedTuple):
    """A step whose marks the GPU may not have passed yet."""

    step: int
    steps: int
    """How many steps it is: more than one where they could not be told apart."""
    layers: Sequence[ModelLayer]
    marks: list[LayerMark]
    calls: dict[int, int]
    given_elements: int
    compiled: dict[str, list[int]]
    """Which layers are compiled, as the file has it."""
    last_events: Sequence[Any]
    """The last CUDA event on each stream: those on one stream are passed in order."""
    lengths: dict[str, int]
    """How long it took, in nanoseconds, and how long as many steps usually take; empty where the
    latter is not known."""
    unseen: UnseenTime
    has_backward: bool
    """Whether all that backward passes went through was computed in the step."""


class TimedSteps:
    """Times layers; a step is written once the GPU has passed all its marks."""

    def __init__(self, session: Session, models: Models, file: LayerFile) -> None:
        self._session, self._models = session, models
        self._file, self._written = file, MergedSteps(file)
        self._marks: LayerMarks | None = None
        self._layers: Sequence[ModelLayer] = ()
        self._has_backward = True
        self._unseen_times, self._unseen = UnseenTimes(session), NOTHING_UNSEEN
        self._began_ns = 0
        self.usual_ns = 0.0
        """How long a step usually takes that is not looked at; 0 where that is not known."""
        self._events: list[Any] = []
        self._last_on: dict[Any, Any] = {}
        """By stream: the last event of the step that is timed."""
        self._new_event: Any = torch.cuda.Event
        self._device = 0
        """The number of the layers' GPU."""
        self._stream: tuple[int, Any] = -1, None
        """The last stream there: its number, as CUDA names it, and torch's object for it."""
        self._pending: deque[_Pending] = deque()
        self._told_compiled: dict[str, list[int]] = {}
        self.spans: list[LayerSpan] = []
        """Which operations belong to which layer, from the last step that was timed."""
        self._latest_elements: deque[int] = deque(maxlen=LATEST_STEPS)
        """How many elements the models were called with in the latest steps."""

    def forget(self) -> None:
        """Begin anew in a forked child, which has no CUDA events."""
        self.spans = []
        self._pending.clear()
        self._events.clear()
        self._latest_elements.clear()
        self._told_compiled = {}
        self._written.forget()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Time the layers in the step that begins; not where the GPU is far behind."""
        if len(self._pending) >= MAX_PENDING:
            return False
        self._layers, self._last_on, self._has_backward = layers, {}, True
        self._unseen = self._unseen_times.of_step()
        is_on_gpu = is_on_one_gpu(self._session, layers)
        if len(devices := devices_of(layers)) > 1:
            self._file.say(SEVERAL_DEVICES.format(", ".join(sorted(devices))))
        if is_on_gpu:
            self._device, self._stream = torch.device(self._session.device).index, (-1, None)
        marks = LayerMarks(self._session, layers, self._record if is_on_gpu else None)
        self._marks = marks
        calls = ForwardCalls(self._session, self._models, marks)
        marks.begin(calls, WaitsForRanks(self._session, marks))
        self._began_ns = perf_counter_ns()
        return True

    @property
    def latest_elements(self) -> tuple[int, ...]:
        """How many elements the model was called with in the latest timed steps; empty as long as
        there were too few of them."""
        is_full = len(self._latest_elements) == LATEST_STEPS
        return tuple(self._latest_elements) if is_full else ()

    def lose_backward(self) -> None:
        """A backward pass goes through what was computed before the step."""
        self._has_backward = False

    def see_loss(self) -> None:
        """A backward pass begins."""
        if self._marks is not None:
            self._marks.see_backward()

    def begin_backward(self) -> None:
        """The script asks for gradients."""
        if self._marks is not None and self._marks.is_on:
            self._marks.begin_phase(BACKWARD)

    def end_backward(self) -> None:
        """They are all there."""
        if self._marks is not None and self._marks.is_on:
            self._marks.end_phase(BACKWARD)

    def end(self, step: int, steps: int = 1) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        marks = self._marks
        if marks is None:
            return None
        lengths = {"took_ns": perf_counter_ns() - self._began_ns}
        lengths["usual_ns"] = round(self.usual_ns * steps)
        marks.end()
        is_hidden = not marks.calls and bool(marks.callers)
        if marks.is_complete and marks.calls:  # else another model has taken the place of these
            self.spans = marks.spans
            self._latest_elements.append(round(marks.given_elements / steps))
            last_events = tuple(self._last_on.values())
            self._pending.append(
                _Pending(
                    step,
                    steps,
                    self._layers,
                    marks.marks,
                    marks.calls,
                    marks.given_elements,
                    _compiled(marks),
                    last_events,
                    lengths if self.usual_ns else {},
                    self._unseen,
                    self._has_backward,
                )
            )
        elif marks.lost is None and is_hidden:
            return HIDDEN
        return marks.lost

    def take_out(self) -> bool:
        """Take the hooks out."""
        if self._marks is not None:
            self._marks.end()
            self._marks = None
        self._layers, self._last_on = (), {}
        return True

    @property
    def open_spans(self) -> list[LayerSpan]:
        """Which operations of the step that runs belong to which layer, by their own numbers; empty
        where its layers are not timed."""
        marks = self._marks
        if marks is None or not marks.is_on:
            return []
        base = marks.first_node
        return [LayerSpan(each.place, base + each.first, base + each.end) for each in marks.spans]

    def tell_passed(self) -> None:
        """Write the steps whose marks the GPU has passed by now."""
        while self._pending and _is_passed(self._pending[0]):
            self._tell(self._pending.popleft())

    def finish(self) -> None:
        """The process ends: wait a moment for the GPU, unless it has failed."""
        if ended_by_device_error():
            keep_for_ever(self._pending)  # an event that is freed asks the device
            self._pending = deque(each for each in self._pending if not each.last_events)
        deadline = monotonic() + LAST_WAIT_S
        while self._pending and not _is_passed(self._pending[-1]) and monotonic() < deadline:
            sleep(0.001)
        self.tell_passed()
        self._written.flush()

    def _record(self) -> Any:
        """An event on the current stream of the layers' device, which need not be the current one;
        `None` where a CUDA graph is captured there, which would keep it."""
        device = self._device
        number = torch._C._cuda_getCurrentRawStream(device)
        if number and _is_captured(device):  # the default stream, number 0, never is
            return None
        last = self._stream  # another thread of the backward pass may replace it meanwhile
        if number != last[0]:
            last = self._stream = number, torch.cuda.current_stream(device)
        event = self._events.pop() if self._events else self._new_event(enable_timing=True)
        stream = last[1]
        event.record(stream)
        self._last_on[stream] = event
        return event

    def _tell(self, pending: _Pending) -> None:
        marks, count = pending.marks, len(pending.layers)
        phases = ALL_PHASES if pending.has_backward else (FORWARD,)
        numbers: dict[str, Any] = {"calls": by_place(pending.calls, count), **pending.lengths}
        if pending.given_elements:
            numbers["given_elements"] = pending.given_elements
        numbers |= _columns("host", marks, host_durations(marks, pending.unseen), count, phases)
        if marks[0].event is not None:
            numbers |= _columns("gpu", marks, gpu_durations(marks, pending.unseen), count, phases)
            self._events += [event for mark in marks for event in (mark.first_event, mark.event)]
        self._written.add(pending.layers, pending.step, numbers, pending.steps)
        if pending.compiled != self._told_compiled:
            self._told_compiled = pending.compiled
            self._file.write(pending.layers, {"step": pending.step, **pending.compiled})


def _compiled(marks: LayerMarks) -> dict[str, list[int]]:
    found = {"compiled": marks.compiled, "calls_compiled": marks.callers - {OUTSIDE}}
    return {key: sorted(places) for key, places in found.items() if places}


def is_on_one_gpu(session: Session, layers: Sequence[ModelLayer]) -> bool:
    """Whether all layers are on the GPU that is followed: over several GPUs, events of one say
    nothing about another."""
    return session.recorder.gpu is not None and devices_of(layers) == {session.device}


def devices_of(layers: Sequence[ModelLayer]) -> set[str]:
    """The devices on which the layers have parameters."""
    return {
        str(parameter.device)
        for layer in layers
        for parameter in layer.module._parameters.values()
        if parameter is not None
    }


def _is_captured(device: int) -> bool:
    """Whether a CUDA graph is captured on a device's current stream."""
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def _is_passed(pending: _Pending) -> bool:
    return all(event.query() for event in pending.last_events)


def _columns(
    clock: str,
    marks: Sequence[LayerMark],
    durations: Sequence[int],
    count: int,
    phases: Sequence[int],
) -> dict[str, Any]:
    """The times of these phases as lists by the layer's place, and what of each whole phase, and of
    waiting for other ranks, is in no layer; what did not happen has none."""
    found: dict[str, Any] = {}
    times = own_times(marks, durations)
    for phase in phases:
        name, values = times._fields[phase], times[phase]
        if values.keys() - {OUTSIDE}:
            found[f"{clock}_{name}_ns"] = by_place(values, count)
        if values and (phase == COMMUNICATION or has_phase(marks, phase)):
            found[f"{clock}_{name}_outside_ns"] = values.get(OUTSIDE, 0)
    return found
