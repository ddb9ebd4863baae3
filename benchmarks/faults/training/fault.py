"""The places of a training at which a fault can strike; as it stands here, none does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from benchmarks.faults.training.data import Collate, Sample
from benchmarks.faults.training.models import InBlocks
from benchmarks.faults.training.plan import NOTED_IN, Plant, Setup

STRUCK_BLOCK = 1
"""The block of the model that faults in a module strike: `blocks.1`."""


class Fault:
    """A healthy training; each fault overrides the places it strikes."""

    def __init__(self, setup: Setup, plant: Plant, rank: int) -> None:
        self.setup = setup
        self.plant = plant
        self.rank = rank
        self.step = 0

    @property
    def size_s(self) -> float:
        """The fault's size, where it is a time."""
        return self.plant.size / 1e3

    @property
    def size_bytes(self) -> int:
        """The fault's size, where it is an amount of memory."""
        return int(self.plant.size * 1e6)

    def strikes(self) -> bool:
        """Whether the fault is there, here and now."""
        return self.plant.strikes(self.rank, self.step)

    def begin_step(self, step: int) -> None:
        """Called before a step's first batch is fetched: notes the onset where it comes."""
        self.step = step
        place = os.environ.get(NOTED_IN)
        if place and self.rank == max(self.plant.rank, 0) and step == self.plant.onset:
            onset = {"step": step, "unix_s": time.time()}
            Path(place).write_text(json.dumps(onset))

    def data(self, samples: Dataset[Sample]) -> Dataset[Sample]:
        return samples

    def collate(self) -> Collate:
        return default_collate

    def model(self, model: InBlocks) -> nn.Module:
        return model

    def optimizer(self, kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
        return kind

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """Called with the optimizer when it is there."""

    def spread(self, model: nn.Module) -> None:
        """Called when the model is made ready for its ranks."""

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y

    def loss(self, loss: Tensor) -> Tensor:
        return loss

    def after_backward(self) -> None:
        """Called between the last backward of a step and its optimizer."""

    def after_optimizer(self, output: Tensor) -> None:
        """Called between the optimizer and the next fetch, with what the model said."""


class Struck(nn.Module):
    """A block of the model with a fault in it; evaluation is spared."""

    def __init__(self, inner: nn.Module, fault: Fault) -> None:
        super().__init__()
        self.inner = inner
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.fault.strikes():
            return self.struck(x)
        return self.inner(x)

    def struck(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def strike(model: InBlocks, kind: Any, fault: Fault) -> InBlocks:
    """Put a struck block in its place."""
    model.blocks[STRUCK_BLOCK] = kind(model.blocks[STRUCK_BLOCK], fault)
    return model
