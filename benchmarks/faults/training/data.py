"""The data set: a sample's index tells its step, so that a fault can strike at that step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.faults.training.models import POOL, TASKS
from benchmarks.faults.training.plan import Setup

Sample = tuple[Tensor, Tensor]
Collate = Callable[[list[Sample]], Any]


class Samples(Dataset[Sample]):
    """Random inputs with random classes."""

    def __init__(self, model: str, count: int) -> None:
        self.inputs = TASKS[model].inputs(POOL)
        self.classes = torch.randint(0, 10, (POOL,))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        return self.inputs[index % POOL], self.classes[index % POOL]


class Delayed(Dataset[Sample]):
    """Another data set's samples, each after a while that depends on its step."""

    def __init__(
        self, inner: Dataset[Sample], per_step: int, delay_s: Callable[[int], float]
    ) -> None:
        self.inner = inner
        self.per_step = per_step
        self.delay_s = delay_s

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        delay_s = self.delay_s(index // self.per_step)
        if delay_s:
            time.sleep(delay_s)
        return self.inner[index]


class Hoarding(Dataset[Sample]):
    """Another data set's samples; in whichever process it is read, it keeps bytes of each."""

    def __init__(self, inner: Dataset[Sample], bytes_per_sample: int) -> None:
        self.inner = inner
        self.bytes_per_sample = bytes_per_sample
        self.kept: list[bytearray] = []

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        self.kept.append(bytearray(b"x" * self.bytes_per_sample))
        return self.inner[index]


class Batches(Dataset[Sample]):
    """Another data set's samples, a whole batch at once: a GPU would wait for single ones."""

    def __init__(self, inner: Samples, batch: int) -> None:
        self.inner = inner
        self.batch = batch

    def __len__(self) -> int:
        return len(self.inner) // self.batch

    def __getitem__(self, number: int) -> Sample:
        chosen = torch.arange(number * self.batch, (number + 1) * self.batch) % POOL
        return self.inner.inputs[chosen], self.inner.classes[chosen]


class SlowCollate:
    """Makes a batch of samples, after a while."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __call__(self, samples: list[Sample]) -> Any:
        time.sleep(self.delay_s)
        return default_collate(samples)


def loader(setup: Setup, data: Dataset[Sample], collate: Collate, epoch: int) -> DataLoader[Any]:
    """The batches of one epoch, in order."""
    total = setup.steps * setup.accumulate * setup.batch
    first, last = total * epoch // setup.epochs, total * (epoch + 1) // setup.epochs
    if setup.cuda and isinstance(data, Samples):
        numbers = range(first // setup.batch, last // setup.batch)
        return DataLoader(Batches(data, setup.batch), batch_size=None, sampler=numbers)
    return DataLoader(
        data,
        batch_size=setup.batch,
        sampler=range(first, last),
        num_workers=setup.workers,
        collate_fn=collate,
        drop_last=True,
    )
