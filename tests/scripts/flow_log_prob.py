"""A normalizing flow: trained through model.log_prob(x), its layers in a list, no loader."""

import math

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, keeps_first):
        super().__init__()
        self.keeps_first = keeps_first
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        kept, moved = x.chunk(2, dim=-1) if self.keeps_first else reversed(x.chunk(2, dim=-1))
        scale, shift = self.net(kept).chunk(2, dim=-1)
        scale = torch.tanh(scale)
        moved = moved * scale.exp() + shift
        parts = (kept, moved) if self.keeps_first else (moved, kept)
        return torch.cat(parts, dim=-1), scale.squeeze(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(i % 2 == 0) for i in range(6)])

    def log_prob(self, x):
        log_det = 0.0
        for layer in self.layers:
            x, change = layer(x)
            log_det = log_det + change
        return -0.5 * x.pow(2).sum(-1) - math.log(2 * math.pi) + log_det


torch.manual_seed(0)
torch.set_num_threads(1)
flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)

num_step = 0
for iteration in range(60):
    angle = 2 * math.pi * torch.rand(64, 1)
    x = torch.cat([angle.cos(), angle.sin()], dim=1) + 0.1 * torch.randn(64, 2)
    loss = -flow.log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    num_step += 1
    if iteration % 20 == 19:
        print("iteration", iteration, "loss", loss.item())

print(f"steps: {num_step}")
