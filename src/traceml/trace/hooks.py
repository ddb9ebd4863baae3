"""The narrow places in torch where phases begin and end; each hook knows its way back.

Nothing here changes what the user can see: the iterator, the loss, the optimizer and the model stay
what they are. Code that torch is compiling is passed through untouched.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from traceml.model.environment import DEEP, KINETO, MAX_KINETO_STEPS, PROFILE
from traceml.steps.events import (
    ABORT,
    ASKED_BY_GRAD,
    BACKWARD,
    BEGIN_OPTIMIZER,
    END_BACKWARD,
    END_OPTIMIZER,
    INSIDE_ANOTHER,
    QUEUE_DRY,
    QUEUE_WATCHED,
    optimizer_ended,
)
from traceml.trace import (
    checkpoints,
    closures,
    copies,
    loaders,
    models,
    synchronising,
    verbs,
)
from traceml.trace.collectives import Communication
from traceml.trace.compile_time import CompileTime
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.ddp import DdpModels
from traceml.trace.explicit import ExplicitSteps, watch_cells
from traceml.trace.graphs import Graphs
from traceml.trace.head_exchange import HeadExchange
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.loss import show_torch_to_c, watch_scaling
from traceml.trace.loss_and_memory_sampler import LossAndMemorySampler
from traceml.trace.open_trackers import look_for_runs
from traceml.trace.optimizer_search import OptimizerSearch, runs_inside_another_step
from traceml.trace.parallel_place import PlaceReader
from traceml.trace.profiler_turns import ProfilerTurns
from traceml.trace.recorder import Recorder
from traceml.trace.resuming import LoadedState, is_initialising_state
from traceml.trace.script_objects import Arrivals
from traceml.trace.script_params import ScriptParams
from traceml.trace.session import Session
from traceml.trace.settings import SettingsRecorder
from traceml.trace.spending import Spending, watch_logging
from traceml.trace.step_boundary import FetchWatch


def install(session: Session) -> None:
    """Set every hook; `session.stop()` takes them out again."""
    session.replace(verbs, "is_compiling", is_compiling)
    show_torch_to_c()
    watched = models.Models(session)
    _watch_communication(session, watched)
    HeadExchange(session).watch()
    session.steps = ExplicitSteps(session, watched)
    known = models.KnownOptimizers(watched)
    search = OptimizerSearch(session, watched, known)
    graphs = Graphs(session, search)
    graphs.watch()
    settings = SettingsRecorder(session, watched, known, graphs)
    session.failures.follow(watched.living, known.living)
    spending, arrivals = Spending(session), Arrivals(session)
    loaders.watch(session, spending, search, settings.see_loader)
    compile_time = CompileTime(session, arrivals)
    _watch_backward(session, search, compile_time, graphs)
    _watch_optimizers(session, known, search, graphs)
    checkpoints.watch(session, arrivals)
    LoadedState(session)
    watch_cells(session)
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        copies.watch(session, spending)
    if torch.version.cuda or torch.version.hip:
        synchronising.watch(session, spending)
    watch_logging(session, spending, arrivals)
    ScriptParams(session)
    PlaceReader(session, watched)
    look_for_runs(session)
    _watch_garbage_collection(session)
    turns = functools.cache(lambda: ProfilerTurns(session))
    fetches = FetchWatch(session)
    _prepare_deep_profile(session, watched, known, graphs, compile_time, turns, fetches)
    _begin_step_traces(session, graphs, turns, fetches)


# Backward

_ASKED_FOR_BY_GRAD = object()
"""Stands for what `torch.autograd.grad` is asked about, which need not be a loss."""


def _watch_backward(
    session: Session, search: OptimizerSearch, compile_time: CompileTime, graphs: Graphs
) -> None:
    begin = _backward_begin(session, search, graphs)
    end = _backward_end(session, search, compile_time)
    compile_time.after_compiling = search.look_again
    note = session.guard(session.recorder.note)
    close = session.guard(_close_backward)  # in another thread none was opened

    def abort(tensors: Any) -> None:
        close(session)
        note(ABORT, BACKWARD)
        session.failures.note("backward", tensors)

    # Tensor.backward calls torch.autograd.backward: one place serves both.
    for name in ("backward", "grad"):
        function = getattr(torch.autograd, name)
        timed = _timed_backward(function, begin, end, abort)
        session.replace(torch.autograd, name, timed)


def _backward_begin(
    session: Session, search: OptimizerSearch, graphs: Graphs
) -> Callable[[Any], Any]:
    """What happens when gradients are asked for."""
    recorder, sampler = session.recorder, LossAndMemorySampler(session)
    losses, note_backward = sampler.losses, recorder.note_backward
    watch_scaling(session, losses)

    def begin(tensors: Any) -> None:
        if recorder.is_in_step:
            search.forget_failed_step()
        elif recorder.is_watching:
            search.look_for_change()
        session.find_new_modules()
        if recorder.backwards_open and torch._C._current_graph_task_id() < 0:
            recorder.backwards_open = 0  # inside no other pass: one was left without its end
        recorder.backwards_open += 1
        loss = memory = None
        try:
            if recorder.backwards_open == 1:
                if losses.on_device.coming is not None:
                    sampler.note_arrived()
                loss = None if tensors is _ASKED_FOR_BY_GRAD else losses.read(tensors)
            if recorder.gpu is not None:
                memory = recorder.gpu.look_at_memory()
        finally:  # whatever fails in looking: the backward pass begins all the same
            now = note_backward(loss, ASKED_BY_GRAD if tensors is _ASKED_FOR_BY_GRAD else 0)
        if now >= recorder.due_ns:
            recorder.look_at_memory(now)
        if memory is not None:
            recorder.gpu.note_memory(memory)

    hold = session.guard(lambda _: graphs.hold_backward(), any_thread=True)
    return recorder.shortcut("begin_backward", _where_training_is(session, graphs, hold, begin))


def _where_training_is(
    session: Session, graphs: Graphs, hold: Callable[[Any], Any], begin: Callable[[Any], None]
) -> Callable[[Any], None]:
    """What begins a backward pass or an optimizer's step: either shows which thread trains.

    While a CUDA graph is captured the graph holds it, and nothing begins.
    """
    recorder, guarded_begin = session.recorder, session.guard_step(begin)
    follow = session.guard(session.follow_this_thread, any_thread=True)

    def begin_here(thing: Any) -> None:
        if graphs.capture is not None:
            hold(thing)
        if recorder.followed != get_ident():
            follow()
        guarded_begin(thing)

    return begin_here


def _backward_end(
    session: Session, search: OptimizerSearch, compile_time: CompileTime
) -> Callable[[Any], Any]:
    """What happens when the gradients are there."""
    recorder = session.recorder

    def end(_: Any) -> None:
        recorder.backwards_open = max(0, recorder.backwards_open - 1)
        if recorder.elsewhere_ns:
            compile_time.note_elsewhere()
        recorder.passes += 1
        if recorder.by_hand and not recorder.is_explicit and not recorder.backwards_open:
            recorder.ends += 1
            recorder.end_step(END_BACKWARD, recorder.ends)
            session.after_step()
        elif recorder.stepped_in_backward and not recorder.backwards_open:
            recorder.stepped_in_backward = False
            recorder.note(END_BACKWARD, recorder.ends, 0)
            recorder.ends += 1
            session.after_step()
        else:
            recorder.note(END_BACKWARD, recorder.ends, 0)
        if recorder.passes > recorder.patience and not recorder.is_in_step:
            search.search()

    return session.shortcut("end_backward", end)


def _timed_backward(
    function: Callable[..., Any],
    begin: Callable[[Any], Any],
    end: Callable[[Any], Any],
    abort: Callable[[Any], None],
) -> Callable[..., Any]:
    has_loss = function.__name__ == "backward"

    @functools.wraps(function)
    def backward(*arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return function(*arguments, **options)
        try:
            begin(
                (arguments[0] if arguments else options.get("tensors"))
                if has_loss
                else _ASKED_FOR_BY_GRAD
            )
            result = function(*arguments, **options)
            end(None)
            return result
        except BaseException as error:
            abort(_released_graph(arguments, options) if has_loss else None)
            drop_our_frames(error)
            raise

    return left_alone(backward)


def _released_graph(arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What `backward` was called with, where the pass releases the graph as it goes: then the graph
    says how far it came."""
    names = ("tensors", "grad_tensors", "retain_graph", "create_graph")
    given = {**dict(zip(names, arguments, strict=False)), **options}
    is_kept = given.get("retain_graph") or given.get("create_graph")
    return None if is_kept else given.get("tensors")


