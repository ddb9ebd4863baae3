"""The narrow places in torch where phases begin and end; each hook knows its way back.

Nothing here changes what the user can see: the iterator, the loss, the optimizer and the model stay
what they are. Code that torch is compiling is passed through untouched.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traceml.trace import models, verbs
from traceml.trace.compiling import is_compiling
from traceml.trace.explicit import ExplicitSteps
from traceml.trace.session import Session
from traceml.trace.steps import BACKWARD, CHECKPOINT, GC, H2D, INPUT

BACKWARDS_WITHOUT_OPTIMIZER = 4096
"""An optimizer exists and never steps (it is compiled, or of a kind of its own): backward marks the
step from then on. Far more than anybody's micro-batches in one step."""

_GPU_KINDS = ("cuda", "mps")


def install(session: Session) -> None:
    """Set every hook; `session.stop()` takes them out again."""
    session.replace(verbs, "is_compiling", is_compiling)
    watched = models.Models(session)
    session.steps = ExplicitSteps(session, watched)
    search = _OptimizerSearch(session, watched)
    _watch_loaders(session)
    _watch_backward(session, search)
    _watch_optimizers(session, models.KnownOptimizers(watched), search)
    _watch_checkpoints(session)
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        _watch_copies(session)
    _watch_garbage_collection(session)


# Fetching


def _watch_loaders(session: Session) -> None:
    tracer, recorder = session.tracer, session.recorder
    note = session.guard(recorder.note)
    begin = session.guard(lambda iterator: recorder.begin_fetch(id(iterator._dataset)))
    begin_iterator = session.guard(lambda loader: recorder.begin_fetch(id(loader.dataset)))
    workers = -1

    def end_fetch(iterator: Any, batch: Any) -> None:
        nonlocal workers
        recorder.note(tracer.end_fetch, samples_in(batch))
        if iterator._num_workers != workers and session.ring and tracer.source_trains():
            workers = iterator._num_workers
            session.ring.note_loader(workers, bool(iterator._pin_memory))

    end = session.guard(end_fetch)
    fetch = _BaseDataLoaderIter.__next__
    iterate = DataLoader.__iter__

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        begin(self)
        try:
            batch = fetch(self)
        except StopIteration:
            note(tracer.end_epoch, id(self._dataset))
            raise
        except BaseException:
            note(tracer.abort, INPUT)
            raise
        end(self, batch)
        return batch

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807 - starting workers is waiting for input too
        begin_iterator(self)
        try:
            return iterate(self)
        finally:
            note(tracer.end, INPUT)

    session.replace(_BaseDataLoaderIter, "__next__", __next__)
    session.replace(DataLoader, "__iter__", __iter__)


def samples_in(batch: Any) -> int:
    """How many samples a collated batch holds; -1 when it does not show."""
    if isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    if isinstance(batch, dict) and batch:
        batch = next(iter(batch.values()))
    if isinstance(batch, torch.Tensor) and batch.dim():
        return batch.shape[0]
    return -1  # a list of lists may be anything: the samples of one field, or one sample's fields


# Backward


def _watch_backward(session: Session, search: _OptimizerSearch) -> None:
    tracer, note = session.tracer, session.guard(session.recorder.note)
    begin_backward, end_backward = tracer.begin_backward, tracer.end_backward

    def begin() -> None:
        session.backwards_open += 1
        if tracer.gpu is not None:
            tracer.gpu.look_at_memory()
        session.recorder.note(begin_backward, None)

    def end() -> None:
        session.backwards_open -= 1
        if not search.is_over:
            search.look()
        if tracer.by_hand:
            session.recorder.note_and_digest(end_backward, None)
        else:
            session.recorder.note(end_backward, None)

    guarded_begin, guarded_end = session.guard(begin), session.guard(end)

    def abort() -> None:
        session.backwards_open = 0
        note(tracer.abort, BACKWARD)

    # Tensor.backward calls torch.autograd.backward: one place serves both.
    for name in ("backward", "grad"):
        function = getattr(torch.autograd, name)
        timed = _timed_backward(session, function, guarded_begin, guarded_end, abort)
        session.replace(torch.autograd, name, timed)


