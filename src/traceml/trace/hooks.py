"""The narrow places in torch where phases begin and end; each hook knows its way back.

Nothing here changes what the user can see: the iterator, the loss, the optimizer and the model stay
what they are. Code that torch is compiling is passed through untouched.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from traceml.trace import copies, loaders, logging_calls, models, synchronising, verbs
from traceml.trace.arrivals import Arrivals
from traceml.trace.collectives import Communication
from traceml.trace.compile_time import CompileTime
from traceml.trace.compiling import is_compiling
from traceml.trace.ddp import DdpModels
from traceml.trace.explicit import ExplicitSteps
from traceml.trace.glance import Glance
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session
from traceml.trace.spending import Spending
from traceml.trace.steps import BACKWARD, CHECKPOINT

BACKWARDS_WITHOUT_OPTIMIZER = 4096
"""An optimizer exists and never steps (it is compiled, or of a kind of its own): backward marks the
step from then on. Far more than anybody's micro-batches in one step."""


def install(session: Session) -> None:
    """Set every hook; `session.stop()` takes them out again."""
    session.replace(verbs, "is_compiling", is_compiling)
    watched = models.Models(session)
    _watch_communication(session, watched)
    session.steps = ExplicitSteps(session, watched)
    search = _OptimizerSearch(session, watched)
    spending, arrivals = Spending(session), Arrivals(session)
    loaders.watch(session, spending)
    _watch_backward(session, search, CompileTime(session, arrivals))
    known = models.KnownOptimizers(watched)
    session.failures.follow(watched.living, known.living)
    _watch_optimizers(session, known, search)
    _watch_checkpoints(session)
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        copies.watch(session, spending)
    if torch.version.cuda or torch.version.hip:
        synchronising.watch(session, spending)
    logging_calls.watch(session, spending, arrivals)
    _watch_garbage_collection(session)


# Backward


def _watch_backward(session: Session, search: _OptimizerSearch, compile_time: CompileTime) -> None:
    tracer, note = session.tracer, session.guard(session.recorder.note)
    begin_backward, end_backward = tracer.begin_backward, tracer.end_backward
    glance = Glance(session)

    def begin(tensors: Any) -> None:
        _open_backward(session)
        if tracer.gpu is not None:
            tracer.gpu.look_at_memory()
        seen = glance.look(tensors) if session.backwards_open == 1 else ()
        session.recorder.note(begin_backward, None)
        for event, what in seen:
            session.recorder.note_on_host(event, what)

    def end() -> None:
        _close_backward(session)
        if compile_time.elsewhere_ns:
            compile_time.note_elsewhere()
        if not search.is_over:
            search.look()
        if tracer.by_hand:
            session.recorder.note_and_digest(end_backward, None)
        else:
            session.recorder.note(end_backward, None)

    guarded_begin, guarded_end = session.guard(begin), session.guard(end)
    close = session.guard(_close_backward)  # in another thread none was opened

    def abort() -> None:
        close(session)
        note(tracer.abort, BACKWARD)
        session.failures.note("backward")

    # Tensor.backward calls torch.autograd.backward: one place serves both.
    for name in ("backward", "grad"):
        function = getattr(torch.autograd, name)
        timed = _timed_backward(session, function, guarded_begin, guarded_end, abort)
        session.replace(torch.autograd, name, timed)


