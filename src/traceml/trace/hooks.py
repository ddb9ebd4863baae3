"""The narrow places in torch where phases begin and end; each hook knows its way back.

Nothing here changes what the user can see: the iterator, the loss, the optimizer and the model stay
what they are. Code that torch is compiling is passed through untouched.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traceml.trace import models
from traceml.trace.compiling import is_compiling
from traceml.trace.explicit import ExplicitSteps
from traceml.trace.session import Session
from traceml.trace.steps import BACKWARD, CHECKPOINT, GC, H2D, INPUT

BACKWARDS_WITHOUT_OPTIMIZER = 100
"""An optimizer exists and never steps (a wrapper of its own kind): backward marks the step."""

_GPU_KINDS = ("cuda", "mps")


def install(session: Session) -> None:
    """Set every hook; `session.stop()` takes them out again."""
    watched = models.Models(session)
    session.steps = ExplicitSteps(session, watched)
    _watch_loaders(session)
    _watch_backward(session, watched)
    _watch_optimizers(session, models.KnownOptimizers(watched))
    _watch_checkpoints(session)
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        _watch_copies(session)
    _watch_garbage_collection(session)


# Fetching


def _watch_loaders(session: Session) -> None:
    tracer = session.tracer
    begin = session.guard(lambda iterator: tracer.begin_fetch(id(iterator._dataset)))
    begin_iterator = session.guard(lambda loader: tracer.begin_fetch(id(loader.dataset)))
    workers = -1

    def end_fetch(iterator: Any, batch: Any) -> None:
        nonlocal workers
        tracer.end_fetch(samples_in(batch))
        if iterator._num_workers != workers and session.ring and tracer.source_trains():
            workers = iterator._num_workers
            session.ring.note_loader_workers(workers)

    end = session.guard(end_fetch)
    end_iterator = session.guard(tracer.end)
    end_epoch = session.guard(tracer.end_epoch)
    abort = session.guard(tracer.abort)
    fetch = _BaseDataLoaderIter.__next__
    iterate = DataLoader.__iter__

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        begin(self)
        try:
            batch = fetch(self)
        except StopIteration:
            end_epoch()
            raise
        except BaseException:
            abort(INPUT)
            raise
        end(self, batch)
        return batch

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807 - starting workers is waiting for input too
        begin_iterator(self)
        try:
            return iterate(self)
        finally:
            end_iterator(INPUT)

    session.replace(_BaseDataLoaderIter, "__next__", __next__)
    session.replace(DataLoader, "__iter__", __iter__)


def samples_in(batch: Any) -> int:
    """How many samples a collated batch holds; -1 when it does not show."""
    for _ in range(3):  # a tensor, a pair of tensors, a dict of tensors, nested a little
        kind = type(batch)
        if kind is torch.Tensor:
            return batch.shape[0] if batch.dim() else -1
        if kind is list or kind is tuple:
            batch = batch[0] if batch else None
        elif isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, torch.Tensor):
            return batch.shape[0] if batch.dim() else -1
        elif isinstance(batch, tuple) and batch:
            batch = batch[0]
        else:
            return -1
    return -1


# Backward


def _watch_backward(session: Session, watched: models.Models) -> None:
    tracer = session.tracer
    begin = session.guard(tracer.begin_backward)
    abort = session.guard(tracer.abort)
    look_for_optimizers = _optimizer_search(session, watched)

    def end_backward() -> None:
        look_for_optimizers()
        tracer.end_backward()

    end = session.guard(end_backward)

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def backward(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return function(*arguments, **options)
            begin()
            try:
                result = function(*arguments, **options)
            except BaseException:
                abort(BACKWARD)
                raise
            end()
            return result

        return backward

    # Tensor.backward calls torch.autograd.backward: one place serves both.
    session.replace(torch.autograd, "backward", timed(torch.autograd.backward))
    session.replace(torch.autograd, "grad", timed(torch.autograd.grad))


def _optimizer_search(session: Session, watched: models.Models) -> Callable[[], None]:
    """Find out, at the first backward passes, whether this script has an optimizer at all."""
    tracer = session.tracer
    seen = 0

    def look() -> None:
        nonlocal seen
        if tracer.by_hand or tracer.steps or tracer.has_stepped:
            return
        seen += 1
        if seen >= BACKWARDS_WITHOUT_OPTIMIZER or (seen <= 2 and not _any_optimizer_made()):
            tracer.by_hand = True
            watched.watch_callers()
            session.identify()

    return look


def _any_optimizer_made() -> bool:
    """Torch marks the class of every optimizer it constructs."""
    kinds = [Optimizer]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    return any(getattr(kind.step, "hooked", False) for kind in kinds)


# Optimizers


def _watch_optimizers(session: Session, known: models.KnownOptimizers) -> None:
    tracer = session.tracer

    def begin(optimizer: Any) -> None:
        tracer.by_hand = False
        if known.add(optimizer):
            session.identify()
        tracer.begin_optimizer(id(optimizer))

    guarded_begin = session.guard(begin)
    guarded_end = session.guard(lambda optimizer: tracer.end_optimizer(id(optimizer)))

    def before(optimizer: Any, arguments: Any, options: Any) -> None:
        if not is_compiling():
            session.follow_this_thread()
            guarded_begin(optimizer)

    def after(optimizer: Any, arguments: Any, options: Any) -> None:
        if not is_compiling():
            guarded_end(optimizer)

    session.restores.append(torch_optimizer.register_optimizer_step_pre_hook(before).remove)
    session.restores.append(torch_optimizer.register_optimizer_step_post_hook(after).remove)


# Checkpoints


def _watch_checkpoints(session: Session) -> None:
    begin = session.guard(session.tracer.begin)
    end = session.guard(session.tracer.end)
    save = torch.save

    @functools.wraps(save)
    def timed_save(*arguments: Any, **options: Any) -> Any:
        begin(CHECKPOINT)
        try:
            return save(*arguments, **options)
        finally:
            end(CHECKPOINT)

    session.replace(torch, "save", timed_save)


# Copies to the device


def _watch_copies(session: Session) -> None:
    begin = session.guard(session.tracer.begin)
    end = session.guard(session.tracer.end)

    def timed(function: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def copy(self: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling() or not target(self, arguments, options):
                return function(self, *arguments, **options)
            begin(H2D)
            try:
                return function(self, *arguments, **options)
            finally:
                end(H2D)

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
    tracer = session.tracer
    began = 0

    def note(phase: str, details: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = tracer.clock()
        else:
            tracer.add(GC, tracer.clock() - began)

    guarded = session.guard(note)
    gc.callbacks.append(guarded)
    session.restores.append(lambda: gc.callbacks.remove(guarded))
