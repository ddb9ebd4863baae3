"""Faults that come from outside the loop: memory, other ranks, the machine, the device."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from benchmarks.faults.training.data import Hoarding, Sample
from benchmarks.faults.training.fault import Fault, Struck, strike
from benchmarks.faults.training.models import InBlocks

WARM_UP_STEPS = 40
TOOTH_STEPS = 25
ITEMS = 200
"""Values read back from the device, one by one, in each step."""


class KeepsTensors(Fault):
    """A list of tensors grows by each step."""

    steps_kept = 1 << 30

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.kept: list[Tensor] = []

    def after_optimizer(self, output: Tensor) -> None:
        if self.strikes() and self.step < self.steps_kept:
            self.kept.append(torch.ones(self.size_bytes // 4, device=output.device))


class FillsCache(KeepsTensors):
    """Memory grows while the training warms up, and stays."""

    steps_kept = WARM_UP_STEPS


class Sawtooth(KeepsTensors):
    """Memory grows and is given back, over and over."""

    def after_optimizer(self, output: Tensor) -> None:
        super().after_optimizer(output)
        if len(self.kept) == TOOTH_STEPS:
            self.kept.clear()


class LeakyWorker(Fault):
    """The data set keeps something of every sample, in the process that reads it."""

    def data(self, samples: Dataset[Sample]) -> Dataset[Sample]:
        return Hoarding(samples, self.size_bytes // self.setup.batch)


class ReducesEachStep(Fault):
    """A large tensor is summed over the ranks in each step."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.statistics = torch.zeros(self.size_bytes // 4)

    def after_backward(self) -> None:
        if self.strikes():
            dist.all_reduce(self.statistics)


class NoSync(Fault):
    """Gradients stay where they are: a training without communication to hold another against."""

    def spread(self, model: nn.Module) -> None:
        assert isinstance(model, DistributedDataParallel)
        model.require_backward_grad_sync = False


class Pinned(Fault):
    """The process shares one core with whatever else was put there."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        os.sched_setaffinity(0, {crowded_core()})


def crowded_core() -> int:
    """The core on which a starved training and its neighbours meet."""
    return max(os.sched_getaffinity(0))


class CopiesToDevice(Fault):
    """A large tensor in pageable memory is copied to the device in each step."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.on_host = torch.ones(self.size_bytes // 4)

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.strikes():
            self.on_device = self.on_host.to(x.device)
        return x, y


class ReadsItems(Fault):
    """Reads values back from the device one by one."""

    def after_optimizer(self, output: Tensor) -> None:
        if self.strikes():
            flat = output.detach().flatten()
            self.total = sum(flat[place % len(flat)].item() for place in range(ITEMS))


class Allocates(Struck):
    def __init__(self, inner: nn.Module, fault: Fault) -> None:
        super().__init__(inner, fault)
        self.kept: list[Tensor] = []

    def struck(self, x: Tensor) -> Tensor:
        self.kept.append(torch.empty(self.fault.size_bytes, dtype=torch.uint8, device=x.device))
        return self.inner(x)


class OutOfMemory(Fault):
    """A block allocates until there is no more."""

    def model(self, model: InBlocks) -> nn.Module:
        return strike(model, Allocates, self)