def _close_backward(session: Session) -> None:
    recorder = session.recorder
    recorder.backwards_open = max(0, recorder.backwards_open - 1)


# Optimizers


class _FirstSteps:
    """Meets each optimizer in its first step of the training."""

    def __init__(self, session: Session, meet: Callable[[Any], None]) -> None:
        self._recorder, self._numbers = session.recorder, session.optimizers
        self._meet = meet
        self._met: set[int] = set()
        self._of_torch: set[int] = set()

    def begin(self, optimizer: Any) -> bool:
        """Notes whose step begins; returns whether it is one of the training's."""
        recorder, number = self._recorder, self._numbers.of(optimizer)
        self._of_torch.discard(number)
        if number not in self._met and is_initialising_state():
            self._of_torch.add(number)
            return False
        recorder.optimizer, recorder.optimizer_number = weakref.ref(optimizer), number
        if number not in self._met or not recorder.identified:  # the latter: after a fork
            self._meet(optimizer)
            self._met.add(number)
            recorder.optimizers = 1 if recorder.is_explicit else len(self._met)
        return True

    def are_of_torch(self, optimizer: Any) -> bool:
        """Returns whether torch itself had the optimizer take the step that ends."""
        return bool(self._of_torch) and self._numbers.find(optimizer) in self._of_torch


