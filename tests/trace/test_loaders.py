"""What a fetch is made of, on real loaders; the user's own objects stay what they are."""

import gc
import queue
import time
import types
from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

import traceml
from lookahead_loader import LooksAhead
from traceml.model.record_layout import NOT_MEASURED, StepFlag
from traceml.steps import events
from traceml.store.record_file import RankFiles
from traceml.trace import loaders
from traceml.trace.loaders import ReadyBatches

COLLATING_S = 0.01
PREPARING_S = 0.05
"""Far above what a busy machine adds to a step that does next to nothing."""


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


@pytest.mark.slow
def test_what_workers_collate_is_not_measured(traced):
    train(DataLoader(Samples(16), batch_size=4, collate_fn=slow_collate, num_workers=1))
    assert (traced.complete()["collate_ns"] == NOT_MEASURED).all()


@pytest.mark.slow
def test_a_loader_whose_workers_cannot_keep_up_is_seen_empty(traced):
    train(DataLoader(Samples(20, PREPARING_S), num_workers=1))
    watched, empty = _readiness(traced.complete())
    assert watched[1:].all()
    assert empty[1:].mean() > 0.5  # while the model is looked for, they get ahead


@pytest.mark.slow
def test_a_loader_whose_workers_run_ahead_is_not(traced):
    train(DataLoader(Samples(12), num_workers=1), compute_s=4 * PREPARING_S)
    watched, empty = _readiness(traced.complete())
    assert watched[1:].all()
    assert empty[1:].mean() < 0.5


class OneSlowWorker(Samples):
    """With two workers and batches of one sample, every second batch takes long to make: far longer
    than a busy machine takes to hand over one that is ready."""

    def __getitem__(self, index):
        time.sleep(0 if index % 2 else 8 * PREPARING_S)
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_batch_that_another_one_came_before_was_not_ready(traced):
    """The quick worker's batch lies in the queue while the slow worker's is waited for."""
    train(DataLoader(OneSlowWorker(14), num_workers=2))
    steps = traced.complete()
    watched, empty = _readiness(steps)
    waited = steps["input_ns"] > 4 * PREPARING_S * 1e9
    assert waited[2:].sum() >= 4
    assert (watched & empty)[2:][waited[2:]].mean() > 0.8


def test_a_loader_without_workers_has_no_queue_to_watch(traced):
    train(DataLoader(Samples(8)))
    watched, _ = _readiness(traced.complete())
    assert not watched.any()


def _readiness(steps):
    return tuple(
        (steps["flags"] & int(flag)) != 0
        for flag in (StepFlag.LOADER_WATCHED, StepFlag.LOADER_EMPTY)
    )


def _iterator(batches=(), task_info=None, received=3, sent=5, **books):
    """An iterator's books, as torch keeps them when a thread pins memory."""
    pinned = queue.Queue()
    for number in batches:
        pinned.put((number, "pinned"))
    books = types.SimpleNamespace(
        _rcvd_idx=received, _send_idx=sent, _tasks_outstanding=2, _data_queue=pinned, **books
    )
    books._task_info = {3: (0,)} if task_info is None else task_info

    class Iterator:  # a namespace cannot be referred to weakly
        def __getattr__(self, name):
            return getattr(books, name)

    return Iterator()


@pytest.mark.parametrize(
    ("iterator", "was_ready"),
    [
        pytest.param(_iterator(), False, id="empty"),
        pytest.param(_iterator([3]), True, id="pinned"),
        pytest.param(_iterator([4]), False, id="another is pinned"),
        pytest.param(_iterator([4, 3]), True, id="pinned behind another"),
        pytest.param(_iterator([4], _in_order=False), True, id="any will do"),
        pytest.param(_iterator(task_info={3: (0, "came out of order")}), True, id="put aside"),
        pytest.param(_iterator(received=5), None, id="the epoch is over"),
        pytest.param(types.SimpleNamespace(), None, id="books of another kind"),
    ],
)
def test_whether_a_batch_is_ready(iterator, was_ready):
    ready = ReadyBatches()
    ready.ask(iterator)
    assert ready.was_ready(iterator) is was_ready


# Samples


class Pair(NamedTuple):
    names: list[str]
    inputs: torch.Tensor


