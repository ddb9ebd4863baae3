"""When each layer begins and ends in one training step, forward and backward.

Forward: every call of a layer is seen (`call_watch.py`). Backward: the nodes of autograd's graph
whose tensors pass from one layer into another tell when the engine reaches them; the time from
there to the next such node is that of the layer which made the node. No node is added, and no full
backward hook, which would forbid to change a layer's output in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from math import prod
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from traceml.steps.events import BEGIN, END, HAVE_LOCAL_GRADIENTS
from traceml.trace.autograd_graph import next_operation
from traceml.trace.compiling import is_backward_compiled, is_compiling
from traceml.trace.deep.call_watch import CallWatch, Companion
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import (
    BEGIN_PHASE,
    BEGIN_WAIT,
    END_PHASE,
    END_WAIT,
    ENTER,
    ENTER_AGAIN,
    HAVE_GRADIENTS,
    LEAVE,
    LEAVE_BACKWARD,
    OUTSIDE,
    REACH,
    LayerMark,
)
from traceml.trace.deep.loss_graph import LayerSpan
from traceml.trace.failed_batch import first_shape
from traceml.trace.session import Session

MAX_MARKS = 70_000
"""Of one step: a loop over thousands of tokens calls its layers very often. On a GPU half as many,
because each has two CUDA events."""
MAX_NESTED = 3
"""How deep tensors are looked for in the lists, dicts and dataclasses that a layer takes or
returns."""
MAX_FRAMES = 6
"""Of our own functions, between torch's call of a hook and the look at what it was called with."""
TOO_MANY_CALLS = (
    "a step has more calls of layers than are kept of one: no step could be seen as a whole"
)
CAPTURED = "a CUDA graph is captured in every step: no step could be seen"
_WAITS = {BEGIN: BEGIN_WAIT, END: END_WAIT, HAVE_LOCAL_GRADIENTS: HAVE_GRADIENTS}
"""What happens while a rank waits for others, as marks."""
_LEAF_NODE = (1 << 63) - 1
"""Autograd numbers its nodes; those that store a parameter's gradient have the largest number."""


