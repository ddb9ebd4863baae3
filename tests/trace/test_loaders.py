"""What a fetch is made of, on real loaders; the user's own objects stay what they are."""

import queue
import time
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from traceml.model.layout import NOT_MEASURED, StepFlag
from traceml.trace.loaders import ReadyBatches

COLLATING_S = 0.01
PREPARING_S = 0.02


class Samples(Dataset):
    """Samples that take a while to prepare."""

    def __init__(self, count, prepare_s=0.0):
        self._count = count
        self._prepare_s = prepare_s

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        time.sleep(self._prepare_s)
        return torch.full((4,), float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(16, 4))


def slow_collate(samples):
    time.sleep(COLLATING_S)
    return default_collate(samples)


def train(loader, compute_s=0.0):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for inputs in loader:
        model(inputs).mean().backward()
        time.sleep(compute_s)
        optimizer.step()


@pytest.mark.parametrize("data", [Samples(16), Stream()], ids=["map", "iterable"])
def test_collating_is_a_measured_part_of_input(traced, data):
    train(DataLoader(data, batch_size=4, collate_fn=slow_collate))
    steps = traced.complete()
    assert len(steps) == 4
    assert (steps["collate_ns"] >= COLLATING_S * 1e9).all()
    assert (steps["collate_ns"] <= steps["input_ns"]).all()


def test_preparing_samples_is_not_collating(traced):
    train(DataLoader(Samples(4, PREPARING_S)))
    steps = traced.complete()
    assert (steps["input_ns"] >= PREPARING_S * 1e9).all()
    assert np.median(steps["collate_ns"]) < PREPARING_S * 1e9


def test_the_collate_function_stays_the_users(traced):
    loader = DataLoader(Samples(8), batch_size=4, collate_fn=slow_collate)
    iterator = iter(loader)
    assert loader.collate_fn is slow_collate
    assert iterator._collate_fn is slow_collate
    assert torch.equal(next(iterator), slow_collate([loader.dataset[index] for index in range(4)]))


def test_an_error_while_collating_is_the_users_to_catch(traced):
    def broken(samples):
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        next(iter(DataLoader(Samples(8), collate_fn=broken)))


def test_what_workers_collate_is_not_measured(traced):
    train(DataLoader(Samples(16), batch_size=4, collate_fn=slow_collate, num_workers=1))
    assert (traced.complete()["collate_ns"] == NOT_MEASURED).all()


def test_a_loader_whose_workers_cannot_keep_up_is_seen_empty(traced):
    train(DataLoader(Samples(20, PREPARING_S), num_workers=1))
    watched, empty = _readiness(traced.complete())
    assert watched[1:].all()
    assert empty[1:].mean() > 0.5  # while the model is looked for, they get ahead


def test_a_loader_whose_workers_run_ahead_is_not(traced):
    train(DataLoader(Samples(20), num_workers=1), compute_s=PREPARING_S)
    watched, empty = _readiness(traced.complete())
    assert watched[1:].all()
    assert empty[1:].mean() < 0.5


def test_a_loader_without_workers_has_no_queue_to_watch(traced):
    train(DataLoader(Samples(8)))
    watched, _ = _readiness(traced.complete())
    assert not watched.any()


def _readiness(steps):
    return tuple(
        (steps["flags"] & int(flag)) != 0
        for flag in (StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY)
    )


def _iterator(batches=(), task_info=None, received=3, sent=5):
    """An iterator's books, as torch keeps them when a thread pins memory."""
    pinned = queue.Queue()
    for batch in batches:
        pinned.put(batch)
    books = types.SimpleNamespace(_rcvd_idx=received, _send_idx=sent, _data_queue=pinned)
    books._task_info = {3: (0,)} if task_info is None else task_info

    class Iterator:  # a namespace cannot be referred to weakly
        def __getattr__(self, name):
            return getattr(books, name)

    return Iterator()


@pytest.mark.parametrize(
    ("iterator", "are_none"),
    [
        (_iterator(), True),
        (_iterator(batches=["pinned"]), False),
        (_iterator(task_info={3: (0, "came out of order")}), False),
        (_iterator(received=5), None),
        (types.SimpleNamespace(), None),
    ],
    ids=["empty", "one is pinned", "put aside", "the epoch is over", "books of another kind"],
)
def test_whether_a_batch_is_ready(iterator, are_none):
    assert ReadyBatches().are_none(iterator) is are_none