def _timed_backward(
    session: Session,
    function: Callable[..., Any],
    begin: Callable[[Any], Any],
    end: Callable[[], Any],
    abort: Callable[[], None],
) -> Callable[..., Any]:
    has_loss = function.__name__ == "backward"  # what `grad` is asked about need not be one

    @functools.wraps(function)
    def backward(*arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return function(*arguments, **options)
        try:
            if session.thread != get_ident():
                session.follow_this_thread()
            begin((arguments[0] if arguments else options.get("tensors")) if has_loss else None)
            result = function(*arguments, **options)
            end()
            return result
        except BaseException as error:
            abort()
            drop_our_frames(error)
            raise

    return backward


def _open_backward(session: Session) -> None:
    if session.backwards_open and torch._C._current_graph_task_id() < 0:
        session.backwards_open = 0  # this pass is inside no other: one was left without its end
    session.backwards_open += 1


def _close_backward(session: Session) -> None:
    session.backwards_open = max(0, session.backwards_open - 1)


class _OptimizerSearch:
    """Finds out, at the first backward passes, whether this script has an optimizer at all."""

    def __init__(self, session: Session, watched: models.Models) -> None:
        self._session = session
        self._watched = watched
        self._backwards = 0
        self.is_over = False

    def look(self) -> None:
        """After a backward pass without an optimizer step so far."""
        self._backwards += 1
        if self._backwards >= BACKWARDS_WITHOUT_OPTIMIZER or (
            self._backwards <= 2 and not _any_optimizer_made()
        ):
            self.is_over = True
            self._session.tracer.by_hand = True
            self._watched.watch_callers()
            self._session.identify()


def _any_optimizer_made() -> bool:
    """Torch marks the class of every optimizer it constructs."""
    kinds = [Optimizer]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    return any(getattr(kind.step, "hooked", False) for kind in kinds)


# Optimizers


def _watch_optimizers(
    session: Session, known: models.KnownOptimizers, search: _OptimizerSearch
) -> None:
    tracer, recorder = session.tracer, session.recorder
    begin_optimizer, end_optimizer = tracer.begin_optimizer, tracer.end_optimizer
    seen = known.seen

    def begin(optimizer: Any) -> None:
        identity = id(optimizer)
        reference = seen.get(identity)
        is_new = reference is None or reference() is not optimizer
        if is_new or not session.identified:  # the latter: inherited through a fork
            known.add(optimizer)
            session.identify()
            search.is_over = True
            tracer.by_hand = False
        recorder.optimizer_mark = recorder.note(begin_optimizer, identity)

    def end(optimizer: Any) -> None:
        gpu, began = tracer.gpu, recorder.optimizer_mark
        dry = None if gpu is None or began is None else gpu.queue_is_dry(began)
        if tracer.fetches:
            recorder.note(end_optimizer, (id(optimizer), dry))
        else:  # no fetch will end the step
            recorder.note_and_digest(end_optimizer, (id(optimizer), dry))

    guarded_begin, guarded_end = session.guard(begin), session.guard(end)

    def before(optimizer: Any, arguments: Any, options: Any) -> None:
        if not is_compiling():
            if session.thread != get_ident():
                session.follow_this_thread()
            guarded_begin(optimizer)

    def after(optimizer: Any, arguments: Any, options: Any) -> None:
        if not is_compiling():
            guarded_end(optimizer)

    session.restores.append(torch_optimizer.register_optimizer_step_pre_hook(before).remove)
    session.restores.append(torch_optimizer.register_optimizer_step_post_hook(after).remove)


# Communication


def _watch_communication(session: Session, watched: models.Models) -> None:
    communication = Communication(session)
    communication.watch()
    ddp_models = DdpModels(session, communication)
    ddp_models.watch_all()
    watched.visitors.append(ddp_models.find)
    watched.visitors.append(lambda _: communication.watch_functional())


# Checkpoints


def _watch_checkpoints(session: Session) -> None:
    tracer, note = session.tracer, session.guard(session.recorder.note)
    save = torch.save

    @functools.wraps(save)
    def timed_save(*arguments: Any, **options: Any) -> Any:
        try:
            note(tracer.begin, CHECKPOINT)
            try:
                return save(*arguments, **options)
            finally:
                note(tracer.end, CHECKPOINT)
        except BaseException as error:
            session.failures.note("checkpoint")
            drop_our_frames(error)
            raise

    session.replace(torch, "save", timed_save)


# Garbage collection


def _watch_garbage_collection(session: Session) -> None:
    callback = session.collections.callback
    gc.callbacks.append(callback)
    session.restores.append(lambda: gc.callbacks.remove(callback))