@dataclass
class Record:
    scale: torch.Tensor
    inputs: torch.Tensor


class Hostile:
    """Anything that is called of it fails the test."""

    def __getattr__(self, name):
        pytest.fail(f"{name} was asked for")

    def __iter__(self):
        pytest.fail("it was iterated over")

    __len__ = __bool__ = keys = values = __iter__


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        pytest.param(torch.zeros(8, 3), 8, id="a tensor"),
        pytest.param(torch.tensor(1.0), -1, id="a number"),
        pytest.param([torch.zeros(8, 3), torch.zeros(8)], 8, id="inputs and targets"),
        pytest.param({"ids": ["a"] * 8, "inputs": torch.zeros(8, 3)}, 8, id="a dictionary"),
        pytest.param([{"inputs": torch.zeros(8, 3)}, 1], 8, id="a dictionary in a list"),
        pytest.param(UserDict(input_ids=torch.zeros(8, 3)), 8, id="a tokenizer's encoding"),
        pytest.param(Pair(["a"] * 8, torch.zeros(8, 3)), 8, id="a named tuple"),
        pytest.param(Record(torch.tensor(1.0), torch.zeros(8, 3)), 8, id="a dataclass"),
        pytest.param([[torch.zeros(8, 3)] * 2, torch.zeros(8)], 8, id="two views and a target"),
        pytest.param([(torch.zeros(3), 1), (torch.zeros(3), 2)], -1, id="samples as they were"),
        pytest.param((), -1, id="nothing"),
        pytest.param(Hostile(), -1, id="something of which nothing may be called"),
    ],
)
def test_the_samples_of_a_batch(batch, samples):
    assert events.split_fetched(loaders.contents_of(batch))[0] == samples


def test_a_loader_that_looks_ahead_gives_as_many_samples_as_it_has(traced):
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for (inputs,) in LooksAhead(loader):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    steps = traced.complete()
    assert len(steps) == 32
    assert (steps["samples"] >= 0).all()
    assert steps["samples"][8:].sum() == 24 * 8


# Which loader is which


def test_loaders_on_one_dataset_are_told_apart(traced):
    sources = loaders.Sources(traced.session)
    data = TensorDataset(torch.randn(64, 4))
    training = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48)))
    validation = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(48, 64)))
    first, second = sources.of(training), sources.of(validation)
    assert first != second
    assert sources.of(training) == sources.of(iter(training)) == first
    assert sources.of(iter(validation)) == second


def test_a_loader_in_a_dead_ones_place_is_another(traced):
    sources = loaders.Sources(traced.session)
    data = TensorDataset(torch.randn(64, 4))
    numbers = [sources.of(DataLoader(data, batch_size=8)) for _ in range(8)]
    assert len(set(numbers)) == 8


def test_a_plain_list_will_do_as_a_sampler(traced):
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_sampler=[[0, 1], [2, 3]])
    sources = loaders.Sources(traced.session)
    assert sources.of(loader) == sources.of(iter(loader)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [False, True], ids=["found steps", "explicit steps"])
def test_the_workers_that_are_noted_are_the_training_loaders(traced, explicit):
    """The loader for validation shares the dataset, and has other workers."""
    data = TensorDataset(torch.randn(32, 4))
    training = DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)
    validation = DataLoader(data, batch_size=8)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (inputs,) in training:
            with traceml.trace_step(model) if explicit else nullcontext():
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        with torch.no_grad():
            for (inputs,) in validation:
                model(inputs)
    steps = traced.complete()
    (files,) = RankFiles.all_in(traced.folder)
    assert files.head().counters["loader_workers"] == 2 + 1
    assert len(steps) == 8
    assert (steps["samples"] == 8).all()


def test_a_sampler_that_takes_no_weak_references_is_not_kept(traced):
    gone = []

    class Slotted:
        __slots__ = ()

        def __iter__(self):
            return iter([[0, 1], [2, 3]])

        def __len__(self):
            return 2

        def __del__(self):
            gone.append(True)

    for _ in range(3):
        assert len(list(DataLoader(list(range(4)), batch_sampler=Slotted()))) == 2
    gc.collect()
    assert len(gone) == 3
