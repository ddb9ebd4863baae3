"""Fetching from torch's loaders: how long it takes, what of it is collating, and what was ready."""

from __future__ import annotations

import functools
import queue
import select
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.session import Session
from traceml.trace.spending import Spending
from traceml.trace.steps import COLLATE, INPUT


def watch(session: Session, spending: Spending) -> None:
    """Time every fetch, and the start of every loader's workers."""
    tracer, recorder = session.tracer, session.recorder
    note = session.guard(recorder.note)
    collating = Collating(session, spending)
    begin, end = _fetch_events(session, collating)
    begin_iterator = session.guard(lambda loader: recorder.begin_fetch(id(loader.dataset)))
    time_collating = session.guard(collating.watch)
    fetch = _BaseDataLoaderIter.__next__
    iterate = DataLoader.__iter__

    def abort() -> None:
        note(tracer.abort, INPUT)
        session.failures.note("input")

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        try:
            begin(self)
            try:
                batch = fetch(self)
            except StopIteration:
                note(tracer.end_epoch, id(self._dataset))
                raise
            end(self, batch)
            return batch
        except StopIteration as error:
            drop_our_frames(error)
            raise
        except BaseException as error:
            abort()
            drop_our_frames(error)
            raise

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807 - starting workers is waiting for input too
        try:
            begin_iterator(self)
            iterator = iterate(self)
            note(tracer.end, INPUT)
            time_collating(iterator)
            return iterator
        except BaseException as error:
            abort()
            drop_our_frames(error)
            raise

    session.replace(_BaseDataLoaderIter, "__next__", __next__)
    session.replace(DataLoader, "__iter__", __iter__)


def _fetch_events(
    session: Session, collating: Collating
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What happens when a batch is asked for, and when it is there."""
    tracer, recorder = session.tracer, session.recorder
    ready = ReadyBatches()
    workers = -1

    def begin(iterator: Any) -> None:
        is_empty = ready.are_none(iterator) if iterator._num_workers else None
        recorder.begin_fetch(id(iterator._dataset))
        if is_empty is not None and tracer.source_trains():
            recorder.note_on_host(tracer.see_loader, is_empty)

    def end(iterator: Any, batch: Any) -> None:
        nonlocal workers
        if collating.spent_ns:
            recorder.note_on_host(tracer.spend_within, (COLLATE, collating.spent_ns))
            collating.spent_ns = 0
        samples = -1
        try:
            samples = samples_in(batch)
        finally:  # a batch of the user's own kind may fail us: the fetch is over all the same
            recorder.note(tracer.end_fetch, samples)
        if iterator._num_workers != workers and session.ring and tracer.source_trains():
            workers = iterator._num_workers
            session.ring.note_loader(workers, bool(iterator._pin_memory))

    return session.guard(begin), session.guard(end)


def samples_in(batch: Any) -> int:
    """How many samples a collated batch holds; -1 when it does not show."""
    if isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    if isinstance(batch, dict) and batch:
        batch = next(iter(batch.values()))
    if isinstance(batch, torch.Tensor) and batch.dim():
        return batch.shape[0]
    return -1  # a list of lists may be anything: the samples of one field, or one sample's fields


class Collating:
    """The collating of loaders without workers, since the last fetch that ended."""

    def __init__(self, session: Session, spending: Spending) -> None:
        self._session = session
        self._spending = spending
        self.spent_ns = 0

    def watch(self, iterator: Any) -> None:
        """Time the collating of an iterator, in its own fetcher.

        The loader's `collate_fn` stays the user's, and the one that worker processes get.
        """
        if type(iterator) is _SingleProcessDataLoaderIter:
            fetcher = getattr(iterator, "_dataset_fetcher", None)
            collate = getattr(fetcher, "collate_fn", None)
            if fetcher is not None and collate is not None:
                fetcher.collate_fn = self._timed(collate)

    def _timed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        session, spending = self._session, self._spending
        collected_ns = spending.collected_ns

        @functools.wraps(function)
        def collate(samples: Any) -> Any:
            spent_ns = spending.charged_ns + collected_ns[0]
            began_ns = perf_counter_ns()
            try:
                batch = function(samples)
                if session.thread != get_ident():
                    return batch
                took = perf_counter_ns() - began_ns
                self.spent_ns += took - (spending.charged_ns + collected_ns[0] - spent_ns)
                return batch
            except BaseException as error:
                drop_our_frames(error)
                raise

        return collate


class ReadyBatches:
    """Whether a loader's workers have a batch ready: asked without taking it and without waiting.

    The queue's own `empty()` would build a selector each time: ten times the cost.
    """

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._queue_is_empty: Callable[[], bool | None] = lambda: None

    def are_none(self, iterator: Any) -> bool | None:
        """Whether none is ready; `None` where that is not known, or where no more is to come."""
        try:
            if iterator._rcvd_idx >= iterator._send_idx:
                return None
            if len(iterator._task_info.get(iterator._rcvd_idx, ())) > 1:
                return False  # it came out of order, and was put aside
            if self._iterator() is not iterator:
                self._queue_is_empty = _emptiness(iterator._data_queue)
                self._iterator = weakref.ref(iterator)  # weak: its end ends the workers
            return self._queue_is_empty()
        except AttributeError as error:
            if is_interruption(error):
                raise
            return None  # torch keeps its books in another way


def _emptiness(batches: Any) -> Callable[[], bool | None]:
    """How to ask a queue of batches whether it is empty."""
    if isinstance(batches, queue.Queue):  # filled by the thread that pins memory
        waiting = batches.queue
        return lambda: not waiting
    if not hasattr(select, "poll"):
        return lambda: None
    poll = select.poll()
    poll.register(batches._reader.fileno(), select.POLLIN)
    return lambda: not poll.poll(0)
