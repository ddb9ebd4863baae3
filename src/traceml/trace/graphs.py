"""CUDA graphs: what of a training step a graph holds, and when it is launched.

A captured step runs no Python when it is replayed, so nothing is seen of it but the launch. What it
holds is seen while it is captured: the same hooks fire, and nothing runs on the device. Capturing
is no step; like compiling it is charged to no phase, and nothing of ours runs on the stream.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from traceml.steps.events import (
    ABORT_REPLAY,
    BEGIN_REPLAY,
    COMPILE,
    END_REPLAY,
    HOLD_IN_GRAPH,
    HOLD_OPTIMIZER,
    HOLDS_BACKWARD,
    HOLDS_OPTIMIZER,
    SPEND,
    graph_contents,
    optimizer_ended,
)
from traceml.steps.graph_replays import GraphContents
from traceml.trace.compiling import left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.optimizer_search import OptimizerSearch
from traceml.trace.session import Session


class Graphs:
    """The CUDA graphs of this process that hold a part of its training."""

    def __init__(self, session: Session, search: OptimizerSearch) -> None:
        self._session = session
        self._search = search
        self._known: dict[int, tuple[weakref.ref[Any], int, GraphContents]] = {}
        """By identity, with the graph itself, since another may get its identity, and a number."""
        self._count = 0
        self._optimizers: list[weakref.ref[Any]] = []
        self._began_ns = 0
        self.was_captured = False
        """Whether any graph was, a part of a training step or not."""
        self.capture: GraphContents | None = None
        """What the capture that is under way has shown so far."""
        self.meet_optimizer: Callable[[Any], None] = lambda _: None
        """Called with each optimizer that was captured, once the capture is over."""
        session.forgets.append(self._forget)

    def watch(self) -> None:
        """Follow every graph of this torch, if it has any."""
        kind: Any = getattr(torch.cuda, "CUDAGraph", None)
        if not all(hasattr(kind, name) for name in ("capture_begin", "capture_end", "replay")):
            return
        replace = self._session.replace
        replace(kind, "capture_begin", self._beginning(kind.capture_begin))
        replace(kind, "capture_end", self._ending(kind.capture_end))
        replace(kind, "replay", self._replaying(kind.replay))

    # Capturing: `capture` is asked for first by the hooks that fire in it.

    def hold_backward(self) -> None:
        """A backward pass is being captured."""
        if self._is_capturing() and self.capture is not None:
            self.capture.backwards += 1

    def hold_optimizer(self, optimizer: Any) -> None:
        """An optimizer's step is being captured."""
        if self._is_capturing() and self.capture is not None:
            self.capture.optimizers.add(self._session.optimizers.of(optimizer))
            self.capture.optimizer_steps += 1
            self._optimizers.append(weakref.ref(optimizer))

    def _is_capturing(self) -> bool:
        """Whether the capture is still under way: one that failed may have been left unended."""
        on_device = torch.version.cuda or torch.version.hip
        if on_device and not torch.cuda.is_current_stream_capturing():
            self._end(None)
        return self.capture is not None

    def _begin(self, graph: Any) -> None:
        session = self._session
        self.was_captured = True
        if self.capture is not None:
            self._end(None)  # one that failed and was never ended
        if not session.tracing or session.thread not in (None, get_ident()):
            return
        self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
        self.capture = GraphContents()
        self._count += 1
        self._known[id(graph)] = (weakref.ref(graph), self._count, self.capture)
        self._optimizers = []
        self._search.begin_capture()
        self._began_ns = perf_counter_ns()
        session.tracing = False  # its phases would be those of no step

    def _end(self, graph: Any) -> None:
        held, self.capture = self.capture, None
        if held is None:
            return
        session = self._session
        session.tracing = bool(session.restores)  # unless the hooks went out meanwhile
        if session.thread == get_ident():
            session.recorder.note_spent(SPEND, COMPILE, perf_counter_ns() - self._began_ns)
        captured, self._optimizers = self._optimizers, []
        for optimizer in filter(None, (each() for each in captured)):
            self.meet_optimizer(optimizer)
        self._search.end_capture(held)
        self._declare(held)

    def _declare(self, held: GraphContents) -> None:
        """Note what a graph holds, by its number."""
        number = next((each[1] for each in self._known.values() if each[2] is held), None)
        if number is None or held.phase is None:
            return
        note = self._session.recorder.note_on_host
        note(HOLD_IN_GRAPH, graph_contents(held.backwards, held.optimizer_steps), 0, number)
        for optimizer in held.optimizers:
            note(HOLD_OPTIMIZER, optimizer, 0, number)

    def _forget(self) -> None:
        """In a forked child the parent's graphs cannot be launched; none of them is touched."""
        self._known = {}
        if self.capture is not None:
            self.capture = None
            self._session.tracing = bool(self._session.restores)

    def _beginning(self, capture_begin: Callable[..., Any]) -> Callable[..., Any]:
        begin = self._session.guard(self._begin, any_thread=True)

        @functools.wraps(capture_begin)
        def begin_capture(graph: Any, *arguments: Any, **options: Any) -> Any:
            try:
                result = capture_begin(graph, *arguments, **options)
                begin(graph)
                return result
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(begin_capture)

    def _ending(self, capture_end: Callable[..., Any]) -> Callable[..., Any]:
        end = self._session.guard(self._end, any_thread=True)

        @functools.wraps(capture_end)
        def end_capture(graph: Any, *arguments: Any, **options: Any) -> Any:
            try:
                try:
                    return capture_end(graph, *arguments, **options)
                finally:
                    end(graph)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return left_alone(end_capture)

    # Replaying

    def _replaying(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        session, recorder, search = self._session, self._session.recorder, self._search
        note, look_for_change = session.guard(recorder.note), session.guard(search.look_for_change)

        def note_end(number: int, held: GraphContents) -> None:
            is_end = bool(held.optimizers or recorder.by_hand) and not recorder.is_explicit
            recorder.ends += is_end
            ended = optimizer_ended(recorder.ends, number)
            if is_end:
                recorder.end_step(END_REPLAY, ended, _flags(held))
                session.after_step()
            else:
                recorder.note(END_REPLAY, ended, _flags(held))
            if held.backwards and not held.optimizers and not recorder.backwards_open:
                search.count_replayed(held.backwards)

        end = session.guard(note_end)

        @functools.wraps(replay)
        def launch(graph: Any, *arguments: Any, **options: Any) -> Any:
            reference, number, held = self._known.get(id(graph), _UNKNOWN)
            is_known = held.phase is not None and reference() is graph
            try:
                if not is_known:
                    return replay(graph, *arguments, **options)
                if recorder.is_watching and not (recorder.is_in_step or recorder.backwards_open):
                    look_for_change()
                note(BEGIN_REPLAY, number, _flags(held))
                result = replay(graph, *arguments, **options)
                end(number, held)
                return result
            except BaseException as error:
                if is_known:
                    note(ABORT_REPLAY, number, _flags(held))
                    session.failures.note()
                drop_our_frames(error)
                raise

        return left_alone(launch)


def _flags(held: GraphContents) -> int:
    """What a launch says of what the graph holds."""
    return HOLDS_BACKWARD * bool(held.backwards) | HOLDS_OPTIMIZER * bool(held.optimizers)


_UNKNOWN: tuple[Any, int, GraphContents] = (lambda: None, 0, GraphContents())
