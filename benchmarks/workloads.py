"""Training steps to measure with, as a user would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traceml

BATCH = 32


@dataclass(frozen=True, slots=True)
class Workload:
    """One step, with and without TraceML's words in it, and the class of its model."""

    traced: Callable[[], Any]
    plain: Callable[[], Any]
    model: type
    device: str = "cpu"

    def settle(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()


class SmallNet(nn.Module):
    """A few layers: half a millisecond or less per step on a CPU."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def small(explicit: bool) -> Workload:
    """Fetch, forward, backward, optimizer on the CPU."""
    torch.manual_seed(0)
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(64 * BATCH, 32), torch.randn(64 * BATCH, 1))
    batches = _endless(DataLoader(data, batch_size=BATCH, collate_fn=_stacked))

    def plain() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    def traced() -> None:
        x, y = next(batches)
        with traceml.trace_step(model):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()

    return Workload(traced if explicit else plain, plain, SmallNet)


def _stacked(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


class Attention(nn.Module):
    """Attention head by head: many small kernels, as hand-written models have them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, 3 * width // heads) for _ in range(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for head in self.heads:
            q, k, v = head(x).chunk(3, dim=-1)
            weights = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1)
            found.append(weights @ v)
        return self.out(torch.cat(found, dim=-1))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Transformer(nn.Module):
    """Four layers on short sequences: the GPU waits for the host's launches."""

    def __init__(self, heads: int, width: int = 128, layers: int = 4, words: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.out = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embed(x)))


def transformer(device: str, heads: int) -> Workload:
    """A launch-bound step without one of TraceML's words, its batches copied to the device."""
    torch.manual_seed(0)
    model = Transformer(heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(0, 1000, (256, 64))
    batches = _endless(DataLoader(TensorDataset(words, words.roll(1, 1)), batch_size=4))

    def step() -> None:
        x, y = next(batches)
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()

    return Workload(step, step, Transformer, device)
