"""Small models of four families, each a row of blocks, with data that fits them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

POOL = 256
"""Different samples of a data set; longer training sees them again."""
WORDS = 500


class InBlocks(nn.Module):
    """A model that is a start, a row of blocks and a head."""

    def __init__(self, start: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.start = start
        self.blocks = nn.ModuleList(blocks)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x)
        return found


class Recurrent(nn.Module):
    """A layer of an LSTM, without its state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states


class Pooled(nn.Module):
    """The mean over a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class Off(torch.autograd.Function):
    """Passes its input on, and in backward the gradient, after a while each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradients[0], None, None


class Accelerated(nn.Module):
    """A block part of whose work happens off the CPU: a third in forward, the rest in backward."""

    def __init__(self, inner: nn.Module, device_s: float) -> None:
        super().__init__()
        self.inner = inner
        self.device_s = device_s

    def forward(self, x: Tensor) -> Tensor:
        return Off.apply(self.inner(x), self.device_s / 3, self.device_s * 2 / 3)


def conv() -> InBlocks:
    def block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    head = nn.Sequential(nn.Flatten(), nn.Linear(48 * 4 * 4, 10))
    return InBlocks(nn.Identity(), [block(3, 16), block(16, 32), block(32, 48)], head)


def transformer() -> InBlocks:
    blocks: list[nn.Module] = [
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)
    ]
    return InBlocks(nn.Embedding(WORDS, 64), blocks, nn.Sequential(Pooled(), nn.Linear(64, 10)))


def lstm() -> InBlocks:
    head = nn.Sequential(Pooled(), nn.Linear(128, 10))
    return InBlocks(nn.Embedding(WORDS, 128), [Recurrent(128), Recurrent(128)], head)


def tabular(width: int = 768) -> InBlocks:
    blocks: list[nn.Module] = [
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()) for _ in range(3)
    ]
    return InBlocks(nn.Linear(64, width), blocks, nn.Linear(width, 10))


def small_tabular() -> InBlocks:
    """Next to no work for the CPU: for ranks whose work is off it."""
    return tabular(width=64)


def wide() -> InBlocks:
    """Many parameters and little work: the gradients are what there is to move."""
    return InBlocks(nn.Linear(64, 2048), [nn.Linear(2048, 2048)], nn.Linear(2048, 10))


def heavy() -> InBlocks:
    """Nothing but matrix products."""
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)]
    return InBlocks(nn.Linear(64, 1024), blocks, nn.Linear(1024, 10))


def many_kernels() -> InBlocks:
    """For a GPU: hundreds of tiny kernels, which the host cannot launch fast enough."""
    blocks: list[nn.Module] = [
        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(100)
    ]
    return InBlocks(nn.Linear(64, 64), blocks, nn.Linear(64, 10))


def large() -> InBlocks:
    """For a GPU: few kernels with much work in each."""
    blocks: list[nn.Module] = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(6)]
    return InBlocks(nn.Linear(64, 4096), blocks, nn.Linear(4096, 10))


def _images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32)


def _sentences(count: int) -> Tensor:
    return torch.randint(0, WORDS, (count, 24))


def _rows(count: int) -> Tensor:
    return torch.randn(count, 64)


@dataclass(frozen=True, slots=True)
class Task:
    """A model and the inputs it takes."""

    model: Callable[[], InBlocks]
    inputs: Callable[[int], Tensor]


TASKS = {
    "conv": Task(conv, _images),
    "transformer": Task(transformer, _sentences),
    "lstm": Task(lstm, _sentences),
    "tabular": Task(tabular, _rows),
    "small_tabular": Task(small_tabular, _rows),
    "wide": Task(wide, _rows),
    "heavy": Task(heavy, _rows),
    "many_kernels": Task(many_kernels, _rows),
    "large": Task(large, _rows),
}