def _optimizer_events(
    session: Session, meet: Callable[[Any], None], search: OptimizerSearch, graphs: Graphs
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What happens when an optimizer steps, and when it has."""
    recorder, note, numbers = session.recorder, session.recorder.note, session.optimizers
    first_steps = _FirstSteps(session, meet)

    def begin(optimizer: Any) -> None:
        is_known = recorder.optimizer() is optimizer and recorder.identified
        if not is_known and not first_steps.begin(optimizer):
            return
        if recorder.passes == recorder.usual_passes and not recorder.is_watching:
            recorder.passes = 0  # as nearly always
        elif recorder.passes:
            search.end_step()
        # One that was left by an error looks as if it went on; the same one inside itself is rare.
        may_be_inside = recorder.is_in_step and (not is_known or session.open_closures > 0)
        is_inside = may_be_inside and runs_inside_another_step()
        recorder.is_in_step = True
        recorder.optimizer_mark = None
        if note(BEGIN_OPTIMIZER, recorder.optimizer_number, INSIDE_ANOTHER if is_inside else 0):
            recorder.optimizer_mark = recorder.gpu.latest

    def end(optimizer: Any) -> None:
        if first_steps.are_of_torch(optimizer):
            return
        recorder.is_in_step = False
        if recorder.passes:  # backward ran in a closure of this step, which is seen
            search.end_step()
        flags = 0 if recorder.optimizer_mark is None else _queue_flags(recorder)
        is_latest = recorder.optimizer() is optimizer
        stepped = recorder.optimizer_number if is_latest else numbers.of(optimizer)
        if recorder.is_explicit or recorder.backwards_open:
            note(END_OPTIMIZER, optimizer_ended(recorder.ends, stepped), flags)
            recorder.stepped_in_backward = not recorder.is_explicit
            return
        recorder.ends += 1
        recorder.end_step(END_OPTIMIZER, optimizer_ended(recorder.ends, stepped), flags)
        session.after_step()

    hold = session.guard(graphs.hold_optimizer, any_thread=True)
    begin_here = _where_training_is(session, graphs, hold, begin)
    begins = recorder.shortcut("begin_optimizer", begin_here)
    return begins, session.shortcut("end_optimizer", end)


def _queue_flags(recorder: Recorder) -> int:
    """Whether the GPU has reached the optimizer's work by now, as flags of its end."""
    is_dry = recorder.gpu.queue_is_dry(recorder.optimizer_mark)
    recorder.optimizer_mark = None
    if is_dry is None:
        return 0
    return QUEUE_WATCHED | QUEUE_DRY if is_dry else QUEUE_WATCHED


def _watch_optimizers(
    session: Session, known: models.KnownOptimizers, search: OptimizerSearch, graphs: Graphs
) -> None:
    def meet(optimizer: Any) -> None:
        known.add(optimizer)
        session.identify()
        session.mark_by_backward(False)

    begin, end = _optimizer_events(session, meet, search, graphs)
    graphs.meet_optimizer = meet
    with_timed_closure = closures.timing(session)

    def before(optimizer: Any, arguments: Any, options: Any) -> Any:
        if is_compiling():
            return None
        begin(optimizer)
        return with_timed_closure(arguments, options) if options or len(arguments) > 1 else None

    def after(optimizer: Any, arguments: Any, options: Any) -> None:
        if not is_compiling():
            end(optimizer)

    first = torch_optimizer.register_optimizer_step_pre_hook(before)
    last = torch_optimizer.register_optimizer_step_post_hook(after)
    session.restores.append(_remover(session, before.__code__, first))
    session.restores.append(_remover(session, after.__code__, last))


def _remover(session: Session, hook: CodeType, handle: RemovableHandle) -> Callable[[], None]:
    """Returns what removes a hook; one that is running, and has others behind it, does nothing any
    more and is removed when the process ends.

    Torch goes through an optimizer's hooks as they stand: taken out from within, one makes it raise
    before it comes to the next.
    """

    def remove_at_rest() -> None:
        hooks = handle.hooks_dict_ref()
        frame: FrameType | None = sys._getframe()
        is_last = not hooks or next(reversed(hooks)) == handle.id
        while frame is not None and not is_last:
            if frame.f_code is hook:
                session.running_hooks.append(handle.remove)
                return
            frame = frame.f_back
        handle.remove()

    return remove_at_rest


# Communication


def _watch_communication(session: Session, watched: models.Models) -> None:
    communication = Communication(session)
    communication.watch()
    ddp_models = DdpModels(session, communication)
    ddp_models.watch_all()
    watched.visitors.append(ddp_models.find)
    watched.visitors.append(lambda _: communication.watch_functional())
    watched.visitors.append(lambda _: communication.watch_sharded())


# The deep profile, and whole traces of steps


def _prepare_deep_profile(
    session: Session,
    watched: models.Models,
    known: models.KnownOptimizers,
    graphs: Graphs,
    compile_time: CompileTime,
    turns: Callable[[], ProfilerTurns],
    fetches: FetchWatch,
) -> None:
    """The deep profile is asked for by the run, or by a script that names its model."""

    def begin() -> None:
        from traceml.trace.deep.bursts import Bursts

        if not begun:
            begun.append(
                Bursts(session, watched, known, lambda: graphs.was_captured, turns(), fetches)
            )
            begun[0].begin()
            compile_time.before_compiling = begun[0].make_room_for_compiler

    begun: list[Any] = []
    session.begin_deep_profile = session.guard(begin, any_thread=True)
    if os.environ.get(PROFILE) == DEEP:
        session.begin_deep_profile()


def _begin_step_traces(
    session: Session, graphs: Graphs, turns: Callable[[], ProfilerTurns], fetches: FetchWatch
) -> None:
    count = kineto_steps(os.environ.get(KINETO))
    if count:
        from traceml.trace.step_traces import StepTraces

        StepTraces(session, count, turns(), lambda: graphs.was_captured, fetches)


def kineto_steps(asked: str | None) -> int:
    """Of how many steps the environment asks for a trace; 0 where what it says is no number."""
    is_number = asked is not None and asked.isascii() and asked.isdigit() and len(asked) < 9
    return min(int(asked or 0), MAX_KINETO_STEPS) if is_number else 0


# Garbage collection


def _watch_garbage_collection(session: Session) -> None:
    callback = session.collections.callback
    gc.callbacks.append(callback)

    def remove() -> None:
        if callback in gc.callbacks:  # a script may have cleared the list
            gc.callbacks.remove(callback)

    session.restores.append(remove)
