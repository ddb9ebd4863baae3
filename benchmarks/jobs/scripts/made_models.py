"""Small models in the usual shapes: a residual network, a GPT, a U-Net."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.body(x))


def residual_network(channels: int, blocks: int, classes: int) -> nn.Sequential:
    """Four stages, each at half the resolution of the one before."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)]
    for stage in range(4):
        width = channels * 2**stage
        layers += [Block(width) for _ in range(blocks)]
        if stage < 3:
            layers.append(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels * 8, classes)]
    return nn.Sequential(*layers)


class Layer(nn.Module):
    """Causal attention and a feed-forward net, both behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_net = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.net = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.queries_keys_values(self.before_attention(x))
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in mixed.chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.net(self.before_net(x))


class GPT(nn.Module):
    """A decoder; with `saves_memory` each layer is computed again in backward."""

    def __init__(
        self, vocabulary: int, length: int, width: int, layers: int, saves_memory: bool = False
    ) -> None:
        super().__init__()
        self.saves_memory = saves_memory
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.saves_memory else layer(x)
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


class UNet(nn.Module):
    """Down, up, and shortcuts between; the noise level is one more channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList(Block(channels * 2**level) for level in range(3))
        self.halve = nn.ModuleList(
            nn.Conv2d(channels * 2**level, channels * 2 ** (level + 1), 3, stride=2, padding=1)
            for level in range(2)
        )
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(channels * 2 ** (level + 1), channels * 2**level, 2, stride=2)
            for level in range(2)
        )
        self.up = nn.ModuleList(Block(channels * 2**level) for level in range(2))
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        noise = level.view(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])
        x = self.first(torch.cat([x, noise], 1))
        shortcuts = []
        for block, halve in zip(self.down[:2], self.halve, strict=True):
            x = block(x)
            shortcuts.append(x)
            x = halve(x)
        x = self.down[2](x)
        for place in (1, 0):
            x = self.up[place](self.enlarge[place](x) + shortcuts[place])
        return self.last(x)