class LayerMarks:
    """The marks of one step; `begin` and `end` put the hooks in and take them out."""

    def __init__(
        self,
        session: Session,
        layers: Sequence[ModelLayer],
        record_event: Callable[[], Any] | None,
        is_entered: Callable[[], None] | None = None,
        make_room_for_trace: Callable[[], None] | None = None,
    ) -> None:
        self._calls = CallWatch(session, layers, self._enter, self._leave)
        self._calls.make_room_for_trace = make_room_for_trace
        self.fail = self._calls.fail
        self._record_event = record_event
        """Makes a CUDA event on the current stream, and `None` where a graph is captured there;
        `None` itself for a model on the CPU."""
        self._max_marks = MAX_MARKS if record_event is None else MAX_MARKS // 2
        self._is_entered = is_entered
        """Called before each layer's call."""
        self.marks: list[LayerMark] = []
        self.calls: dict[int, int] = {}
        """How often each layer was called, without what was computed again for backward."""
        self.given_elements = 0
        """How many elements the models were called with: of each call the first tensor's."""
        self.spans: list[LayerSpan] = []
        """The operations of each call in the last call of a model, by their numbers."""
        self.first_node = 0
        """The number of the first operation of that call."""
        self._open_nodes: list[int] = []
        self._watched_nodes: set[tuple[int, int]] = set()
        self._unwatch: list[Callable[[], None]] = []
        self._passes: set[int] = set()
        self._reach = session.guard(self._note_reached, any_thread=True, failed=self.fail)
        self._leave_backward = session.guard(self._note_end, any_thread=True, failed=self.fail)

    def begin(self, *companions: Companion) -> None:
        """From here on every layer's call is seen, with these in torch beside our hooks."""
        self._calls.companions += companions
        self._calls.begin()

    def end(self) -> None:
        """No call is seen any more; nodes that are reached later say nothing."""
        self._calls.end()
        self._unwatch.clear()

    def see_backward(self) -> None:
        """A backward pass begins. Where torch compiles it, it would compile our hooks with it: they
        are taken out of the graph, and that pass is not measured."""
        while self._unwatch and is_backward_compiled():
            self._unwatch.pop()()

    @property
    def is_on(self) -> bool:
        """Whether calls are being seen."""
        return self._calls.is_on

    @property
    def lost(self) -> str | None:
        """Why the step was not seen to its end; `None` where it was."""
        return self._calls.lost

    @property
    def has_others_before(self) -> bool:
        """Whether another module with parameters was called before the first layer."""
        return self._calls.has_others_before

    @property
    def compiled(self) -> set[int]:
        """The layers that were called as compiled code."""
        return self._calls.compiled

    @property
    def callers(self) -> set[int]:
        """The layers that called compiled functions, and `OUTSIDE` where none of them did."""
        return self._calls.callers

    @property
    def is_complete(self) -> bool:
        """Whether every mark of the step was kept."""
        is_seen = self.lost is None and not self._calls.has_failed
        return is_seen and 0 < len(self.marks) < self._max_marks

    def begin_phase(self, phase: int) -> None:
        """A whole phase begins here."""
        self._mark(BEGIN_PHASE, phase, perf_counter_ns())

    def end_phase(self, phase: int) -> None:
        """It ends here."""
        self._mark(END_PHASE, phase, perf_counter_ns())

    def note_wait(self, event: int) -> None:
        """Marks that waiting for other ranks begins or ends, or that this rank has all its own
        gradients."""
        if self._calls.is_on:
            self._mark(_WAITS[event], OUTSIDE, perf_counter_ns())

    def _enter(self, place: int, outer: int, arguments: Any, is_again: bool) -> None:
        entered_ns, first = self._calls.entered_ns, self._moment()
        if self._is_entered is not None:
            self._is_entered()
        by_keyword = _given_by_keyword(arguments)
        self._watch_all(arguments, outer)
        self._watch_all(by_keyword, outer)
        self._open_nodes.append(next_operation())
        if outer == OUTSIDE and not is_again:
            self.spans, self.first_node = [], self._open_nodes[-1]
            self.given_elements += prod(first_shape((*arguments, by_keyword)) or (0,))
        if not is_again:
            self.calls[place] = self.calls.get(place, 0) + 1
        self._add(ENTER_AGAIN if is_again else ENTER, place, entered_ns, first)

    def _leave(self, place: int, result: Any) -> None:
        entered_ns, first = self._calls.entered_ns, self._moment()
        first_node = self._open_nodes.pop()
        self.spans.append(
            LayerSpan(place, first_node - self.first_node, next_operation() - self.first_node)
        )
        self._watch_all(result, place)
        self._add(LEAVE, place, entered_ns, first)

    def _watch_all(self, things: Any, place: int) -> None:
        for tensor in tensors_in(things):
            node = tensor.grad_fn
            if node is not None:
                self._watch(node, place)

    def _watch(self, node: Any, place: int) -> None:
        """Tell when the backward pass reaches this node; the innermost layer that saw it, made it.

        Numbers of nodes count up in each thread by itself.
        """
        number = node._sequence_nr()
        key = (get_ident(), number)
        if number < _LEAF_NODE and key not in self._watched_nodes:
            self._watched_nodes.add(key)
            self._unwatch.append(node.register_prehook(lambda _: self._reach(place)).remove)

    def _note_reached(self, place: int) -> None:
        entered_ns = perf_counter_ns()
        if not self._calls.is_on or is_compiling():
            return
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass not in self._passes:
            self._passes.add(backward_pass)
            torch.autograd.Variable._execution_engine.queue_callback(self._leave_backward)
        self._mark(REACH, place, entered_ns)

    def _note_end(self) -> None:
        if self._calls.is_on:
            self._mark(LEAVE_BACKWARD, OUTSIDE, perf_counter_ns())

    def _mark(self, kind: int, place: int, entered_ns: int) -> None:
        self._add(kind, place, entered_ns, self._moment())

    def _moment(self) -> tuple[Any, int]:
        """This moment on both clocks."""
        return self._event(), perf_counter_ns()

    def _event(self) -> Any:
        """A CUDA event at the GPU's present moment; `None` without a GPU.

        Where a graph is being captured, or the step has too many marks, it ends the look at this
        step.
        """
        if len(self.marks) == self._max_marks:
            self._calls.lose(TOO_MANY_CALLS)
        elif self._record_event is not None:
            event = self._record_event()
            if event is None:
                self._calls.lose(CAPTURED)
            return event
        return None

    def _add(self, kind: int, place: int, entered_ns: int, first: tuple[Any, int]) -> None:
        """A mark whose hook was entered then, and had its first moment then; it is left now."""
        event, ns = self._moment()
        if self._calls.is_on:
            self.marks.append(LayerMark(kind, place, ns, event, entered_ns, *first))


def tensors_in(things: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in what a layer takes or returns."""
    if isinstance(things, torch.Tensor):
        yield things
    elif depth < MAX_NESTED and isinstance(things, (tuple, list)):
        for thing in things:
            yield from tensors_in(thing, depth + 1)
    elif depth < MAX_NESTED and isinstance(things, dict):
        for thing in list(things.values()):
            yield from tensors_in(thing, depth + 1)
    elif depth < MAX_NESTED and is_dataclass(things) and not isinstance(things, type):
        for field in fields(things):
            yield from tensors_in(getattr(things, field.name, None), depth + 1)


def _given_by_keyword(arguments: Any) -> Any:
    """What a layer that is entered was given beside these positional arguments.

    Torch tells hooks on all modules of no others; its function that calls them knows.
    """
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_globals is vars(torch_module):
            variables = frame.f_locals
            return variables.get("kwargs") if variables.get("args") is arguments else None
    return None
