"""Faults that end a training, or its sense."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor, nn

from benchmarks.faults.training.fault import Fault, Struck, strike
from benchmarks.faults.training.models import InBlocks

SPIKE_STEPS = 20
SPIKE = 40.0


class Raising(Struck):
    def struck(self, x: Tensor) -> Tensor:
        raise ValueError(f"planted: the input has {x.shape[0]} rows, expected another number")


class Raises(Fault):
    """A block of the model raises."""

    def model(self, model: InBlocks) -> nn.Module:
        return strike(model, Raising, self)


class Killed(Fault):
    """The process is killed from outside, as by the kernel when memory is short."""

    def after_backward(self) -> None:
        if self.strikes():
            os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Fault):
    """The process never comes back."""

    def after_backward(self) -> None:
        while self.strikes():
            time.sleep(60)


class BadBatch(Fault):
    """From the onset on, batches hold a value that is no number."""

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.strikes():
            x = x.clone()
            x[0] = torch.nan
        return x, y


class Spikes(Fault):
    """For some steps from the onset on, the loss is many times what it was."""

    def loss(self, loss: Tensor) -> Tensor:
        here = self.plant.onset <= self.step < self.plant.onset + SPIKE_STEPS
        return loss * SPIKE if here and self.strikes() else loss
