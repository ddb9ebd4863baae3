"""A recurrent cell written out in Python: thousands of small kernels in every step."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from gpu_turn import wait_for_turn
from made_data import Tokens
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
parser.add_argument("--fixed", action="store_true", help="forward and backward as CUDA graphs")
options = parser.parse_args()
length, batch, width, steps = (8, 4, 32, 6) if options.tiny else (64, 32, 256, 60)
device = "cpu" if options.tiny else "cuda"


class Recurrent(nn.Module):
    """One gated cell, applied to one token after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1024, width)
        self.gate, self.new = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 1024)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(ids.shape[0], width, device=ids.device)
        for place in range(ids.shape[1]):
            both = torch.cat([self.tokens(ids[:, place]), state], 1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * state + (1 - gate) * torch.tanh(self.new(both))
        return self.head(state)


torch.manual_seed(0)
model = Recurrent()
wait_for_turn()
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
net = model
if options.fixed and not options.tiny:
    example = torch.zeros(batch, length, dtype=torch.long, device=device)
    net = torch.cuda.make_graphed_callables(model, (example,))
train = DataLoader(
    Tokens(steps * batch, length, 1024),
    batch,
    shuffle=True,
    num_workers=4,
    pin_memory=True,
    persistent_workers=True,
)
valid = DataLoader(Tokens(2 * batch, length, 1024), batch, num_workers=2)
done = 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(2):
        net.train()
        for number, texts in enumerate(train):
            ids = texts["input_ids"].to(device, non_blocking=True)
            loss = functional.cross_entropy(net(ids), ids[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if number % (steps // 3) == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        net.eval()
        with torch.no_grad():
            for texts in valid:
                net(texts["input_ids"].to(device))
        torch.save(model.state_dict(), Path(folder) / "model.pt")
del train  # ends its workers: at its exit Python would wait 5 s for each, persistent and pinned
print(f"steps {done}")