def _timed_backward(
    session: Session,
    function: Callable[..., Any],
    begin: Callable[[], Any],
    end: Callable[[], Any],
    abort: Callable[[], None],
) -> Callable[..., Any]:
    @functools.wraps(function)
    def backward(*arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return function(*arguments, **options)
        if session.thread != get_ident():
            session.follow_this_thread()
        begin()
        try:
            result = function(*arguments, **options)
        except BaseException:
            abort()
            raise
        end()
        return result

    return backward


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
    opened: Any = None

    def begin(optimizer: Any) -> None:
        nonlocal opened
        identity = id(optimizer)
        if identity not in seen or not session.identified:  # new, or inherited through a fork
            known.add(optimizer)
            session.identify()
            search.is_over = True
            tracer.by_hand = False
        opened = recorder.note(begin_optimizer, identity)

    def end(optimizer: Any) -> None:
        gpu = tracer.gpu
        dry = None if gpu is None or opened is None else gpu.queue_is_dry(opened)
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


# Checkpoints


def _watch_checkpoints(session: Session) -> None:
    tracer, note = session.tracer, session.guard(session.recorder.note)
    save = torch.save

    @functools.wraps(save)
    def timed_save(*arguments: Any, **options: Any) -> Any:
        note(tracer.begin, CHECKPOINT)
        try:
            return save(*arguments, **options)
        finally:
            note(tracer.end, CHECKPOINT)

    session.replace(torch, "save", timed_save)


# Copies to the device


def _watch_copies(session: Session) -> None:
    note = session.guard(session.recorder.note)
    begin, end = session.tracer.begin, session.tracer.end

    def timed(function: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def copy(self: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling() or not target(self, arguments, options):
                return function(self, *arguments, **options)
            note(begin, H2D)
            try:
                return function(self, *arguments, **options)
            finally:
                note(end, H2D)

        return copy

    session.replace(torch.Tensor, "to", timed(torch.Tensor.to, _moves_to_gpu))
    session.replace(torch.Tensor, "cuda", timed(torch.Tensor.cuda, _is_on_host))
    session.replace(torch.Tensor, "copy_", timed(torch.Tensor.copy_, _fills_from_host))


def _is_on_host(tensor: Any, arguments: Any, options: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def _moves_to_gpu(tensor: Any, arguments: Any, options: Any) -> bool:
    target = arguments[0] if arguments else options.get("device")
    if type(target) is torch.device:
        kind = target.type
    elif type(target) is str:
        kind = target.partition(":")[0]
    elif type(target) is int:
        kind = "cuda"
    elif isinstance(target, torch.Tensor):
        kind = target.device.type
    else:
        return False
    return kind in _GPU_KINDS and tensor.device.type == "cpu"


def _fills_from_host(tensor: Any, arguments: Any, options: Any) -> bool:
    source = arguments[0] if arguments else options.get("other")
    return (
        tensor.device.type in _GPU_KINDS
        and isinstance(source, torch.Tensor)
        and source.device.type == "cpu"
    )


# Garbage collection


def _watch_garbage_collection(session: Session) -> None:
    tracer, recorder = session.tracer, session.recorder
    began = 0

    def collect(phase: str, details: dict[str, int]) -> None:
        nonlocal began
        if session.thread != get_ident():
            return  # a thread that collects garbage need not be the one that trains
        if phase == "start":
            began = perf_counter_ns()
        else:
            recorder.note(tracer.spend, (GC, perf_counter_ns() - began))

    guarded = session.guard(collect, any_thread=True)
    gc.callbacks.append(guarded)
    session.restores.append(lambda: gc.callbacks.remove(guarded))
