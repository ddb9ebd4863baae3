"""Fetching from torch's loaders: how long it takes, what of it is collating, and what was ready."""

from __future__ import annotations

import functools
import queue
import select
import weakref
from collections import UserDict
from collections.abc import Callable, Iterable
from itertools import islice
from math import prod
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from traceml.steps.events import (
    ABORT,
    COLLATE,
    EMPTY,
    END,
    END_EPOCH,
    END_FETCH,
    INPUT,
    SEE_LOADER,
    SPEND_WITHIN,
    fetched,
)
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.optimizer_search import OptimizerSearch
from traceml.trace.script_objects import Numbers, own_attributes
from traceml.trace.session import Session
from traceml.trace.spending import Spending


def watch(
    session: Session, spending: Spending, search: OptimizerSearch, see: Callable[[Any], None]
) -> None:
    """Time every fetch, and the start of every loader's workers.

    `see` is called with the iterator of a loader that training fetches from, once per loader.
    """
    recorder = session.recorder
    note = session.guard(recorder.note)
    collating = Collating(session, spending)
    sources = Sources(session)
    begin, end = _fetch_events(session, sources, search, see)
    end_epoch = session.guard(lambda iterator: recorder.note(END_EPOCH, sources.of(iterator)))
    begin_iterator = session.guard(lambda loader: recorder.begin_fetch(sources.of(loader)))
    time_collating = session.guard(collating.watch)
    fetch = _BaseDataLoaderIter.__next__
    iterate = DataLoader.__iter__

    def abort() -> None:
        note(ABORT, INPUT)
        session.failures.note("input")

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        try:
            begin(self)
            try:
                batch = fetch(self)
            except StopIteration:
                end_epoch(self)
                raise
            end(batch)
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
            note(END, INPUT)
            time_collating(iterator)
            return iterator
        except BaseException as error:
            abort()
            drop_our_frames(error)
            raise

    session.replace(_BaseDataLoaderIter, "__next__", __next__)
    session.replace(DataLoader, "__iter__", __iter__)


