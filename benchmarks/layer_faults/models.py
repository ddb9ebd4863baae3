"""Models to plant faults in: nets as people write them, and models of well-known libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

WIDTH, BATCH = 64, 32


class Task(NamedTuple):
    """A model, its inputs, and its loss."""

    model: nn.Module
    inputs: Callable[[int], Any]
    """Inputs of so many samples."""
    loss: Callable[[nn.Module, Any], torch.Tensor]


class Block(nn.Module):
    """Containers within containers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = inputs + self.mlp(self.norm(inputs))
        return mixed


class Nested(nn.Module):
    """Blocks in a list, one layer that two names share, and one that is called several times."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.repeated = nn.Linear(width, width)
        self.tied = self.stem
        self.head = nn.Linear(width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        for _ in range(3):
            hidden = torch.tanh(self.repeated(hidden))
        scores: torch.Tensor = self.head(self.tied(hidden))
        return scores


def _mean_square(model: nn.Module, inputs: Any) -> torch.Tensor:
    loss: torch.Tensor = model(inputs).square().mean()
    return loss


def nested() -> Task:
    """A small net."""
    return Task(Nested(), lambda samples: torch.randn(samples, WIDTH), _mean_square)


def wide() -> Task:
    """The same, with activations that weigh."""
    return Task(Nested(256), lambda samples: torch.randn(8 * samples, 256), _mean_square)


def bert() -> Task:
    """BERT as transformers builds it."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=2 * WIDTH,
    )
    return Task(BertForSequenceClassification(config), _tokens, _labelled_loss)


def gpt2() -> Task:
    """GPT-2 as transformers builds it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=WIDTH, n_layer=3, n_head=4)
    return Task(GPT2LMHeadModel(config), _tokens, _next_token_loss)


def _tokens(samples: int) -> torch.Tensor:
    return torch.randint(0, 100, (samples, 16))


def _labelled_loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    labels = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    loss: torch.Tensor = model(input_ids=inputs, labels=labels).loss
    return loss


def _next_token_loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=inputs, labels=inputs).loss
    return loss


class BasicBlock(nn.Module):
    """A block of a residual net, with the names that everybody knows."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(inputs)))))
        found += inputs if self.downsample is None else self.downsample(inputs)
        activated: torch.Tensor = self.relu(found)
        return activated


class ResidualNet(nn.Module):
    """A small ResNet: activations are changed in place, one ReLU serves a block twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.bn1(self.conv1(inputs)))
        found = self.layer2(self.layer1(found))
        scores: torch.Tensor = self.fc(found.mean((2, 3)))
        return scores


def resnet() -> Task:
    """A small ResNet on images."""
    return Task(ResidualNet(), lambda samples: torch.randn(samples, 3, 16, 16), _mean_square)


def lopsided() -> Task:
    """One layer holds nearly all parameters: 128 MiB, and twice that for Adam."""
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(WIDTH, 4096))
    model.add_module("huge", nn.Linear(4096, 8192))
    model.add_module("head", nn.Linear(8192, 1))
    return Task(model, lambda samples: torch.randn(samples, WIDTH), _mean_square)


TASKS: dict[str, Callable[[], Task]] = {
    each.__name__: each for each in (nested, wide, bert, gpt2, resnet, lopsided)
}