def _fetch_events(
    session: Session,
    sources: Sources,
    search: OptimizerSearch,
    see: Callable[[Any], None],
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What happens when a batch is asked for, and when it is there."""
    recorder, ready = session.recorder, ReadyBatches()
    see_training_loader = _training_loader(session, see)

    def begin(iterator: Any) -> None:
        if recorder.iterator() is not iterator:
            recorder.iterator_source, recorder.workers = sources.of(iterator), iterator._num_workers
            recorder.iterator = weakref.ref(iterator)
        session.find_new_modules()
        if recorder.workers:
            ready.ask(iterator)
        if recorder.is_watching:
            search.look_for_change()
        recorder.begin_fetch(recorder.iterator_source)

    def end(batch: Any) -> None:
        if recorder.collated_ns:
            recorder.note_spent(SPEND_WITHIN, COLLATE, recorder.collated_ns)
            recorder.collated_ns = 0
        if recorder.workers:
            was_ready = ready.was_ready(recorder.iterator())
            if was_ready is not None:
                is_empty = 0 if was_ready else EMPTY
                recorder.note_on_host(SEE_LOADER, recorder.iterator_source, is_empty)
        contents = -1
        try:
            contents = contents_of(batch)
        finally:  # a batch of the user's own kind may fail us: the fetch is over all the same
            recorder.note(END_FETCH, contents, 0)
        if recorder.workers != recorder.training_workers:
            see_training_loader(recorder.iterator())

    recorder.contents_of = lambda batch: contents_of(batch)
    return session.shortcut("begin_fetch", begin), session.shortcut("end_fetch", end)


def _training_loader(session: Session, see: Callable[[Any], None]) -> Callable[[Any], None]:
    """Tells how many workers the loader has that training fetches from, whenever that changes."""
    recorder = session.recorder

    def see_training_loader(iterator: Any) -> None:
        """A batch came from a loader that has another number of workers."""
        if session.ring is not None and recorder.source == recorder.trained:
            recorder.training_workers = iterator._num_workers
            session.ring.note_loader(recorder.training_workers, bool(iterator._pin_memory))
            see(iterator)

    return see_training_loader


class Sources:
    """Numbers the loaders of this process, so that each is known for what it is used for.

    Not by its dataset: the loaders for training and for validation may share one, with a sampler
    each. A loader's iterator knows the loader's sampler, and that is the loader's own.
    """

    def __init__(self, session: Session) -> None:
        self._numbers = Numbers()
        session.forgets.append(self._numbers.forget)

    def of(self, owner: Any) -> int:
        """The number of a loader, or of the loader that an iterator belongs to."""
        sampler = owner._index_sampler
        number = self._numbers.find(sampler)
        if number is None:
            number = self._numbers.of(sampler, _reference(sampler, owner))
        return number


def _reference(sampler: Any, loader: Any) -> Callable[[], Any]:
    """How to ask for a loader's sampler without keeping it alive."""
    try:
        return weakref.ref(sampler)
    except TypeError as error:  # a plain list of indices will do as a sampler
        if is_interruption(error):
            raise
        owner = weakref.ref(loader)
        return lambda: getattr(owner(), "_index_sampler", None)


MAX_FIELDS_LOOKED_AT = 16


def contents_of(batch: Any) -> int:
    """How much a collated batch holds, as END_FETCH tells it: its samples, and the elements of its
    first tensor (`fetched` in steps/events.py); -1 when it does not show."""
    shape = shape_in(batch)
    return fetched(shape[0], prod(shape)) if shape else -1


def shape_in(batch: Any) -> tuple[int, ...]:
    """The shape of a batch's first tensor; its first dimension is taken for the samples.

    A list in it may be anything: the samples of one field, or one sample's fields. Nothing of the
    batch's own is called. Empty when there is no such tensor.
    """
    first, kind = batch, type(batch)
    if kind is list or kind is tuple:
        first = batch[0] if batch else None
    elif kind is dict:
        first = next(iter(batch.values()), None)
    if isinstance(first, torch.Tensor) and (shape := first.shape):
        return shape  # as nearly always
    return _shape_in_fields(batch)


def _shape_in_fields(batch: Any) -> tuple[int, ...]:
    for field in islice(_fields_of(batch), MAX_FIELDS_LOOKED_AT):
        if issubclass(type(field), dict):
            field = next(iter(dict.values(field)), None)
        if isinstance(field, torch.Tensor) and field.dim():
            return field.shape
    return ()


def _fields_of(batch: Any) -> Iterable[Any]:
    """What a batch is made of: a list, a mapping, or the fields of a record."""
    kind = type(batch)
    if issubclass(kind, (list, tuple)):
        return tuple.__iter__(batch) if issubclass(kind, tuple) else list.__iter__(batch)
    if issubclass(kind, dict):
        return dict.values(batch)
    attributes = own_attributes(batch)
    if issubclass(kind, UserDict):  # the batches of Hugging Face's tokenizers
        data = attributes.get("data")
        return dict.values(data) if isinstance(data, dict) else ()
    names = getattr(kind, "__dataclass_fields__", ())
    return [attributes.get(name) for name in names]


class Collating:
    """Times the collating of loaders without workers."""

    def __init__(self, session: Session, spending: Spending) -> None:
        self._session = session
        self._spending = spending

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
        session, recorder, spending = self._session, self._session.recorder, self._spending
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
                recorder.collated_ns += took - (spending.charged_ns + collected_ns[0] - spent_ns)
                return batch
            except BaseException as error:
                drop_our_frames(error)
                raise

        return collate


class ReadyBatches:
    """Whether a loader's workers had the next batch ready when it was asked for.

    Batches come in any order and are handed out in theirs. What waits in the loader's queue cannot
    be looked at from outside unless a thread pins memory, so in the other case a batch that came
    only after another one counts as not ready. The queue's own `empty()` would build a selector
    each time: ten times the cost.
    """

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._holds: Callable[[int | None], bool | None] = lambda number: None
        self._sees_batches = False
        self._asked: tuple[bool | None, int] = (None, 0)
        """What the queue said when a batch was asked for, and how many had come until then."""

    def ask(self, iterator: Any) -> None:
        """A batch is about to be fetched: look without taking anything and without waiting."""
        try:
            self._asked = self._has_batch(iterator), _batches_received(iterator)
        except AttributeError as error:
            if is_interruption(error):
                raise
            self._asked = (None, 0)  # torch keeps its books in another way

    def _has_batch(self, iterator: Any) -> bool | None:
        if iterator._rcvd_idx >= iterator._send_idx:
            return None  # no more is to come
        if len(iterator._task_info.get(iterator._rcvd_idx, ())) > 1:
            return True  # it came out of order, and was put aside
        if self._iterator() is not iterator:
            self._holds = _holds(iterator._data_queue)
            self._sees_batches = isinstance(iterator._data_queue, queue.Queue)
            self._iterator = weakref.ref(iterator)  # weak: its end ends the workers
        in_order = getattr(iterator, "_in_order", True)  # since torch 2.6; else any batch will do
        return self._holds(iterator._rcvd_idx if in_order else None)

    def was_ready(self, iterator: Any) -> bool | None:
        """Whether the batch that has come was there when it was asked for; `None` if not known."""
        held, received = self._asked
        if not held or self._sees_batches:
            return held
        return _batches_received(iterator) - received <= 1


def _batches_received(iterator: Any) -> int:
    """How many batches an iterator has taken out of its queue."""
    received: int = iterator._send_idx - iterator._tasks_outstanding
    return received


def _holds(batches: Any) -> Callable[[int | None], bool | None]:
    """How to ask a queue of batches whether one with a number, or any, is in it or may be."""
    if isinstance(batches, queue.Queue):  # filled by the thread that pins memory
        waiting = batches.queue
        return lambda number: any(number in (None, batch[0]) for batch in tuple(waiting))
    if not hasattr(select, "poll"):
        return lambda number: None
    poll = select.poll()
    poll.register(batches._reader.fileno(), select.POLLIN)
    return lambda number: bool(poll.poll(0))
